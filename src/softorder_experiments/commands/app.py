"""The `softorder` application, to which the other files of this folder add their commands."""

from __future__ import annotations

import typer

STOPPED_BY_USER = 130  # the exit code that shells use for a program ended by Ctrl-C


def examples(*commands: str) -> str:
    """Return the end of a help text: some commands to copy."""
    # \b keeps the line breaks of a paragraph.
    return "Examples:\n\n\b\n" + "\n".join(f"    {command}" for command in commands)


def _new_app(text: str, *commands: str) -> typer.Typer:
    return typer.Typer(
        help=text,
        epilog=examples(*commands),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


app = _new_app(
    "Run the experiments of the SoftSort paper, resume them, and show the results.",
    "softorder list",
    "softorder run sort",
    "softorder run sort --n 9 --relaxation neuralsort --data mnist --preset short",
    "softorder sweep table1 --dry-run",
    "softorder show results/",
)
run_app = _new_app("Run an experiment.", "softorder run sort", "softorder run sort --help")
data_app = _new_app("Download data sets.", "softorder data get mnist")
app.add_typer(run_app, name="run")
app.add_typer(data_app, name="data")
