"""What a relaxation hands to the kernels: which weights P has. Data, and no engine."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softorder._array import Array, take_along
from softorder._kernels.metrics import bounded_power, distance
from softorder._kernels.operator import Operator
from softorder._kernels.profiles import BY_POWER, Exponentials
from softorder._kernels.scores import SortedScores

Logits = Callable[[SortedScores, Array | None], Array]
"""`(scores, rows)` gives the logits (..., k, n) of the items at the positions `rows`, None for all.

It sees finite scores only: blocks and masks are applied to what it returns.
"""
Closeness = Callable[[Array], Array]
"""For positions p (..., n), the logit at each position of the item at p, less that of its own item.

It must fall with the distance from its own position.
"""


@dataclass(frozen=True, eq=False)
class RowSoftmax:
    """Rows that are softmaxes of logits: a specification that dense rows and tiles serve.

    Attributes:
        logits: See `Logits`.
        closeness: See `Closeness`; None where it is not known.
    """

    logits: Logits
    closeness: Closeness | None = None


@dataclass(frozen=True, eq=False)
class Explicit:
    """A matrix that is only known as a whole: a specification that brings its own operator."""

    operator: Callable[[SortedScores], Operator]


class Formula(ABC):
    """The weights of P as a function of scores and tau. It holds no array, and can be hashed."""

    native: int | None = None
    """Its number in native/call.hpp; None if it has no products in C++."""
    exponentials: Exponentials | None = None
    """Its weights as a sum of exponentials, by which they can be added up in O(n); None if not."""
    few_rows_are_cheaper = False
    """Whether a few dense rows cost less than a product with all of P."""
    saves_sums = False
    """Whether its products in C++ can save sums for their derivatives."""
    table: Any = None
    """The numbers that C++ needs: `Exponentials.table`."""

    @abstractmethod
    def rows(self, scores: SortedScores, tau: Any) -> RowSoftmax:
        """Return the rows for sorted scores; tau is a number or has shape (..., 1, 1)."""

    def scale(self, tau: Any, xp: Any) -> Any:
        """Return what scores are divided by: a number, or an array (..., 1)."""
        return tau if isinstance(tau, float) else tau[..., 0]

    def tau(self, scale: Any) -> Any:
        """Return the tau of such a scale: a number, or an array (..., 1, 1)."""
        return scale if isinstance(scale, float) else scale[..., None]


@dataclass(frozen=True, eq=False)
class KernelSpec:
    """The weights of P: a formula, and its temperature."""

    formula: Formula
    tau: Any


@dataclass(frozen=True)
class Stationary(Formula):
    """The weights exp(-|x_i - s_j|^p / tau)."""

    power: float

    @property
    def native(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number in native/call.hpp; None unless the weights are a sum of exponentials."""
        return None if self.exponentials is None else 0

    @property
    def exponentials(self) -> Exponentials | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weights as a sum of exponentials; None for a power that has none."""
        return BY_POWER.get(self.power)

    @property
    def table(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The numbers of the sum of exponentials."""
        return BY_POWER[self.power].table

    def rows(self, scores: SortedScores, tau: Any) -> RowSoftmax:
        wiring, row_tau = scores.wiring, tau if isinstance(tau, float) else tau[..., 0]

        def closeness(position: Array) -> Array:
            x = scores.position_scores
            step = x - take_along(wiring, x, position, axis=-1)
            return -bounded_power(wiring.xp, step, self.power) / row_tau

        return RowSoftmax(_negative_distance(self.power, tau), closeness)

    def scale(self, tau: Any, xp: Any) -> Any:
        if self.power == 1:
            return super().scale(tau, xp)
        return math.sqrt(tau) if isinstance(tau, float) else xp.sqrt(tau[..., 0])

    def tau(self, scale: Any) -> Any:
        return super().tau(scale**self.power)


@dataclass(frozen=True)
class SemiMetric(Formula):
    """The weights exp(-d(x_i, s_j) / tau) for any callable d."""

    metric: Callable[[Array, Array], Array]

    def rows(self, scores: SortedScores, tau: Any) -> RowSoftmax:
        return RowSoftmax(_negative_distance(self.metric, tau))


def _negative_distance(metric: Any, tau: Any) -> Logits:
    return lambda scores, rows: -distance(scores, rows, metric) / tau
