"""Estimates the time of a run from a few of its steps."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from softorder_experiments.devices import limited_threads, make_fabric
from softorder_experiments.engine import Trainer
from softorder_experiments.memory import keep_freed_memory
from softorder_experiments.progress_display import SilentDisplay
from softorder_experiments.runs import Run
from softorder_experiments.sweeps.sweep import Job
from softorder_experiments.tasks import TASKS, Measurement

_WARM_UP, _MEASURED = 2, 5
# The share of a step that is the forward pass; the backward pass takes about twice as long.
_SHARE_OF_FORWARD = 1 / 3


def estimate(job: Job) -> float | None:
    """Return the seconds of a whole run on this worker, or None if nothing is trained."""
    keep_freed_memory()
    task = TASKS[job.task](job.config)
    if isinstance(task, Measurement):
        return None
    with tempfile.TemporaryDirectory() as folder, limited_threads(task.config.threads):
        fabric = make_fabric(job.execution, task.config.precision)
        trainer = Trainer(task, Run(Path(folder), "estimate"), fabric, SilentDisplay())
        trainer.steps(_WARM_UP)
        began = time.monotonic()
        trainer.steps(_MEASURED)
        step = (time.monotonic() - began) / _MEASURED
    forward = step * _SHARE_OF_FORWARD / task.images_per_step
    evaluated = task.config.epochs * task.images_to_evaluate("validation")
    evaluated += task.images_to_evaluate("test")
    return trainer.total_steps * step + evaluated * forward
