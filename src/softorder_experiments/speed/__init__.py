"""The paper's speed experiment: scores learn to be in order, by every method, at every n."""

from softorder_experiments.speed.frameworks import FRAMEWORKS
from softorder_experiments.speed.measure import TASK, find_devices, measure_points
from softorder_experiments.speed.methods import METHODS, in_torch
from softorder_experiments.speed.plan import plan
from softorder_experiments.speed.tables import (
    find_unknown_method,
    is_usual,
    newest,
    ratios_of,
    show_speed,
    time_of,
)

__all__ = [
    "FRAMEWORKS",
    "METHODS",
    "TASK",
    "find_devices",
    "find_unknown_method",
    "in_torch",
    "is_usual",
    "measure_points",
    "newest",
    "plan",
    "ratios_of",
    "show_speed",
    "time_of",
]
