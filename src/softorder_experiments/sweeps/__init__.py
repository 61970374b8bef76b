"""Sweeps: all runs behind a table of the paper, on one machine or a cluster."""

from softorder_experiments.sweeps.estimate import estimate
from softorder_experiments.sweeps.plan import TABLES, Cell, TableOptions, plan
from softorder_experiments.sweeps.run import SweepStopped, run_sweep
from softorder_experiments.sweeps.sweep import Job, Sweep
from softorder_experiments.sweeps.tables import list_runs, show_dry_run, show_plan, show_summary
from softorder_experiments.sweeps.workers import ENGINES, Workers, call

__all__ = [
    "ENGINES",
    "TABLES",
    "Cell",
    "Job",
    "Sweep",
    "SweepStopped",
    "TableOptions",
    "Workers",
    "call",
    "estimate",
    "list_runs",
    "plan",
    "run_sweep",
    "show_dry_run",
    "show_plan",
    "show_summary",
]
