"""Fast differentiable sorting and ranking (Blondel, Teboul, Berthet & Djolonga, ICML 2020).

Both project onto the permutahedron, the convex hull of all permutations of a vector. That is an
isotonic regression: neighbours that are out of order are pooled, and a pool has one value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from softorder import _checks
from softorder._array import Array, arange_like, take_along
from softorder._kernels.on_cpu import pool_kl, pool_l2
from softorder._kernels.scores import SortedScores
from softorder.relaxations.base import (
    RankRelaxation,
    SortRelaxation,
    check_temperature,
    temperature_of_row,
)

Regularization: TypeAlias = Literal["l2", "kl"]


@dataclass(frozen=True, eq=False)
class _Projection:
    """What the two share: how strongly they are regularized, and by what."""

    epsilon: float | Array = 1.0
    regularization: Regularization = "l2"

    def __post_init__(self) -> None:
        """Check what can be checked without scores."""
        check_temperature(self.epsilon, "epsilon")
        _pool_of(self.regularization)


@dataclass(frozen=True, eq=False)
class FastSoftSort(_Projection, SortRelaxation):
    r"""Sorted values by projecting (n, ..., 1) / epsilon onto the permutahedron of the values.

    Values stay exactly sorted where gaps between neighbours are below 1 / epsilon, and are pooled
    where they are wider; there is no matrix. O(n log n) time, O(n) memory. The same results as
    `torchsort.soft_sort`, with right derivatives of any order, also at ties.

    Args:
        epsilon: The strength of the regularization: a positive number, or an array with one value
            per batch row, which receives its gradient.
        regularization: "l2" (Euclidean; piecewise linear) or "kl" (entropic; smooth in each pool).

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.sort(np.array([2.0, 5.0, 4.0]), so.FastSoftSort(epsilon=1.0)).round(3)
        array([2.667, 3.667, 4.667])
    """

    hint = "FastSoftRank has the ranks."

    def values(self, scores: SortedScores) -> Array:
        """Return the sorted values by position, largest first."""
        xp = scores.wiring.xp
        pool = _pool_of(self.regularization)
        epsilon = temperature_of_row(self.epsilon, scores, "epsilon")
        begin, size = scores.spans()
        in_block = arange_like(xp, scores.shape[-1], scores.order) - begin
        x = xp.astype(scores.position_scores, xp.float64)
        w = xp.astype(size - in_block, xp.float64)
        first = pool.find(scores, w / epsilon, x, in_block == 0)
        return pool.deviation(scores, w, epsilon, first) + pool.mean(scores, x, first)


@dataclass(frozen=True, eq=False)
class FastSoftRank(_Projection, RankRelaxation):
    r"""Ranks by projecting the scores / epsilon onto the permutahedron of (1, ..., n).

    There is no matrix. O(n log n) time, O(n) memory. The same results as `torchsort.soft_rank`,
    with right derivatives of any order, also at ties.

    Args:
        epsilon: The strength of the regularization: a positive number, or an array with one value
            per batch row, which receives its gradient.
        regularization: "l2" (Euclidean; piecewise linear) or "kl" (entropic; smooth in each pool).

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.rank(np.array([2.0, 5.0, 4.5]), so.FastSoftRank(epsilon=1.0)).round(3)
        array([1.  , 2.75, 2.25])
    """

    hint = "FastSoftSort has the sorted values."

    def ranks(self, scores: SortedScores) -> Array:
        """Return the ranks by position, within each block."""
        xp = scores.wiring.xp
        pool = _pool_of(self.regularization)
        epsilon = temperature_of_row(self.epsilon, scores, "epsilon")
        begin, size = scores.spans()
        in_block = arange_like(xp, scores.shape[-1], scores.order) - begin
        # The largest rank comes first here.
        theta = -xp.flip(xp.astype(scores.sorted_items, xp.float64), axis=-1)
        w = xp.flip(xp.astype(in_block + 1, xp.float64), axis=-1)
        w = xp.log(w) if pool.of_logs else w
        first = pool.find(scores, theta / epsilon, w, xp.flip(in_block + 1 == size, axis=-1))
        solution = pool.deviation(scores, theta, epsilon, first) + pool.mean(scores, w, first)
        return xp.flip(xp.exp(solution) if pool.of_logs else solution, axis=-1)


@dataclass(frozen=True, eq=False)
class _Pool:
    """One regularization.

    Attributes:
        pools: Finds the pools of a regression: `_kernels.isotonic`.
        reduce: The value of each pool, at each position, `(scores, x, first)`, for x whose first
            of each pool is 0 and the others below.
        of_logs: Whether ranks enter the regression as logarithms.
    """

    pools: Callable[[Any], Any]
    reduce: Callable[[SortedScores, Array, Array], Array]
    of_logs: bool

    def find(self, scores: SortedScores, a: Array, b: Array, begins: Array) -> Array:
        """Return the first position of the pool of each position, (..., n).

        Args:
            scores: For the framework.
            a: (..., n) what is regressed, less b.
            b: (..., n).
            begins: Where a block begins: no pool crosses it.
        """
        xp = scores.wiring.xp
        a, b = (xp.broadcast_to(x, scores.shape) for x in (a, b))
        marks = xp.broadcast_to(xp.astype(begins, xp.float64), scores.shape)
        return scores.wiring.call_on_cpu(self.pools, xp.stack([a, b, marks], axis=-2))

    def mean(self, scores: SortedScores, x: Array, first: Array) -> Array:
        """Return the value of each pool, at each position."""
        top = self._top(scores, x, first)
        return top + self.reduce(scores, x - top, first)

    def deviation(self, scores: SortedScores, x: Array, epsilon: Any, first: Array) -> Array:
        """Return x / epsilon less the value of its pool; 0 for an item alone, however large."""
        # Divided last, so that the gradient of epsilon is no difference of large numbers.
        below = (x - self._top(scores, x, first)) / epsilon
        return below - self.reduce(scores, below, first)

    def _top(self, scores: SortedScores, x: Array, first: Array) -> Array:
        """Return the first of each pool: x falls, so that it is the largest."""
        return scores.wiring.stop_gradient(take_along(scores.wiring, x, first, axis=-1))


def _average(scores: SortedScores, x: Array, first: Array) -> Array:
    ones = scores.wiring.xp.ones_like(x)
    return _total(scores, x, first) / _total(scores, ones, first)


def _log_sum_exp(scores: SortedScores, x: Array, first: Array) -> Array:
    xp = scores.wiring.xp
    return xp.log(_total(scores, xp.exp(x), first))


def _total(scores: SortedScores, x: Array, first: Array) -> Array:
    """Return at each position the sum of x over its pool."""
    wiring = scores.wiring
    sums = wiring.add_along_axis(x[..., None], first, first.shape[-1])[..., 0]
    return take_along(wiring, sums, first, axis=-1)


_POOLS = {
    "l2": _Pool(pool_l2, _average, of_logs=False),
    "kl": _Pool(pool_kl, _log_sum_exp, of_logs=True),
}


def _pool_of(regularization: Any) -> _Pool:
    return _checks.check_choice(regularization, _POOLS, "regularization", 'Pass "l2" or "kl".')
