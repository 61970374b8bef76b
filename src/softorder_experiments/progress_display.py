"""Shows the progress of training: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from softorder_experiments.metric_labels import metric_label

_LINE_SECONDS = 30.0
_STATUS_SECONDS = 1.0


class Display(ABC):
    """Receives the progress of the engine."""

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    @abstractmethod
    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Training starts, or resumes, at a step."""

    @abstractmethod
    def step(self, step: int, loss: float) -> None:
        """Show the current step and the mean loss of the epoch so far."""

    @abstractmethod
    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Show the entry of an epoch that was validated."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Print a line."""

    def warn(self, text: str) -> None:
        """Show a line at once, even from a signal handler."""
        write_to_stderr(text)


def write_to_stderr(text: str) -> None:
    """Write a line to standard error at once; safe in a signal handler."""
    os.write(sys.stderr.fileno(), f"\n{text}\n".encode())


def make_display(console: Console, metric: str) -> Display:
    """Return a live display for a terminal, plain lines otherwise."""
    return LiveDisplay(console, metric) if console.is_terminal else LineDisplay(console, metric)


class LiveDisplay(Display):
    """A progress bar with epoch, rate, remaining time, loss and the validation metric."""

    def __init__(self, console: Console, metric: str) -> None:
        self._metric = metric
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn(f"{metric_label(metric)} [bold]{{task.fields[metric]}}"),
            console=console,
            refresh_per_second=4,
            speed_estimate_period=120,
        )

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Add the bar."""
        self._steps_per_epoch = steps_per_epoch
        self._clock = _Rate(step)
        self._task = self._progress.add_task(
            "",
            total=steps_per_epoch * epochs,
            completed=step,
            epochs=epochs,
            rate="",
            loss="-",
            epoch=step // steps_per_epoch + 1,
            metric="-",
        )

    def step(self, step: int, loss: float) -> None:
        """Update the bar."""
        self._progress.update(
            self._task,
            completed=step,
            epoch=(step - 1) // self._steps_per_epoch + 1,
            rate=f"{self._clock.rate(step):.1f} steps/s",
            loss=f"{loss:.4g}",
        )

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Show the metric."""
        self._progress.update(self._task, metric=f"{entry['validation'][self._metric]:.4g}")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, highlight=False)


class LineDisplay(Display):
    """Prints a line every 30 seconds, and one for each epoch."""

    def __init__(self, console: Console, metric: str) -> None:
        self._console, self._metric = console, metric

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Remember the length of the run."""
        self._steps_per_epoch, self._epochs = steps_per_epoch, epochs
        self._clock = _Rate(step)
        self._last = time.monotonic()

    def step(self, step: int, loss: float) -> None:
        """Print a line if the last one is old enough."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._line(step, f"loss {loss:.4g}")

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Print a line."""
        value = entry["validation"][self._metric]
        text = f"loss {entry['loss']:.4g}  {metric_label(self._metric)} {value:.4g}"
        self._line(entry["step"], text)

    def note(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def _line(self, step: int, text: str) -> None:
        self._last = time.monotonic()
        rate = self._clock.rate(step)
        left = (self._epochs * self._steps_per_epoch - step) / rate if rate else 0.0
        epoch = (step - 1) // self._steps_per_epoch + 1
        self.note(
            f"epoch {epoch}/{self._epochs}  step {step}  {rate:.1f} steps/s  "
            f"{left / 60:.1f} min left  {text}"
        )


class SilentDisplay(Display):
    """Prints nothing: for all processes but the first."""

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Print nothing."""

    def step(self, step: int, loss: float) -> None:
        """Print nothing."""

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Print nothing."""

    def note(self, text: str) -> None:
        """Print nothing."""

    def warn(self, text: str) -> None:
        """Print nothing."""


class StatusFile(SilentDisplay):
    """Writes the progress of a run into a file, from which a sweep shows it.

    Args:
        path: The file; its folder exists when training begins.
        metric: The validation metric to report.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self._path, self._metric = path, metric
        self._last = 0.0

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Write where the run is executed."""
        self._steps_per_epoch = steps_per_epoch
        self._clock = _Rate(step)
        self._status = {
            "where": f"{platform.node()}:{os.getpid()}",
            "epoch": step // steps_per_epoch + 1,
            "epochs": epochs,
            "step": step,
            "rate": 0.0,
            "loss": float("nan"),
            "metric": None,
        }
        self._write()

    def step(self, step: int, loss: float) -> None:
        """Write the progress, at most once a second."""
        epoch = (step - 1) // self._steps_per_epoch + 1
        rate = self._clock.rate(step)
        self._status |= {"epoch": epoch, "step": step, "rate": rate, "loss": loss}
        if time.monotonic() - self._last >= _STATUS_SECONDS:
            self._write()

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Record the validation metric."""
        self._status["metric"] = entry["validation"][self._metric]

    def _write(self) -> None:
        self._last = time.monotonic()
        partial = self._path.with_suffix(".partial")
        # Errors are ignored: on a full disk, the next checkpoint raises one.
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(self._status))
            partial.replace(self._path)


class _Rate:
    """Steps per second since the start."""

    def __init__(self, step: int) -> None:
        self._step, self._time = step, time.monotonic()

    def rate(self, step: int) -> float:
        return (step - self._step) / max(time.monotonic() - self._time, 1e-9)
