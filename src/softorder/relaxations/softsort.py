"""SoftSort: a continuous relaxation for the argsort operator (Prillo & Eisenschlos, ICML 2020)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from softorder import _checks
from softorder._array import Array
from softorder._kernels.formulas import ABS, SQUARE
from softorder._kernels.scores import SortedScores
from softorder._kernels.spec import Formula, KernelSpec, SemiMetric, Stationary
from softorder.relaxations.base import (
    PermutationRelaxation,
    check_temperature,
    temperature,
)

Metric: TypeAlias = Literal["abs", "square"] | float | Callable[[Any, Any], Any]
"""A semi-metric: a name, the power p of |a - b|^p, or a function of two arrays of one shape."""

_NAMED = {"abs": ABS, "square": SQUARE}


@dataclass(frozen=True, eq=False)
class SoftSort(PermutationRelaxation):
    r"""Row r is the softmax of the negative distances to the r-th largest score.

    .. math:: \mathrm{SoftSort}_\tau^d(s) = \mathrm{softmax}(-d(\mathrm{sort}(s) 1^T, 1 s^T) / \tau)

    Rows are unimodal distributions, the mode of row r is the r-th item of the exact argsort, and
    the matrix goes to the exact permutation as tau goes to 0. Products with it cost O(n log n)
    time and O(n) memory for "abs" and "square", O(n^2) time and O(n) memory for other metrics; see
    `softorder.config`. At ties the gradient is the mean over all orders of the tied scores. Where
    all scores are equal it is zero, unless the metric is "abs".

    Args:
        tau: The temperature, in the units of d: a positive number, or an array with one value per
            batch row (it broadcasts against the scores' shape without `dim`), which receives its
            gradient.
        metric: The semi-metric d: "abs", "square", a positive power p for |a - b|^p, or a callable
            d(a, b) that works element by element, may have parameters of its own, and is never
            asked for d(a, a), which is the constant 0.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> P = so.SoftSort(tau=0.1)(np.array([2.0, 5.0, 4.0]))
        >>> P @ np.array([2.0, 5.0, 4.0])
        array([4.9999546 , 4.00004539, 2.        ])
    """

    tau: float | Array = 1.0
    metric: Metric = "abs"

    def __post_init__(self) -> None:
        """Check what can be checked without scores."""
        check_temperature(self.tau)
        _formula(self.metric)

    def weights(self, scores: SortedScores) -> KernelSpec:
        """Return the weights exp(-d / tau)."""
        return KernelSpec(_formula(self.metric), temperature(self.tau, scores))


def _formula(metric: Any) -> Formula:
    if isinstance(metric, str):
        return _checks.check_choice(
            metric,
            _NAMED,
            "metric",
            "Pass one of these, a power p > 0 for |a - b|^p, or a callable d(a, b).",
        )
    if callable(metric):
        return SemiMetric(metric)
    return Stationary(
        _checks.check_positive_number(
            metric, "metric", 'Pass "abs", "square", a power p > 0, or a callable d(a, b).'
        )
    )
