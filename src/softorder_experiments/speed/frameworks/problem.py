"""The learning problem, whatever the framework: what a file of this folder is given and makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy

RATE, MOMENTUM = 10.0, 0.5


@dataclass(frozen=True)
class Problem:
    """What is learnt.

    The loss is -(sum of all log-likelihoods) / terms, of scores that are scaled to [0, 1] row by
    row; the scaling is constant, no gradient goes through it.

    Attributes:
        log_likelihood: scores (batch, n) and the order 0, 1, ..., n - 1 -> (batch,).
        terms: What the sum is divided by.
        decay: Times the scores, a part of the gradient.
    """

    log_likelihood: Callable[[Any, Any], Any]
    terms: int
    decay: float

    def update(self, scores: Any, velocity: Any, gradient: Any) -> tuple[Any, Any]:
        """Return scores and velocity after a step as torch.optim.SGD makes it."""
        velocity = MOMENTUM * velocity + (gradient + self.decay * scores)
        return scores - RATE * velocity, velocity


class Learner(Protocol):
    """The scores, and the step that moves them."""

    def step(self) -> None:
        """Make one step, which is an epoch; come back when it is done."""
        ...

    def scores(self) -> numpy.ndarray:
        """Return the scores, (batch, n)."""
        ...

    def loss(self) -> float:
        """Return the loss before the last step."""
        ...
