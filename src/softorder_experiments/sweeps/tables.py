"""Tables of a sweep for the terminal: the plan and the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Column, Table

from softorder_experiments.metric_labels import metric_label
from softorder_experiments.runs import finished_runs
from softorder_experiments.sweeps.estimate import estimate
from softorder_experiments.sweeps.plan import Cell
from softorder_experiments.sweeps.sweep import Sweep
from softorder_experiments.sweeps.workers import Workers, call
from softorder_experiments.tables import duration
from softorder_experiments.tasks import TASKS


def show_dry_run(console: Console, sweep: Sweep, workers: Workers) -> None:
    """Measure a few steps of each cell on the workers, and show the plan."""
    sweep.find_data()
    jobs = [sweep.job(cell, cell.config) for cell in sweep.cells]
    with workers.ready(sweep.count()) as count:
        with console.status(f"measuring a few steps of each of {len(jobs)} cells"):
            seconds = call(estimate, jobs)
        show_plan(console, sweep, seconds, count)


def show_plan(
    console: Console, sweep: Sweep, seconds: Sequence[float | None], workers: int
) -> None:
    """Show the runs of each cell, and the estimated time of the remaining ones.

    Args:
        console: The console to print to.
        sweep: The sweep.
        seconds: The time of one run of each cell; None if nothing is trained.
        workers: The number of runs at a time.
    """
    numbers = [
        Column(name, justify="right") for name in ("runs", "finished", "time per run", "time left")
    ]
    words = [Column(name, overflow="fold") for name in ("cell", "settings", "seeds")]
    table = Table(
        *words, *numbers, title=f"{sweep.name}, the plan", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    done = finished_runs(Path(sweep.execution.out))
    work, longest = 0.0, 0.0
    for cell, chosen, of_run in zip(sweep.cells, sweep.selected_configs(), seconds, strict=True):
        total = sweep.count_of(cell)
        finished = sum(run.name in done for run in sweep.runs_of(cell, chosen))
        left = (of_run or 0.0) * (total - finished)
        work += left
        longest = max(longest, (of_run or 0.0) * (total > finished))
        table.add_row(
            f"{cell.task}-{cell.config.label}",
            _searched(sweep, cell),
            f"0-{sweep.seeds - 1}" if cell.has_seeds and sweep.seeds > 1 else "0",
            str(total),
            str(finished),
            "no training" if of_run is None else duration(of_run),
            duration(left),
        )
    console.print(table)
    time = duration(max(work / workers, longest))
    console.print(
        f"{sweep.count()} runs. {duration(work)} of work left: about {time} with {workers} runs "
        "at a time, estimated from a few steps of each cell on this machine.",
        highlight=False,
    )


def list_runs(console: Console, sweep: Sweep) -> None:
    """List the names of all runs that are known before the grid search."""
    done = finished_runs(Path(sweep.execution.out))
    for cell, chosen in zip(sweep.cells, sweep.selected_configs(), strict=True):
        for run in sweep.runs_of(cell, chosen):
            state = "finished" if run.name in done else "-"
            console.print(f"{run.name}  {state}", highlight=False, soft_wrap=True)


def _searched(sweep: Sweep, cell: Cell) -> str:
    names = cell.searched
    if not (sweep.grid and cell.grid):
        return ", ".join(f"{name} {getattr(cell.config, name):g}" for name in names)
    values = {name: list(dict.fromkeys(point[name] for point in cell.grid)) for name in names}
    return "\n".join(
        f"{name} of {', '.join(f'{x:g}' for x in some)}" for name, some in values.items()
    )


def show_summary(console: Console, sweep: Sweep, rows: Sequence[Mapping[str, Any]]) -> None:
    """Show mean and deviation over seeds for each cell, and the failed runs."""
    for task in dict.fromkeys(row["task"] for row in rows):
        metrics = _metrics(task, rows)
        columns = [Column(metric_label(name), justify="right") for name in metrics]
        table = Table("cell", "chosen", "seeds", *columns, title=f"{task}, on test")
        for row in rows:
            if row["task"] == task:
                table.add_row(row["label"], _chosen(row), _seeds(row), *_values(row, metrics))
        console.print(table)
    for row in rows:
        for run in {run["run"]: run for run in (*row["searched"], *row["runs"])}.values():
            if run["failure"]:
                reason = run["failure"].splitlines()[-1]
                console.print(f"failed: {run['run']}: {reason}", highlight=False, soft_wrap=True)
    console.print(f"summary  {sweep.summary_file}", highlight=False, soft_wrap=True)


def _metrics(task: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics to show: the selection metric, then the others that are not counts."""
    found = [row["runs"][0]["test"] for row in rows if row["task"] == task and row["runs"]]
    first = next((metrics for metrics in found if metrics), {})
    others = [name for name, value in first.items() if isinstance(value, float)]
    return list(dict.fromkeys([TASKS[task].selection, *others]))


def _chosen(row: Mapping[str, Any]) -> str:
    if not row["runs"]:
        return "no run finished"
    return ", ".join(f"{name} {value:g}" for name, value in row["runs"][0]["settings"].items())


def _seeds(row: Mapping[str, Any]) -> str:
    return f"{sum(run['test'] is not None for run in row['runs'])} of {len(row['runs'])}"


def _values(row: Mapping[str, Any], metrics: Sequence[str]) -> list[str]:
    found = [row["test"].get(name) for name in metrics]
    return [f"{one['mean']:.4g} ± {one['deviation']:.2g}" if one else "-" for one in found]
