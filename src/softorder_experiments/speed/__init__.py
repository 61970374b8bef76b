"""The paper's speed experiment: scores that learn to be in order, by every method and n."""

from softorder_experiments.speed.carry_out import TASK, carry_out, find_devices
from softorder_experiments.speed.methods import METHODS
from softorder_experiments.speed.plan import plan
from softorder_experiments.speed.show import is_usual, newest, ratios_of, seconds, show_speed

__all__ = [
    "METHODS",
    "TASK",
    "carry_out",
    "find_devices",
    "is_usual",
    "newest",
    "plan",
    "ratios_of",
    "seconds",
    "show_speed",
]
