"""Shows how training goes: live on a terminal, in plain lines elsewhere."""

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

_LINE_SECONDS = 30.0
_STATUS_SECONDS = 1.0


class Display(ABC):
    """What the engine tells while it works."""

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
        """Training starts, or goes on, at a step."""

    @abstractmethod
    def step(self, step: int, loss: float) -> None:
        """Some steps were made; the mean loss of the epoch so far."""

    @abstractmethod
    def epoch(self, entry: Mapping[str, Any]) -> None:
        """An epoch was validated: a point of the curve."""

    @abstractmethod
    def note(self, text: str) -> None:
        """Say a line."""

    def warn(self, text: str) -> None:
        """Say a line, in the middle of anything else: called by signals."""
        say_at_once(text)


def say_at_once(text: str) -> None:
    """Say a line on the standard error, whatever else is being written: for signals."""
    os.write(sys.stderr.fileno(), f"\n{text}\n".encode())


def make_display(console: Console, metric: str) -> Display:
    """Return a display that suits the output."""
    return LiveDisplay(console, metric) if console.is_terminal else LineDisplay(console, metric)


class LiveDisplay(Display):
    """A progress bar with epoch, rate, time left, loss and the validation metric."""

    def __init__(self, console: Console, metric: str) -> None:
        self._metric = metric
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn(f"{_words(metric)} [bold]{{task.fields[metric]}}"),
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
        """Move the bar."""
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
        """Say a line above the bar."""
        self._progress.console.print(text, highlight=False)


class LineDisplay(Display):
    """A line now and then, and one for each epoch."""

    def __init__(self, console: Console, metric: str) -> None:
        self._console, self._metric = console, metric

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Remember what the lines are about."""
        self._steps_per_epoch, self._epochs = steps_per_epoch, epochs
        self._clock = _Rate(step)
        self._last = time.monotonic()

    def step(self, step: int, loss: float) -> None:
        """Say a line if the last is some time ago."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._line(step, f"loss {loss:.4g}")

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Say a line."""
        value = entry["validation"][self._metric]
        text = f"loss {entry['loss']:.4g}  {_words(self._metric)} {value:.4g}"
        self._line(entry["step"], text)

    def note(self, text: str) -> None:
        """Say a line."""
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
    """Says nothing: for all processes but the first."""

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Say nothing."""

    def step(self, step: int, loss: float) -> None:
        """Say nothing."""

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Say nothing."""

    def note(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""


class StatusFile(SilentDisplay):
    """Writes how far a run is into a file, for whoever watches a sweep.

    Args:
        path: The file, in a folder that is there when training begins.
        metric: The validation metric to tell.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self._path, self._metric = path, metric
        self._last = 0.0

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def begin(self, step: int, steps_per_epoch: int, epochs: int) -> None:
        """Say where it runs."""
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
        """Say how far it is, once in a second."""
        epoch = (step - 1) // self._steps_per_epoch + 1
        rate = self._clock.rate(step)
        self._status |= {"epoch": epoch, "step": step, "rate": rate, "loss": loss}
        if time.monotonic() - self._last >= _STATUS_SECONDS:
            self._write()

    def epoch(self, entry: Mapping[str, Any]) -> None:
        """Say the metric."""
        self._status["metric"] = entry["validation"][self._metric]

    def _write(self) -> None:
        self._last = time.monotonic()
        partial = self._path.with_suffix(".partial")
        # Nothing depends on it: a full disk stops the run when a checkpoint is written.
        with contextlib.suppress(OSError):
            partial.write_text(json.dumps(self._status))
            partial.replace(self._path)


class _Rate:
    """Steps per second since the start."""

    def __init__(self, step: int) -> None:
        self._step, self._time = step, time.monotonic()

    def rate(self, step: int) -> float:
        return (step - self._step) / max(time.monotonic() - self._time, 1e-9)


def _words(metric: str) -> str:
    return metric.replace("_", " ")
