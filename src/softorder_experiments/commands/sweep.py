"""`softorder sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softorder_experiments.commands.app import STOPPED_BY_USER, app, examples
from softorder_experiments.commands.options import Accelerator, CheckpointSeconds, Out, Preset, Set
from softorder_experiments.config import Execution, Settings
from softorder_experiments.plain_console import PlainConsole

if TYPE_CHECKING:
    from softorder_experiments.sweeps import Sweep, Workers

Grid = Annotated[
    bool, typer.Option("--grid", help="First search the paper's hyper-parameter grid with seed 0.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and an estimate of its time; run nothing.")
]
List = Annotated[bool, typer.Option("--list", help="List the names of all runs; run nothing.")]
Address = Annotated[
    str | None,
    typer.Option(help="The address of a Ray or Dask cluster (default: start one here)."),
]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time (default: the number of cores).")]
Threads = Annotated[
    int, typer.Option(help="CPU threads per run. Another number of threads is another run.")
]
Ns = Annotated[list[int] | None, typer.Option(help="Run this sequence length only (repeatable).")]
Relaxations = Annotated[
    list[str] | None, typer.Option(help="Use this relaxation, not the paper's two (repeatable).")
]
Stochastic = Annotated[
    bool | None,
    typer.Option("--stochastic/--deterministic", help="Only methods with noise, or without."),
]
DataSets = Annotated[
    list[str] | None, typer.Option(help="Use this data set, not the paper's (repeatable).")
]
Baselines = Annotated[
    bool, typer.Option("--baselines/--no-baselines", help="Include the baselines of Table 3.")
]


@app.command(
    epilog=examples(
        "softorder sweep table1 --dry-run",
        "softorder sweep table1 --data digits --seeds 2 --n 5 --deterministic",
        "softorder sweep table2 --grid --engine ray --address auto",
        "softorder sweep table3 --data mnist --preset short --engine dask --address HOST:8786",
    )
)
def sweep(
    table: Annotated[str, typer.Argument(help="table1 (sort), table2 (median) or table3 (knn).")],
    seeds: Annotated[int, typer.Option(help="The number of seeds, counted from 0.")] = 10,
    grid: Grid = False,
    dry_run: DryRun = False,
    list_: List = False,
    engine: Annotated[str, typer.Option(help="local, ray or dask.")] = "local",
    address: Address = None,
    jobs: Jobs = None,
    threads: Threads = Settings.threads,
    n: Ns = None,
    relaxation: Relaxations = None,
    stochastic: Stochastic = None,
    data: DataSets = None,
    baselines: Baselines = True,
    preset: Preset = None,
    settings: Set = None,
    out: Out = Path(Execution.out),
    accelerator: Accelerator = Execution.accelerator,
    checkpoint_seconds: CheckpointSeconds = Execution.checkpoint_seconds,
) -> None:
    """Run every experiment of a table. Finished runs are skipped; stopped runs resume."""
    from softorder_experiments import sweeps

    table_options = sweeps.TableOptions(
        n=tuple(n or ()),
        relaxations=tuple(relaxation or ()),
        stochastic=stochastic,
        data=tuple(data or ()),
        preset=preset,
        settings=tuple(settings or ()),
        baselines=baselines,
        threads=threads,
    )
    workers = sweeps.Workers(engine, address, jobs, threads)
    execution = Execution(str(out), accelerator, checkpoint_seconds=checkpoint_seconds)
    cells = sweeps.plan(table, table_options, grid=grid)
    planned = sweeps.Sweep(table, cells, seeds, grid, execution)
    console = PlainConsole()
    if list_:
        sweeps.list_runs(console, planned)
    elif dry_run:
        sweeps.show_dry_run(console, planned, workers)
    else:
        _run(console, planned, workers)


def _run(console: PlainConsole, planned: Sweep, workers: Workers) -> None:
    from softorder_experiments import sweeps

    try:
        sweeps.run_sweep(planned, workers, console)
    except (sweeps.SweepStopped, KeyboardInterrupt):
        console.print("\nStopped. Run the same command again to resume from the checkpoints.")
        raise typer.Exit(STOPPED_BY_USER) from None
    rows = planned.summarize()
    sweeps.show_summary(console, planned, rows)
    if any(run["test"] is None for row in rows for run in row["runs"] or [{"test": None}]):
        raise typer.Exit(1)
