"""The command line: `softorder list | run | sweep | resume | show | report | data | info`.

Importing the files of `commands` adds their commands to `app`. A command imports what needs torch
only when it runs, so that help appears at once.
"""

from __future__ import annotations

import sys

from softorder_experiments.commands import results, run, speed, sweep
from softorder_experiments.commands.app import app
from softorder_experiments.errors import UserError
from softorder_experiments.plain_console import PlainConsole

__all__ = ["app", "results", "run", "run_command_line", "speed", "sweep"]


def run_command_line() -> None:
    """Run the command line; show errors that the user can fix without a traceback."""
    try:
        app()
    except UserError as error:
        errors = PlainConsole(stderr=True)
        errors.print("softorder: ", style="bold red", end="")
        for line in (f"{error.expected};", f"got {error.received}.", error.fix):
            errors.print(line, soft_wrap=True)
        sys.exit(1)
