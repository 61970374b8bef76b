"""The paper's speed experiment: scores that learn to be in order, by every method and n."""

from softorder_experiments.speed.carry_out import TASK, carry_out, find_devices
from softorder_experiments.speed.frameworks import FRAMEWORKS
from softorder_experiments.speed.methods import METHODS, in_torch
from softorder_experiments.speed.plan import plan
from softorder_experiments.speed.show import (
    DISTURBANCE,
    find_unknown_method,
    is_disturbed,
    is_usual,
    newest,
    ratios_of,
    seconds,
    show_speed,
    time_of,
)

__all__ = [
    "DISTURBANCE",
    "FRAMEWORKS",
    "METHODS",
    "TASK",
    "carry_out",
    "find_devices",
    "find_unknown_method",
    "in_torch",
    "is_disturbed",
    "is_usual",
    "newest",
    "plan",
    "ratios_of",
    "seconds",
    "show_speed",
    "time_of",
]
