"""Carries out the runs of a sweep on workers, some of which may die."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from softorder_experiments.engine import stop_signals
from softorder_experiments.errors import UserError, write_atomically
from softorder_experiments.launch import Stopped, run_task
from softorder_experiments.progress_display import StatusFile, say_at_once
from softorder_experiments.runs import BusyError, finished_runs, warn_of_bad_lines
from softorder_experiments.sweeps.sweep import Job, Sweep
from softorder_experiments.sweeps.watch import Watch
from softorder_experiments.sweeps.workers import Workers, call
from softorder_experiments.tasks import TASKS

_FRUITLESS_ROUNDS = 3
_BUSY_SECONDS = 2.0


class SweepStopped(Exception):
    """A sweep that was interrupted; every run of it can go on."""


def run_sweep(sweep: Sweep, workers: Workers, console: Console) -> None:
    """Run all that is not finished; a run that fails says why in its folder, and others go on."""
    sweep.make_folder()
    warn_of_bad_lines(Path(sweep.execution.out), console)
    with _stop_file(sweep.stop_file) as asked:
        for jobs in sweep.phases():
            for job in jobs:
                job.run.failure.unlink(missing_ok=True)
            if left := _left(jobs):
                sweep.find_data()
                with workers.ready(len(left)) as count, Watch(sweep, jobs, count, console):
                    _run_all(jobs, asked, console)
            sweep.write_summary()


@contextlib.contextmanager
def _stop_file(path: Path) -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C write a file: it reaches the runs of every engine, on any machine."""

    def stop(_: str) -> None:
        path.touch()
        say_at_once("stopping all runs after a step; again to stop at once")

    try:
        with stop_signals(stop) as asked:
            yield asked
    finally:
        path.unlink(missing_ok=True)


def _run_all(jobs: Sequence[Job], asked: Callable[[], bool], console: Console) -> None:
    fruitless = 0
    while left := _left(jobs):
        before = _progress(jobs)
        lost = "a run was stopped from outside"
        try:
            call(run_job, _until(asked, left))
        except Exception as error:
            first, *_ = [*str(error).splitlines(), ""]
            lost = f"{type(error).__name__}: {first[:120]}"
        if asked():
            raise SweepStopped
        if not _left(jobs):
            return
        fruitless = fruitless + 1 if _progress(jobs) == before else 0
        if fruitless == _FRUITLESS_ROUNDS:
            raise UserError(
                "workers must live long enough to come to a checkpoint",
                f"{fruitless} losses in a row ({lost})",
                "Look for what kills them, such as too little memory: try fewer --jobs",
            )
        console.print(f"a worker was lost ({lost}); its run resumes from its checkpoint")


def _left(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that are neither finished nor failed."""
    done = finished_runs(Path(jobs[0].execution.out)) if jobs else {}
    return [job for job in jobs if job.run.name not in done and not job.run.failure.exists()]


def _progress(jobs: Sequence[Job]) -> list[object]:
    """Return what changes when any run comes further."""
    files = [job.run.checkpoint for job in jobs]
    times = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
    return [len(_left(jobs)), *times]


def _until(asked: Callable[[], bool], jobs: Sequence[Job]) -> Iterator[Job]:
    for job in jobs:
        if asked():
            return
        yield job


def run_job(job: Job) -> None:
    """Carry out one run on a worker; whatever goes wrong is written into its folder."""
    try:
        task = TASKS[job.task](job.config)
        display = StatusFile(job.run.status, task.selection)
        while not job.stop.exists():
            with contextlib.suppress(BusyError):
                quiet = Console(quiet=True)
                run_task(task, job.execution, quiet, display=display, is_stopped=job.stop.exists)
                return
            time.sleep(_BUSY_SECONDS)  # another sweep is at it, and will have finished it
    except Stopped:
        pass  # it goes on when the sweep does
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else traceback.format_exc()
        job.run.create(job.task, job.config)
        write_atomically(job.run.failure, text.encode())
