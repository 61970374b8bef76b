"""The paper's speed experiment: scores that learn to be in order, by every method and n."""

from softorder_experiments.speed.carry_out import TASK, Found, carry_out, find_devices
from softorder_experiments.speed.methods import METHODS, Method
from softorder_experiments.speed.plan import (
    BATCH,
    CURVE_N,
    LONG,
    PAPER,
    QUICK,
    SpeedConfig,
    plan,
)
from softorder_experiments.speed.show import newest, ratios_of, seconds, show_speed

__all__ = [
    "BATCH",
    "CURVE_N",
    "LONG",
    "METHODS",
    "PAPER",
    "QUICK",
    "TASK",
    "Found",
    "Method",
    "SpeedConfig",
    "carry_out",
    "find_devices",
    "newest",
    "plan",
    "ratios_of",
    "seconds",
    "show_speed",
]
