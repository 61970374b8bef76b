"""Runs the jobs of a sweep on workers; a worker that dies is replaced."""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from softorder_experiments.errors import UserError, write_atomically
from softorder_experiments.launch import Stopped, run_task
from softorder_experiments.progress_display import StatusFile, write_to_stderr
from softorder_experiments.runs import BusyError, finished_runs, warn_of_bad_lines
from softorder_experiments.stop_signals import stop_signals
from softorder_experiments.sweeps.sweep import Job, Sweep
from softorder_experiments.sweeps.watch import Watch
from softorder_experiments.sweeps.workers import Workers, call
from softorder_experiments.tasks import TASKS

_MAX_ROUNDS_WITHOUT_PROGRESS = 3
_BUSY_SECONDS = 2.0


class SweepStopped(Exception):
    """A sweep was interrupted; all of its runs can resume."""


def run_sweep(sweep: Sweep, workers: Workers, console: Console) -> None:
    """Run all unfinished jobs. A job that fails writes the reason into its folder."""
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
    """On the first Ctrl-C, create a file, which the runs of every engine see on any machine."""

    def stop(_: str) -> None:
        path.touch()
        write_to_stderr("stopping all runs after this step; press Ctrl-C again to stop at once")

    try:
        with stop_signals(stop) as asked:
            yield asked
    finally:
        path.unlink(missing_ok=True)


def _run_all(jobs: Sequence[Job], asked: Callable[[], bool], console: Console) -> None:
    without_progress = 0
    while left := _left(jobs):
        before = _progress(jobs)
        lost = "a run was stopped by a signal"
        try:
            call(run_job, _until(asked, left))
        except Exception as error:
            first, *_ = [*str(error).splitlines(), ""]
            lost = f"{type(error).__name__}: {first[:120]}"
        if asked():
            raise SweepStopped
        if not _left(jobs):
            return
        without_progress = without_progress + 1 if _progress(jobs) == before else 0
        if without_progress == _MAX_ROUNDS_WITHOUT_PROGRESS:
            raise UserError(
                "workers must live long enough to write a checkpoint",
                f"{without_progress} lost workers in a row ({lost})",
                "Find out what kills them, for example too little memory: try fewer --jobs",
            )
        console.print(f"a worker was lost ({lost}); its run resumes from its checkpoint")


def _left(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that are neither finished nor failed."""
    done = finished_runs(Path(jobs[0].execution.out)) if jobs else {}
    return [job for job in jobs if job.run.name not in done and not job.run.failure.exists()]


def _progress(jobs: Sequence[Job]) -> list[object]:
    """Return a value that changes whenever a run makes progress."""
    files = [job.run.checkpoint for job in jobs]
    times = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
    return [len(_left(jobs)), *times]


def _until(asked: Callable[[], bool], jobs: Sequence[Job]) -> Iterator[Job]:
    for job in jobs:
        if asked():
            return
        yield job


def run_job(job: Job) -> None:
    """Run one job on a worker; write any error into the folder of its run."""
    try:
        task = TASKS[job.task](job.config)
        display = StatusFile(job.run.status, task.selection)
        while not job.stop.exists():
            with contextlib.suppress(BusyError):
                quiet = Console(quiet=True)
                run_task(task, job.execution, quiet, display=display, is_stopped=job.stop.exists)
                return
            time.sleep(_BUSY_SECONDS)  # another sweep is running this job: wait until it is done
    except Stopped:
        pass  # it resumes when the sweep is resumed
    except Exception as error:
        text = str(error) if isinstance(error, UserError) else traceback.format_exc()
        job.run.create(job.task, job.config)
        write_atomically(job.run.failure, text.encode())
