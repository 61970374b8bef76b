"""Carries out the runs of a sweep on workers, some of which may die."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from softorder_experiments.display import StatusFile, say_at_once
from softorder_experiments.engine import stop_signals
from softorder_experiments.errors import UserError, replace
from softorder_experiments.launch import Stopped, carry_out
from softorder_experiments.runs import finished_runs
from softorder_experiments.sweeps.sweep import Job, Sweep
from softorder_experiments.sweeps.watch import Watch
from softorder_experiments.sweeps.workers import Workers, call
from softorder_experiments.tasks import TASKS

_FRUITLESS_ROUNDS = 3


class SweepStopped(Exception):
    """A sweep that was interrupted; every run of it can go on."""


def carry_out_sweep(sweep: Sweep, workers: Workers, console: Console) -> None:
    """Run all that is not finished; a run that fails says why in its folder, and others go on."""
    with stop_signals(lambda _: say_at_once(_STOPPING)) as asked:
        for jobs in sweep.phases():
            for job in jobs:
                job.run.failure.unlink(missing_ok=True)
            if _left(jobs):
                sweep.find_data()
                with workers.ready() as count, Watch(sweep, jobs, count, console):
                    _carry_out_all(jobs, asked, console)
            sweep.write_summary()


_STOPPING = "stopping: no further run begins; once more stops those at work, at their checkpoints"


def _carry_out_all(jobs: Sequence[Job], asked: Callable[[], bool], console: Console) -> None:
    fruitless = 0
    while left := _left(jobs):
        try:
            call(carry_out_job, _until(asked, left))
        except Exception as error:
            lost = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
        else:
            lost = "a run was stopped from outside"
        if asked():
            raise SweepStopped
        if not _left(jobs):
            return
        fruitless = fruitless + 1 if len(_left(jobs)) == len(left) else 0
        if fruitless == _FRUITLESS_ROUNDS:
            raise UserError(
                "workers must live long enough to finish a run",
                f"{fruitless} losses in a row ({lost})",
                "Look for what kills them, such as too little memory: try fewer --jobs",
            )
        console.print(f"a worker was lost ({lost}); its run goes on from its checkpoint")


def _left(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that are neither finished nor failed."""
    done = finished_runs(Path(jobs[0].place.out)) if jobs else {}
    return [job for job in jobs if job.run.name not in done and not job.run.failure.exists()]


def _until(asked: Callable[[], bool], jobs: Sequence[Job]) -> Iterator[Job]:
    for job in jobs:
        if asked():
            return
        yield job


def carry_out_job(job: Job) -> None:
    """Carry out one run on a worker; whatever goes wrong is written into its folder."""
    import torch

    torch.set_num_threads(job.threads)
    run = job.run
    quiet = Console(quiet=True)
    try:
        task = TASKS[job.task](job.config)
        carry_out(task, job.place, quiet, display=StatusFile(run.status, task.selection))
    except Stopped:
        pass  # it goes on when the sweep does
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else traceback.format_exc()
        run.create(job.task, job.config)
        replace(run.failure, text.encode())
    finally:
        with contextlib.suppress(OSError):
            run.status.unlink(missing_ok=True)
