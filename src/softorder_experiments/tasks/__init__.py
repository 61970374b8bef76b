"""The experiments, one file each."""

from typing import Any

from softorder_experiments.tasks.base import Task
from softorder_experiments.tasks.sort import Sort

TASKS: dict[str, type[Task[Any]]] = {task.name: task for task in (Sort,)}

__all__ = ["TASKS", "Sort", "Task"]
