"""The command line: `softorder list | run | sweep | resume | show | report | data | info`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softorder_experiments.config import Place, Settings, from_json, parse_settings
from softorder_experiments.console import PlainConsole
from softorder_experiments.errors import UserError, choose

if TYPE_CHECKING:
    from softorder_experiments.runs import BadLine, Run
    from softorder_experiments.sweeps import Sweep, Workers

# Whatever needs torch is imported by the command that needs it: help must come at once.

_STOPPED_BY_USER = 130  # as a shell has it for a program that Ctrl-C ended


def _examples(*commands: str) -> str:
    # \b keeps the line breaks of a paragraph.
    return "Examples:\n\n\b\n" + "\n".join(f"    {command}" for command in commands)


def _typer(text: str, *examples: str) -> typer.Typer:
    return typer.Typer(
        help=text,
        epilog=_examples(*examples),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


app = _typer(
    "The experiments of the SoftSort paper: run them, stop them, resume them, look at them.",
    "softorder list",
    "softorder run sort",
    "softorder run sort --n 9 --relaxation neuralsort --data mnist --preset short",
    "softorder sweep table1 --dry-run",
    "softorder show results/",
)
run_app = _typer("Run an experiment.", "softorder run sort", "softorder run sort --help")
data_app = _typer("Get the data sets.", "softorder data get mnist")
app.add_typer(run_app, name="run")
app.add_typer(data_app, name="data")

Out = Annotated[
    Path, typer.Option(help="The folder for records, checkpoints and pictures of what you run.")
]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Devices = Annotated[int, typer.Option(help="How many devices, or processes on the CPU.")]
CheckpointSeconds = Annotated[float, typer.Option(help="The time between checkpoints.")]
Again = Annotated[
    bool, typer.Option("--again", help="Start from the beginning, even if it is finished.")
]
Data = Annotated[str | None, typer.Option(help="digits, mnist, fashion-mnist or cifar10.")]
Relaxation = Annotated[
    str | None, typer.Option(help="softsort, neuralsort, optimal-transport or softrank.")
]
N = Annotated[int | None, typer.Option(help="Numbers of a sequence.")]
K = Annotated[int | None, typer.Option(help="How many neighbours vote.")]
Stochastic = Annotated[
    bool | None, typer.Option("--stochastic/--deterministic", help="Gumbel noise in training.")
]
Preset = Annotated[
    str | None,
    typer.Option(help="paper, short or embedded (default: embedded for digits, else paper)."),
]
Seed = Annotated[int | None, typer.Option(help="Of the weights, the data and the noise.")]
Threads = Annotated[
    int | None,
    typer.Option(help="Of each process on the CPU (default: 1). Another number is another run."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any other setting; see `softorder list`."),
]


def _add_numbers_task(task: str, text: str, *examples: str) -> None:
    """Add the command of a task on sequences of numbers."""

    @run_app.command(task, help=text, epilog=_examples(*examples))
    def run(
        n: N = None,
        relaxation: Relaxation = None,
        stochastic: Stochastic = None,
        data: Data = None,
        preset: Preset = None,
        seed: Seed = None,
        threads: Threads = None,
        settings: Set = None,
        out: Out = Path(Place.out),
        accelerator: Accelerator = Place.accelerator,
        devices: Devices = Place.devices,
        checkpoint_seconds: CheckpointSeconds = Place.checkpoint_seconds,
        again: Again = False,
    ) -> None:
        method = {"relaxation": relaxation, "stochastic": stochastic}
        place = Place(str(out), accelerator, devices, checkpoint_seconds)
        given = {"n": n, **method, "data": data, "seed": seed, "threads": threads}
        _run(task, preset, given, settings or [], place, again)


_add_numbers_task(
    "sort",
    "Sort handwritten numbers, learnt from their order alone (the paper's Table 1).",
    "softorder run sort",
    "softorder run sort --n 3 --relaxation neuralsort --stochastic --seed 1",
    "softorder run sort --n 5 --data mnist --preset paper --set lr=0.001 --set epochs=6",
    "softorder run sort --devices 2 --accelerator cpu",
)
_add_numbers_task(
    "median",
    "Say the median of handwritten numbers, learnt from its value alone (Table 2).",
    "softorder run median",
    "softorder run median --n 9 --data mnist --relaxation neuralsort",
    "softorder run median --n 5 --data mnist --stochastic --set epochs=3",
    "softorder run median --set of_soft_image=true",
)


@run_app.command(
    "knn",
    epilog=_examples(
        "softorder run knn",
        "softorder run knn --data mnist --preset short",
        "softorder run knn --data cifar10 --k 9 --stochastic --set tau=64",
        "softorder run knn --data mnist --set units=500 --set reduction=sum",
    ),
)
def run_knn(
    k: K = None,
    relaxation: Relaxation = None,
    stochastic: Stochastic = None,
    data: Data = None,
    preset: Preset = None,
    seed: Seed = None,
    threads: Threads = None,
    settings: Set = None,
    out: Out = Path(Place.out),
    accelerator: Accelerator = Place.accelerator,
    devices: Devices = Place.devices,
    checkpoint_seconds: CheckpointSeconds = Place.checkpoint_seconds,
    again: Again = False,
) -> None:
    """Classify images by nearest neighbours, learnt through their soft order (Table 3)."""
    method = {"k": k, "relaxation": relaxation, "stochastic": stochastic}
    given = {**method, "data": data, "seed": seed, "threads": threads}
    place = Place(str(out), accelerator, devices, checkpoint_seconds)
    _run("knn", preset, given, settings or [], place, again)


@run_app.command(
    "baseline",
    epilog=_examples(
        "softorder run baseline pixels --data mnist",
        "softorder run baseline pca --set components=30",
        "softorder run baseline autoencoder --data mnist --preset short",
        "softorder run baseline classifier --data fashion-mnist",
    ),
)
def run_baseline(
    method: Annotated[str, typer.Argument(help="pixels, pca, autoencoder or classifier.")],
    data: Data = None,
    preset: Preset = None,
    seed: Seed = None,
    threads: Threads = None,
    settings: Set = None,
    out: Out = Path(Place.out),
    accelerator: Accelerator = Place.accelerator,
    devices: Devices = Place.devices,
    checkpoint_seconds: CheckpointSeconds = Place.checkpoint_seconds,
    again: Again = False,
) -> None:
    """Classify images by what Table 3 compares with: other features, or no neighbours."""
    from softorder_experiments.tasks import BASELINES

    choose("baseline", method, {baseline.name: baseline for baseline in BASELINES})
    place = Place(str(out), accelerator, devices, checkpoint_seconds)
    given = {"data": data, "seed": seed, "threads": threads}
    _run(method, preset, given, settings or [], place, again)


@run_app.command(
    "speed",
    epilog=_examples(
        "softorder run speed --quick",
        "softorder run speed",
        "softorder run speed --method softsort-abs --method softsort-abs-dense --n 100 --n 1000",
        "softorder run speed --method softsort-abs-jax --method softsort-abs-tensorflow --n 1000",
        "softorder run speed --device cuda --memory-limit 12",
    ),
)
def run_speed(
    quick: Annotated[bool, typer.Option("--quick", help="Only n = 100, 500, 1000.")] = False,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this one; see `softorder list`; repeat it.")
    ] = None,
    n: Annotated[list[int] | None, typer.Option(help="Only this length; repeat it.")] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or mps; auto: all that are here.")
    ] = "auto",
    time_limit: Annotated[
        float, typer.Option(help="Seconds for one point; beyond, it is too slow.")
    ] = 900.0,
    memory_limit: Annotated[
        float | None, typer.Option(help="GiB for one point (default: 95 % of what is free).")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Of torch (default: as many as cores, as JAX and TensorFlow take)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the scores at the start.")] = 0,
    out: Out = Path(Place.out),
    again: Again = False,
) -> None:
    """Time the operators as the paper does: scores learn to be in order (Figures 8 and 9).

    Each point is measured in a process of its own; one that runs out of time or memory says so.
    What is measured stays: the same command resumes where it was stopped. Keep the machine idle: a
    point is measured up to three times while other processes disturb it, and then marked.
    """
    from softorder_experiments import speed
    from softorder_experiments.measuring import Limits

    given = {"memory_limit": int(memory_limit * 2**30)} if memory_limit else {}
    limits = Limits(time_limit, **given)
    devices = speed.find_devices(device)
    points = speed.plan(
        quick=quick,
        methods=method or (),
        sizes=n or (),
        devices=devices,
        seed=seed,
        threads=threads,
    )
    console = PlainConsole()
    try:
        records = speed.measure_points(points, out, limits, console, again=again)
    except KeyboardInterrupt:
        console.print("\nStopped; the same command resumes with the points that are left.")
        raise typer.Exit(_STOPPED_BY_USER) from None
    speed.show_speed(console, records)
    console.print(f"records  {out / 'results.jsonl'}", highlight=False, soft_wrap=True)


def _run(
    task: str,
    preset: str | None,
    given: Mapping[str, Any],
    settings: Sequence[str],
    place: Place,
    again: bool,
) -> None:
    """Join preset, options and settings, in this order, and run."""
    from softorder_experiments.tasks import TASKS, configure

    changes = {name: value for name, value in given.items() if value is not None}
    changes |= parse_settings(TASKS[task].config_type, settings)
    _carry_out(task, configure(task, preset, changes), place, again)


def _carry_out(
    task: str, config: Any, place: Place, again: bool = False, run: Run | None = None
) -> None:
    from softorder_experiments import tables
    from softorder_experiments.launch import Stopped, carry_out
    from softorder_experiments.tasks import TASKS

    console = PlainConsole()
    try:
        outcome = carry_out(TASKS[task](config), place, console, run=run, again=again)
    except Stopped as stopped:
        console.print(f"\n{stopped}", highlight=False, soft_wrap=True)
        raise typer.Exit(_STOPPED_BY_USER) from None
    if outcome is not None:
        tables.show_result(console, *outcome)


@app.command(
    epilog=_examples(
        "softorder sweep table1 --dry-run",
        "softorder sweep table1 --data digits --seeds 2 --n 5 --deterministic",
        "softorder sweep table2 --grid --engine ray --address auto",
        "softorder sweep table3 --data mnist --preset short --engine dask --address HOST:8786",
    )
)
def sweep(
    table: Annotated[str, typer.Argument(help="table1 (sort), table2 (median) or table3 (knn).")],
    seeds: Annotated[int, typer.Option(help="How many, from 0.")] = 10,
    grid: Annotated[
        bool, typer.Option("--grid", help="Search the paper's grid with seed 0 first.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, and how long it would take.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="Name every run, and do nothing.")] = False,
    engine: Annotated[str, typer.Option(help="local, ray or dask.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray or Dask cluster; without it, one starts here.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at once (default: as many as there are cores).")
    ] = None,
    threads: Annotated[
        int, typer.Option(help="Of each run on the CPU. Another number is another run.")
    ] = Settings.threads,
    n: Annotated[
        list[int] | None, typer.Option(help="Only these lengths of sequences; repeat it.")
    ] = None,
    relaxation: Annotated[
        list[str] | None, typer.Option(help="These instead of both of the paper; repeat it.")
    ] = None,
    stochastic: Annotated[
        bool | None, typer.Option("--stochastic/--deterministic", help="Only with, or without.")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="These instead of the paper's; repeat it.")
    ] = None,
    baselines: Annotated[
        bool, typer.Option("--baselines/--no-baselines", help="Of table 3.")
    ] = True,
    preset: Preset = None,
    settings: Set = None,
    out: Out = Path(Place.out),
    accelerator: Accelerator = Place.accelerator,
    checkpoint_seconds: CheckpointSeconds = Place.checkpoint_seconds,
) -> None:
    """Run everything behind a table: what is finished stays, what was stopped is resumed."""
    from softorder_experiments import sweeps

    choice = sweeps.Choice(
        tuple(n or ()),
        tuple(relaxation or ()),
        stochastic,
        tuple(data or ()),
        preset,
        tuple(settings or ()),
        baselines,
        threads,
    )
    workers = sweeps.Workers(engine, address, jobs, threads)
    place = Place(str(out), accelerator, checkpoint_seconds=checkpoint_seconds)
    planned = sweeps.Sweep(table, sweeps.plan(table, choice, grid=grid), seeds, grid, place)
    console = PlainConsole()
    if list_:
        sweeps.list_runs(console, planned)
    elif dry_run:
        sweeps.show_dry_run(console, planned, workers)
    else:
        _sweep(console, planned, workers)


def _sweep(console: PlainConsole, planned: Sweep, workers: Workers) -> None:
    from softorder_experiments import sweeps

    try:
        sweeps.carry_out_sweep(planned, workers, console)
    except (sweeps.SweepStopped, KeyboardInterrupt):
        console.print("\nStopped; the same command resumes from the checkpoints.")
        raise typer.Exit(_STOPPED_BY_USER) from None
    rows = planned.summarize()
    sweeps.show_summary(console, planned, rows)
    if any(run["test"] is None for row in rows for run in row["runs"] or [{"test": None}]):
        raise typer.Exit(1)


@app.command(
    epilog=_examples(
        "softorder resume sort-n5-softsort-digits", "softorder resume results/runs/NAME"
    )
)
def resume(
    run: Annotated[str, typer.Argument(help="Its name, the beginning of it, or its folder.")],
    out: Out = Path(Place.out),
    accelerator: Accelerator = Place.accelerator,
    devices: Devices = Place.devices,
    checkpoint_seconds: CheckpointSeconds = Place.checkpoint_seconds,
) -> None:
    """Resume a stopped run: the numbers are those of a run that was never stopped."""
    from softorder_experiments.runs import find_run
    from softorder_experiments.tasks import TASKS

    found = find_run(out, run)
    task, fields = found.read_config()
    config = from_json(choose("task", task, TASKS).config_type, fields)
    place = Place(str(found.out), accelerator, devices, checkpoint_seconds)
    _carry_out(task, config, place, run=found)


@app.command("list")
def list_everything() -> None:
    """List tasks, presets and their settings, relaxations and data sets."""
    from softorder_experiments import tables

    tables.list_everything(PlainConsole())


@app.command(epilog=_examples("softorder show", "softorder show results/"))
def show(
    where: Annotated[Path, typer.Argument(help="A folder, or a file of JSON lines.")] = Path(
        Place.out
    ),
) -> None:
    """Show your runs, or those of a folder: a line for each record, and what is not finished."""
    from softorder_experiments import tables
    from softorder_experiments.runs import read_lines
    from softorder_experiments.speed import find_unknown_method

    _must_exist(where)
    records, bad = read_lines(where, find_unknown_method)
    tables.show_records(PlainConsole(), records, where)
    _fail_for(bad)


def _fail_for(bad: Sequence[BadLine]) -> None:
    """Say which lines are no records, after those that are; end with an exit code that says so."""
    errors = PlainConsole(stderr=True)
    for line in bad:
        errors.print(f"softorder: {line}.", soft_wrap=True)
    if bad:
        errors.print("All other records are shown. Delete these lines, or mend them.")
        raise typer.Exit(1)


def _must_exist(where: Path) -> None:
    if not where.exists():
        raise UserError(
            "there must be a folder of results, or a file of JSON lines",
            f"{where}, which is not there",
            f"`softorder run sort` makes the folder {Place.out}",
        )


@app.command(
    epilog=_examples(
        "softorder report",
        "softorder report results/ --benchmark benchmarks/results/FILE.jsonl --to page.html",
    )
)
def report(
    where: Annotated[Path, typer.Argument(help="A folder of records, or a file.")] = Path(
        Place.out
    ),
    benchmark: Annotated[
        Path | None, typer.Option(help="The JSON lines of `make bench`, for the peers.")
    ] = None,
    to: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one page about everything that was run, beside the paper's numbers."""
    from softorder_experiments.report import write_report

    _must_exist(where)
    bad = write_report(where, benchmark, to)
    PlainConsole().print(f"page  {to}", highlight=False, soft_wrap=True)
    _fail_for(bad)


@data_app.command("get", epilog=_examples("softorder data get mnist", "softorder data get cifar10"))
def get(
    name: Annotated[str, typer.Argument(help="digits, mnist, fashion-mnist or cifar10.")],
) -> None:
    """Find or download a data set, and check every file of it."""
    from softorder_experiments.data import DATASETS
    from softorder_experiments.data.files import find

    dataset = choose("data", name, DATASETS)
    console = PlainConsole()
    for path in find(dataset.downloads):
        console.print(f"{path}: right", highlight=False, soft_wrap=True)
    console.print(f"{name} is complete" if dataset.downloads else f"{name} is embedded")


@app.command()
def info() -> None:
    """Tell what was built here, and which kernel would be chosen."""
    from softorder.__main__ import main

    main(["info"])


def run_command_line() -> None:
    """Run; show what a user can mend without a traceback."""
    try:
        app()
    except UserError as error:
        errors = PlainConsole(stderr=True)
        errors.print("softorder: ", style="bold red", end="")
        for line in (f"{error.expected};", f"got {error.received}.", error.fix):
            errors.print(line, soft_wrap=True)
        sys.exit(1)
