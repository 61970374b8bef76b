"""`softorder run sort | median | knn | baseline` and `softorder resume`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softorder_experiments.commands.app import STOPPED_BY_USER, app, examples, run_app
from softorder_experiments.commands.options import (
    Accelerator,
    CheckpointSeconds,
    Devices,
    K,
    N,
    Out,
    Relaxation,
    RunOptions,
    Stochastic,
    with_run_options,
)
from softorder_experiments.config import Execution, from_json, parse_settings
from softorder_experiments.errors import look_up
from softorder_experiments.plain_console import PlainConsole

if TYPE_CHECKING:
    from softorder_experiments.runs import Run


@run_app.command(
    "sort",
    epilog=examples(
        "softorder run sort",
        "softorder run sort --n 3 --relaxation neuralsort --stochastic --seed 1",
        "softorder run sort --n 5 --data mnist --preset paper --set lr=0.001 --set epochs=6",
        "softorder run sort --devices 2 --accelerator cpu",
    ),
)
@with_run_options
def run_sort(
    options: RunOptions, n: N = None, relaxation: Relaxation = None, stochastic: Stochastic = None
) -> None:
    """Learn to sort images of handwritten numbers from their order alone (the paper's Table 1)."""
    _run("sort", {"n": n, "relaxation": relaxation, "stochastic": stochastic}, options)


@run_app.command(
    "median",
    epilog=examples(
        "softorder run median",
        "softorder run median --n 9 --data mnist --relaxation neuralsort",
        "softorder run median --n 5 --data mnist --stochastic --set epochs=3",
        "softorder run median --set of_soft_image=true",
    ),
)
@with_run_options
def run_median(
    options: RunOptions, n: N = None, relaxation: Relaxation = None, stochastic: Stochastic = None
) -> None:
    """Learn to predict the median of handwritten numbers from its value alone (Table 2)."""
    _run("median", {"n": n, "relaxation": relaxation, "stochastic": stochastic}, options)


@run_app.command(
    "knn",
    epilog=examples(
        "softorder run knn",
        "softorder run knn --data mnist --preset short",
        "softorder run knn --data cifar10 --k 9 --stochastic --set tau=64",
        "softorder run knn --data mnist --set units=500 --set reduction=sum",
    ),
)
@with_run_options
def run_knn(
    options: RunOptions, k: K = None, relaxation: Relaxation = None, stochastic: Stochastic = None
) -> None:
    """Learn embeddings that classify images by their nearest neighbours (Table 3)."""
    _run("knn", {"k": k, "relaxation": relaxation, "stochastic": stochastic}, options)


@run_app.command(
    "baseline",
    epilog=examples(
        "softorder run baseline pixels --data mnist",
        "softorder run baseline pca --set components=30",
        "softorder run baseline autoencoder --data mnist --preset short",
        "softorder run baseline classifier --data fashion-mnist",
    ),
)
@with_run_options
def run_baseline(
    options: RunOptions,
    method: Annotated[str, typer.Argument(help="pixels, pca, autoencoder or classifier.")],
) -> None:
    """Run a baseline of Table 3: nearest neighbours of other features, or a plain classifier."""
    from softorder_experiments.tasks import BASELINES

    look_up("baseline", method, {baseline.name: baseline for baseline in BASELINES})
    _run(method, {}, options)


@app.command(
    epilog=examples(
        "softorder resume sort-n5-softsort-digits", "softorder resume results/runs/NAME"
    )
)
def resume(
    run: Annotated[
        str, typer.Argument(help="The name of the run, the beginning of it, or its folder.")
    ],
    out: Out = Path(Execution.out),
    accelerator: Accelerator = Execution.accelerator,
    devices: Devices = Execution.devices,
    checkpoint_seconds: CheckpointSeconds = Execution.checkpoint_seconds,
) -> None:
    """Resume a stopped run. Its result is that of a run that was never stopped."""
    from softorder_experiments.runs import find_run
    from softorder_experiments.tasks import TASKS

    found = find_run(out, run)
    task, fields = found.read_config()
    config = from_json(look_up("task", task, TASKS).config_type, fields)
    execution = Execution(str(found.out), accelerator, devices, checkpoint_seconds)
    run_config(task, config, execution, run=found)


def _run(task: str, task_options: Mapping[str, Any], options: RunOptions) -> None:
    """Configure a task by its preset, then the options, then `--set`; and run it."""
    from softorder_experiments.tasks import TASKS, configure

    given = {
        **task_options,
        "data": options.data,
        "seed": options.seed,
        "threads": options.threads,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    changes |= parse_settings(TASKS[task].config_type, options.settings or [])
    config = configure(task, options.preset, changes)
    run_config(task, config, options.execution, options.again)


def run_config(
    task: str, config: Any, execution: Execution, again: bool = False, run: Run | None = None
) -> None:
    """Run a configured task and show its result."""
    from softorder_experiments import launch, tables
    from softorder_experiments.tasks import TASKS

    console = PlainConsole()
    try:
        outcome = launch.run_task(TASKS[task](config), execution, console, run=run, again=again)
    except launch.Stopped as stopped:
        console.print(f"\n{stopped}", highlight=False, soft_wrap=True)
        raise typer.Exit(STOPPED_BY_USER) from None
    if outcome is not None:
        tables.show_result(console, *outcome)
