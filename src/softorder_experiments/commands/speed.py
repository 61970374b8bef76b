"""`softorder run speed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softorder_experiments.commands.app import STOPPED_BY_USER, examples, run_app
from softorder_experiments.commands.options import Again, Out
from softorder_experiments.config import Execution
from softorder_experiments.plain_console import PlainConsole


@run_app.command(
    "speed",
    epilog=examples(
        "softorder run speed --quick",
        "softorder run speed",
        "softorder run speed --method softsort-abs --method softsort-abs-dense --n 100 --n 1000",
        "softorder run speed --method softsort-abs-jax --method softsort-abs-tensorflow --n 1000",
        "softorder run speed --device cuda --memory-limit 12",
    ),
)
def run_speed(
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure n = 100, 500 and 1000 only.")
    ] = False,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Measure this method only (repeatable); see `softorder list`."),
    ] = None,
    n: Annotated[
        list[int] | None, typer.Option(help="Measure this length only (repeatable).")
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or mps; auto measures on every available device.")
    ] = "auto",
    time_limit: Annotated[
        float, typer.Option(help="Seconds for each point; a slower one is recorded as too slow.")
    ] = 900.0,
    memory_limit: Annotated[
        float | None, typer.Option(help="GiB for each point (default: 95 % of the free memory).")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads of torch (default: one per core, like JAX and TensorFlow)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The random seed for the initial scores.")] = 0,
    out: Out = Path(Execution.out),
    again: Again = False,
) -> None:
    """Time the operators as the paper does: scores learn to be in order (Figures 8 and 9).

    Each point is measured in a process of its own. Running out of time or memory is recorded as a
    result. Finished points are skipped: the same command resumes a stopped measurement. Keep the
    machine idle. A point disturbed by other processes is measured up to three times, then marked.
    """
    from softorder_experiments import speed
    from softorder_experiments.measuring import Limits

    given = {"memory_limit": int(memory_limit * 2**30)} if memory_limit else {}
    limits = Limits(time_limit, **given)
    points = speed.plan(
        quick=quick,
        methods=method or (),
        sizes=n or (),
        devices=speed.find_devices(device),
        seed=seed,
        threads=threads,
    )
    console = PlainConsole()
    try:
        records = speed.measure_points(points, out, limits, console, again=again)
    except KeyboardInterrupt:
        console.print("\nStopped. Run the same command again to measure the remaining points.")
        raise typer.Exit(STOPPED_BY_USER) from None
    speed.show_speed(console, records)
    console.print(f"records  {out / 'results.jsonl'}", highlight=False, soft_wrap=True)
