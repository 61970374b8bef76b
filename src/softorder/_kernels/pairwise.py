"""Ranks from comparisons between pairs of items: expected ranks, and their whole distribution.

An item beats another with a probability that grows with the difference of their scores; its rank
is one more than the number of items that beat it. All sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softorder._array import Array, Wiring, arange_like, move_axis, slices, take_along
from softorder._kernels.scan import shift
from softorder._kernels.scores import MASKED, SortedScores, pick

# Differences are cut off here, long after every probability is 0 or 1: the derivative with respect
# to the scale would be zero times infinity.
_FAR = 1e4
# Entries that are computed at a time.
TILE = 1 << 20


def expected_ranks(scores: SortedScores, beats: Callable[[Array], Array], scale: Any) -> Array:
    """Return 1 + the sum of the chances to be beaten, at each position, (..., n) in float64.

    O(n^2) time, O(n) memory.

    Args:
        scores: The sorted scores.
        beats: The chance that an item wins, as a function of the scaled difference; 1/2 at 0.
        scale: What differences are divided by: a number, or an array (..., 1).
    """
    comparisons = Comparisons(scores, scale)
    xp = scores.wiring.xp

    def ranks(rows: Array) -> Array:
        chances = beats(comparisons.differences(rows))
        chances = xp.where(comparisons.in_other_blocks(rows), 0.0, chances)
        # An item does not meet itself: its chance of 1/2 is taken from the 1.
        return 0.5 + xp.sum(chances, axis=-1)

    return by_parts(scores.wiring, ranks, comparisons.every, math.prod(scores.shape), axis=-1)


def rank_distribution(
    scores: SortedScores, nodes: list[float], weights: list[float], scale: Any
) -> Array:
    r"""Return the probability of each position for each item, (..., n, n): positions x items.

    Given the item's own noise z, its comparisons are independent, each lost with the probability
    Phi((x_p - x_i) / scale - z): the number of losses has a Poisson-binomial distribution, which
    is averaged over z. O(nodes n^3) time, O(n^2) memory.

    Args:
        scores: The sorted scores.
        nodes: Of the quadrature over z.
        weights: Of the quadrature; they sum to 1.
        scale: The standard deviation of the noise: a number, or an array (..., 1).
    """
    comparisons = Comparisons(scores, scale)
    wiring, xp, n = scores.wiring, scores.wiring.xp, scores.shape[-1]
    like = {"dtype": xp.float64, "device": scores.device}
    z, weight = xp.asarray(nodes, **like)[:, None], xp.asarray(weights, **like)[:, None]

    def losses(rows: Array, z: Array, weight: Array) -> Array:
        """Return a part of the distribution of the number of losses at `rows`, (..., k, n)."""
        none = comparisons.in_other_blocks(rows) | (rows[:, None] == comparisons.every)
        chances = wiring.normal_cdf(comparisons.differences(rows)[..., None, :] - z)
        chances = xp.where(none[..., None, :], 0.0, chances)
        return xp.sum(weight * count_losses(wiring, chances), axis=-2)

    # All steps of `count_losses` are kept for the backward pass of a part.
    each = math.prod(scores.shape) * n
    height = len(nodes) if wiring.sizes_may_vary((each,)) else max(1, TILE // max(1, each))
    parts = list(zip(slices(z, height), slices(weight, height), strict=True))

    def distribution(rows: Array) -> Array:
        if len(parts) == 1:
            return losses(rows, z, weight)
        return sum(wiring.checkpoint(losses, rows, *part) for part in parts)

    every = by_parts(wiring, distribution, comparisons.every, each * len(nodes), axis=-2)
    # Exactly a distribution, whatever the rounding of the weights.
    return _place(scores, every / xp.sum(every, axis=-1, keepdims=True))


class Comparisons:
    """All pairs of positions, a few rows at a time."""

    def __init__(self, scores: SortedScores, scale: Any, far: float = _FAR) -> None:
        """Hold the scores, and how large a scaled difference can be."""
        self.wiring = scores.wiring
        xp = self.wiring.xp
        # Here, not inside a checkpoint: `scores` caches what it computes.
        self.block = scores.position_block
        self.every = arange_like(xp, scores.shape[-1], scores.order)
        self.x = xp.astype(scores.sorted_items, xp.float64)
        self.scale = scale if isinstance(scale, float) else scale[..., None]
        self.far = far

    def in_other_blocks(self, rows: Array) -> Array:
        """Tell which positions never meet those of `rows`, (..., k, n): those of other blocks."""
        return pick(self.wiring, self.block, rows)[..., :, None] != self.block[..., None, :]

    def differences(self, rows: Array) -> Array:
        """Return (x_p - x_i) / scale for positions i of `rows` and all p, (..., k, n)."""
        here = pick(self.wiring, self.x, rows)[..., :, None]
        difference, xp = (self.x[..., None, :] - here) / self.scale, self.wiring.xp
        far = self.far
        return xp.where(difference > far, far, xp.where(difference < -far, -far, difference))


def by_parts(
    wiring: Wiring, function: Callable[[Array], Array], rows: Array, each: int, axis: int
) -> Array:
    """Return function(rows), some rows at a time, and again in the backward pass.

    Args:
        wiring: The framework of the arrays.
        function: Of rows (k,).
        rows: (n,) of integers.
        each: How many entries the function computes for one of them.
        axis: Where the rows are in its result.
    """
    height = max(1, TILE // max(1, each))
    if wiring.sizes_may_vary((each, *rows.shape)) or rows.shape[0] <= height:
        return function(rows)
    return wiring.by_parts(function, rows, height, axis)


def count_losses(wiring: Wiring, chances: Array) -> Array:
    """Return the distribution of the number of losses, (..., n), from the chances (..., n)."""
    xp = wiring.xp
    none = xp.concat([xp.ones_like(chances[..., :1]), xp.zeros_like(chances[..., 1:])], axis=-1)
    return wiring.fold(
        lambda state, lost: state * (1 - lost) + shift(xp, state) * lost,
        none,
        move_axis(xp, chances, -1, 0)[..., None],
    )


def _place(scores: SortedScores, losses: Array) -> Array:
    """Turn the number of losses (..., sorted items, n) into positions (..., n, items)."""
    wiring = scores.wiring
    xp, n = wiring.xp, scores.shape[-1]
    begin, size = (x[..., None, :] for x in scores.spans())
    count = arange_like(xp, n, scores.order)[:, None] - begin
    inside = (count >= 0) & (count < size) & (scores.position_block != MASKED)[..., None, :]
    chosen = take_along(wiring, xp.matrix_transpose(losses), xp.where(inside, count, 0), axis=-2)
    by_position = xp.where(inside, chosen, 0.0)
    return take_along(wiring, by_position, scores.item_positions[..., None, :], axis=-1)
