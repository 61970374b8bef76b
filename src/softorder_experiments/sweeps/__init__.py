"""Sweeps: all runs behind a table of the paper, on one machine or a cluster."""

from softorder_experiments.sweeps.carry_out import SweepStopped, carry_out_sweep
from softorder_experiments.sweeps.estimate import estimate
from softorder_experiments.sweeps.plan import TABLES, Cell, Choice, plan
from softorder_experiments.sweeps.show import list_runs, show_dry_run, show_plan, show_summary
from softorder_experiments.sweeps.sweep import Job, Sweep
from softorder_experiments.sweeps.workers import ENGINES, Workers, call

__all__ = [
    "ENGINES",
    "TABLES",
    "Cell",
    "Choice",
    "Job",
    "Sweep",
    "SweepStopped",
    "Workers",
    "call",
    "carry_out_sweep",
    "estimate",
    "list_runs",
    "plan",
    "show_dry_run",
    "show_plan",
    "show_summary",
]
