"""The experiments, one file each."""

from collections.abc import Mapping
from typing import Any

from softorder_experiments.config import override
from softorder_experiments.errors import look_up
from softorder_experiments.tasks.base import Experiment, Measurement, Task
from softorder_experiments.tasks.baselines import BASELINES
from softorder_experiments.tasks.knn import KNN
from softorder_experiments.tasks.median import Median
from softorder_experiments.tasks.sort import Sort

TASKS: dict[str, type[Task[Any]] | type[Measurement[Any]]] = {
    task.name: task for task in (Sort, Median, KNN, *BASELINES)
}


def configure(task: str, preset: str | None, changes: Mapping[str, Any]) -> Any:
    """Return a preset of a task with some fields changed.

    The default preset is `embedded` for the data set digits, else `paper`.
    """
    if preset is None:
        preset = "embedded" if changes.get("data", "digits") == "digits" else "paper"
    begin = look_up("preset", preset, TASKS[task].presets)
    return override(begin(changes), changes)


__all__ = [
    "BASELINES",
    "KNN",
    "TASKS",
    "Experiment",
    "Measurement",
    "Median",
    "Sort",
    "Task",
    "configure",
]
