"""Shows the progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from softorder_experiments.runs import finished_runs
from softorder_experiments.schema import NUMBER, TEXT, WHOLE, Kind, Schema, find_problem
from softorder_experiments.sweeps.sweep import Job, Sweep
from softorder_experiments.tables import duration

_SECONDS = 1.0
# The metric is unknown at first; a loss may be NaN or infinite when training diverges.
_VALUE = Kind("a number or null", lambda value: value is None or isinstance(value, int | float))
_STATUS: Schema = {
    "where": TEXT,
    "epoch": WHOLE,
    "epochs": WHOLE,
    "rate": NUMBER,
    "loss": Kind("a number", lambda value: isinstance(value, int | float)),
    "metric": _VALUE,
}


class Watch:
    """Reads the status files of a sweep's runs every second, in a thread of its own.

    Args:
        sweep: The sweep.
        jobs: The jobs of this phase.
        workers: The number of runs at a time.
        console: The console to print to.
    """

    def __init__(self, sweep: Sweep, jobs: Sequence[Job], workers: int, console: Console) -> None:
        self._workers, self._console = workers, console
        self._name, self._out = sweep.name, Path(sweep.execution.out)
        self._runs = {job.run.name: job.run for job in jobs}
        self._began = time.monotonic()
        self._settled = {name for name, _ in self._outcomes()}
        self._settled_before = len(self._settled)
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        text = f"{self._name}: {len(self._runs)} runs, {len(self._settled)} of them finished; "
        self._console.print(f"{text}{self._workers} at a time", highlight=False)
        if self._live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        if self._live:
            self._live.stop()

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        for name, outcome in self._outcomes():
            if name not in self._settled:
                self._settled.add(name)
                count = f"{len(self._settled)}/{len(self._runs)}"
                self._console.print(f"{count}  {name}  {outcome}", highlight=False, soft_wrap=True)
        if self._live:
            self._live.update(self._table(), refresh=True)

    def _outcomes(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the outcome of each finished or failed run."""
        done = finished_runs(self._out)
        for name, run in self._runs.items():
            if name in done:
                yield name, f"finished in {done[name]['seconds']:.0f} s"
            elif failure := run.read_failure():
                yield name, f"failed: {failure.splitlines()[-1][:200]}"

    def _table(self) -> Group:
        columns = ("run", "where", "epoch", "steps/s", "loss", "validation")
        table = Table(*columns, box=None, padding=(0, 2, 0, 0))
        for name, status in self._at_work():
            table.add_row(
                name,
                status["where"],
                f"{status['epoch']}/{status['epochs']}",
                f"{status['rate']:.1f}",
                f"{status['loss']:.4g}",
                "-" if status["metric"] is None else f"{status['metric']:.4g}",
            )
        finished, all_ = len(self._settled), len(self._runs)
        bar = ProgressBar(total=all_, completed=finished, width=40)
        words = Text(f"  {finished} of {all_} runs, {self._time_left()}")
        return Group(table, bar, words)

    def _at_work(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, run in self._runs.items():
            try:
                status = json.loads(run.status.read_text())
            except (OSError, ValueError):  # not started yet, or just ended
                continue
            if find_problem(_STATUS, status) is None:
                yield name, status

    def _time_left(self) -> str:
        new = len(self._settled) - self._settled_before
        if not new:
            return "remaining time unknown"
        seconds = (time.monotonic() - self._began) / new * (len(self._runs) - len(self._settled))
        return f"about {duration(seconds)} left"
