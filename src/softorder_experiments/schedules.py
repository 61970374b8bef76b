"""Learning rate schedules: the share of the highest rate, by the share of training done."""

from __future__ import annotations

import math
from collections.abc import Callable


def constant(_: float, warmup: float) -> float:
    """Keep the learning rate constant."""
    return 1.0


def cosine(position: float, warmup: float) -> float:
    """Rise linearly, then fall to 0 along half a cosine."""
    if position < warmup:
        return position / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (position - warmup) / (1 - warmup))


SCHEDULES: dict[str, Callable[[float, float], float]] = {"constant": constant, "cosine": cosine}
