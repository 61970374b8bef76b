"""`softorder list | show | report | data get | info`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softorder_experiments.commands.app import app, data_app, examples
from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError, look_up
from softorder_experiments.plain_console import PlainConsole

if TYPE_CHECKING:
    from softorder_experiments.runs import BadLine


@app.command("list")
def list_everything() -> None:
    """List tasks, presets and their settings, relaxations and data sets."""
    from softorder_experiments import tables

    tables.list_everything(PlainConsole())


@app.command(epilog=examples("softorder show", "softorder show results/"))
def show(
    where: Annotated[Path, typer.Argument(help="A folder, or a file of JSON lines.")] = Path(
        Execution.out
    ),
) -> None:
    """Show a line for each record in a folder or file, and list unfinished runs."""
    from softorder_experiments import tables
    from softorder_experiments.runs import read_lines
    from softorder_experiments.speed import find_unknown_method

    _check_exists(where)
    records, bad = read_lines(where, find_unknown_method)
    tables.show_records(PlainConsole(), records, where)
    _fail_for(bad)


@app.command(
    epilog=examples(
        "softorder report",
        "softorder report results/ --benchmark benchmarks/results/FILE.jsonl --to page.html",
    )
)
def report(
    where: Annotated[Path, typer.Argument(help="A folder of records, or a file.")] = Path(
        Execution.out
    ),
    benchmark: Annotated[
        Path | None, typer.Option(help="The JSON lines of `make bench`, to compare with peers.")
    ] = None,
    to: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a page that compares your results with the paper's."""
    from softorder_experiments.report import write_report

    _check_exists(where)
    bad = write_report(where, benchmark, to)
    PlainConsole().print(f"page  {to}", highlight=False, soft_wrap=True)
    _fail_for(bad)


@data_app.command("get", epilog=examples("softorder data get mnist", "softorder data get cifar10"))
def get(
    name: Annotated[str, typer.Argument(help="digits, mnist, fashion-mnist or cifar10.")],
) -> None:
    """Find or download a data set, and verify the checksum of every file."""
    from softorder_experiments.data import DATASETS
    from softorder_experiments.data.files import find

    dataset = look_up("data", name, DATASETS)
    console = PlainConsole()
    for path in find(dataset.downloads):
        console.print(f"{path}: checksum ok", highlight=False, soft_wrap=True)
    console.print(
        f"{name} is complete" if dataset.downloads else f"{name} needs no download",
    )


@app.command()
def info() -> None:
    """Show the build of this installation, and which kernel it would choose."""
    from softorder.__main__ import main

    main(["info"])


def _check_exists(where: Path) -> None:
    if not where.exists():
        raise UserError(
            "the argument must be a folder of results, or a file of JSON lines",
            f"{where}, which does not exist",
            f"`softorder run sort` creates the folder {Execution.out}",
        )


def _fail_for(bad: Sequence[BadLine]) -> None:
    """Name the lines that are not records, and exit with code 1 if there are any."""
    errors = PlainConsole(stderr=True)
    for line in bad:
        errors.print(f"softorder: {line}.", soft_wrap=True)
    if bad:
        errors.print("All other records are shown. Delete or fix these lines.")
        raise typer.Exit(1)
