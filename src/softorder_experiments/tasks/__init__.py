"""The experiments, one file each."""

from typing import Any

from softorder_experiments.tasks.base import Experiment, Measurement, Task
from softorder_experiments.tasks.baselines import BASELINES
from softorder_experiments.tasks.knn import KNN
from softorder_experiments.tasks.median import Median
from softorder_experiments.tasks.sort import Sort

TASKS: dict[str, type[Task[Any]] | type[Measurement[Any]]] = {
    task.name: task for task in (Sort, Median, KNN, *BASELINES)
}

__all__ = ["BASELINES", "KNN", "TASKS", "Experiment", "Measurement", "Median", "Sort", "Task"]
