"""From a configuration to a record: finds the run again, keeps others away, trains."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only
from rich.console import Console

from softorder_experiments.config import Execution, Training
from softorder_experiments.engine import (
    Interrupted,
    Trainer,
    limited_threads,
    make_fabric,
    measure,
)
from softorder_experiments.errors import UserError
from softorder_experiments.memory import keep_freed_memory
from softorder_experiments.progress_display import Display, SilentDisplay, make_display
from softorder_experiments.runs import Record, Run, run_of, warn_of_bad_lines
from softorder_experiments.tasks.base import Measurement, Task


class Stopped(Exception):
    """A run that was interrupted; says how to resume it."""


def run_task(
    task: Task[Any] | Measurement[Any],
    execution: Execution,
    console: Console,
    *,
    run: Run | None = None,
    again: bool = False,
    display: Display | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Run, Record] | None:
    """Run a task to its end, from its checkpoint if it has one; return its record.

    A run that is finished is not run twice, unless `again` is asked for; `is_stopped` is asked
    after each step. With several processes, all but the first return None.
    """
    fabric = _fabric_of(task, execution)
    run = run or run_of(task.name, task.config, execution.out)
    # Lightning starts further processes with the same command, and tells them which they are.
    is_first = getattr(rank_zero_only, "rank", 0) == 0
    with contextlib.ExitStack() as stack:
        if is_first:
            run.create(task.name, task.config)
            stack.enter_context(run.locked())
            warn_of_bad_lines(run.out, console)
            record = run.record()
            if record and not again:
                text = f"{run.name} was finished on {record['date'][:10]}; `run --again` repeats it"
                console.print(text, highlight=False, soft_wrap=True)
                return run, record
            run.begin(again=again)
            console.print(f"run {run.name}", highlight=False, soft_wrap=True)
        shown = (display or make_display(console, task.selection)) if is_first else SilentDisplay()
        keep_freed_memory()
        try:
            fabric.launch()
            # Now, for Lightning sets the threads of the processes that it launches.
            stack.enter_context(limited_threads(task.config.threads))
            if isinstance(task, Task):
                seconds = execution.checkpoint_seconds
                record = Trainer(task, run, fabric, shown, seconds, is_stopped).fit()
            else:
                record = measure(task, run, fabric)
        except (Interrupted, KeyboardInterrupt) as error:
            if not is_first:
                return None
            lost = "nothing is lost" if isinstance(error, Interrupted) else "at the last checkpoint"
            raise Stopped(f"Stopped; {lost}. To resume:\n\n    {_resume(run, execution)}") from None
        except RuntimeError as error:
            if execution.devices == 1 or "connection" not in str(error).lower():
                raise
            raise UserError(
                "all processes must run together",
                "one that has ended; the cause is what it said, or that it was killed",
                f"Mend it, then: {_resume(run, execution)}",
            ) from error
    return (run, record) if is_first else None


def _fabric_of(task: Task[Any] | Measurement[Any], execution: Execution) -> Fabric:
    """Return the devices for a task that can be shared among them."""
    if isinstance(task, Measurement):
        if execution.devices > 1:
            raise UserError(
                f"{task.name}, where nothing is trained, must have one device",
                f"{execution.devices} devices",
                "Leave --devices out",
            )
        return make_fabric(execution, Training.precision)
    if task.config.batch % execution.devices:
        raise UserError(
            f"the batch must divide by the {execution.devices} devices",
            f"a batch of {task.config.batch}",
            "Change --devices, or the batch with --set batch=...",
        )
    return make_fabric(execution, task.config.precision)


def _resume(run: Run, execution: Execution) -> str:
    """Return the command that resumes a run where it ran."""
    words = ["softorder", "resume", str(run.folder)]
    default = Execution()
    for name in ("accelerator", "devices"):
        value = getattr(execution, name)
        if value != getattr(default, name):
            words += [f"--{name}", str(value)]
    return shlex.join(words)
