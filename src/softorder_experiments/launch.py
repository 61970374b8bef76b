"""Runs a task: finds its run, locks it, trains or measures, and returns its record."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable
from typing import Any

from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only
from rich.console import Console

from softorder_experiments.config import Execution, Training
from softorder_experiments.devices import limited_threads, make_fabric
from softorder_experiments.engine import Interrupted, Trainer, measure
from softorder_experiments.errors import UserError
from softorder_experiments.memory import keep_freed_memory
from softorder_experiments.progress_display import Display, SilentDisplay, make_display
from softorder_experiments.runs import Record, Run, run_of, warn_of_bad_lines
from softorder_experiments.tasks.base import Measurement, Task


class Stopped(Exception):
    """A run was interrupted; the message says how to resume it."""


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
    """Run a task to its end, from its checkpoint if there is one; return the run and its record.

    Args:
        task: What to run.
        execution: Where and how to run it.
        console: For messages and progress.
        run: The run's files (default: found from the configuration).
        again: Start from the beginning, even if the run is finished.
        display: Shows the progress (default: one that suits the console).
        is_stopped: Called after each step; returns whether the run should stop.

    Returns:
        The run and its record; None in all processes but the first.
    """
    fabric = _fabric_of(task, execution)
    run = run or run_of(task.name, task.config, execution.out)
    # Lightning starts the other processes with the same command, and gives each its rank.
    is_first = getattr(rank_zero_only, "rank", 0) == 0
    with contextlib.ExitStack() as stack:
        if is_first:
            run.create(task.name, task.config)
            stack.enter_context(run.locked())
            warn_of_bad_lines(run.out, console)
            record = run.record()
            if record and not again:
                text = f"{run.name} finished on {record['date'][:10]}; `run --again` repeats it"
                console.print(text, highlight=False, soft_wrap=True)
                return run, record
            run.begin(again=again)
            console.print(f"run {run.name}", highlight=False, soft_wrap=True)
        shown = (display or make_display(console, task.selection)) if is_first else SilentDisplay()
        keep_freed_memory()
        try:
            fabric.launch()
            # After the launch, because Lightning sets the threads of the processes it launches.
            stack.enter_context(limited_threads(task.config.threads))
            if isinstance(task, Task):
                seconds = execution.checkpoint_seconds
                record = Trainer(task, run, fabric, shown, seconds, is_stopped).fit()
            else:
                record = measure(task, run, fabric)
        except (Interrupted, KeyboardInterrupt) as error:
            if not is_first:
                return None
            raise _stopped(run, execution, isinstance(error, Interrupted)) from None
        except RuntimeError as error:
            if execution.devices > 1 and "connection" in str(error).lower():
                raise _process_ended(run, execution) from error
            raise
    return (run, record) if is_first else None


def _stopped(run: Run, execution: Execution, at_this_step: bool) -> Stopped:
    point = "this step" if at_this_step else "the last checkpoint"
    return Stopped(f"Stopped. To resume from {point}:\n\n    {_resume_command(run, execution)}")


def _fabric_of(task: Task[Any] | Measurement[Any], execution: Execution) -> Fabric:
    """Return the devices, after checking that the task can be split among them."""
    if isinstance(task, Measurement):
        if execution.devices > 1:
            raise UserError(
                f"{task.name} trains nothing and must have one device",
                f"{execution.devices} devices",
                "Leave --devices out",
            )
        return make_fabric(execution, Training.precision)
    if task.config.batch % execution.devices:
        raise UserError(
            f"the batch must be divisible by the {execution.devices} devices",
            f"a batch of {task.config.batch}",
            "Change --devices, or the batch with --set batch=...",
        )
    return make_fabric(execution, task.config.precision)


def _process_ended(run: Run, execution: Execution) -> UserError:
    return UserError(
        "all processes must keep running",
        "a process that ended; see its error message, or it was killed",
        f"Fix the cause, then: {_resume_command(run, execution)}",
    )


def _resume_command(run: Run, execution: Execution) -> str:
    """Return the command that resumes a run on the same devices."""
    words = ["softorder", "resume", str(run.folder)]
    default = Execution()
    for name in ("accelerator", "devices"):
        value = getattr(execution, name)
        if value != getattr(default, name):
            words += [f"--{name}", str(value)]
    return shlex.join(words)
