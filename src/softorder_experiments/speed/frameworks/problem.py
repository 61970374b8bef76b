"""The learning problem and the learner, which every file of this folder implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy

RATE, MOMENTUM = 10.0, 0.5


@dataclass(frozen=True)
class Problem:
    """The learning problem.

    The loss is -(sum of all log-likelihoods) / terms, where each row of scores is scaled to [0, 1].
    The scaling counts as constant: no gradient flows through it.

    Attributes:
        log_likelihood: scores (batch, n) and the order 0, 1, ..., n - 1 -> (batch,).
        terms: The divisor of the sum.
        decay: The weight decay: decay * scores is added to the gradient.
    """

    log_likelihood: Callable[[Any, Any], Any]
    terms: int
    decay: float

    def update(self, scores: Any, velocity: Any, gradient: Any) -> tuple[Any, Any]:
        """Return scores and velocity after a step of torch.optim.SGD."""
        velocity = MOMENTUM * velocity + (gradient + self.decay * scores)
        return scores - RATE * velocity, velocity


class Learner(Protocol):
    """The scores, and the step that trains them."""

    def step(self) -> None:
        """Make one step, which is an epoch, and wait until it is done."""
        ...

    def scores(self) -> numpy.ndarray:
        """Return the scores, (batch, n)."""
        ...

    def loss(self) -> float:
        """Return the loss before the last step."""
        ...
