"""Groups of tied scores, and what their gradients share (README.md, "Tied scores")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softorder._array import Array, Wiring, arange_like, broadcast_shapes, take_along


@dataclass(frozen=True, eq=False)
class Ties:
    """Runs of equal sorted scores; everything is by position, (..., n).

    Attributes:
        wiring: The framework of the arrays.
        group: The number of each position's group, from 0.
        size: How many positions the group has.
        index: Where the position stands in its group, from 0.
    """

    wiring: Wiring
    group: Array
    size: Array
    index: Array

    def total(self, x: Array) -> Array:
        """Return the sum of x (..., c, n) over each group, at each of its positions."""
        xp, n = self.wiring.xp, x.shape[-1]
        sums = self.wiring.add_along_axis(xp.matrix_transpose(x), self.group, n)
        return take_along(self.wiring, xp.matrix_transpose(sums), self.group[..., None, :], -1)

    def before_and_after(self, x: Array) -> tuple[Array, Array]:
        """Return sums of x (..., c, n) over the group before each position, and after it."""
        xp = self.wiring.xp
        inside = xp.astype(self.index > 0, xp.float64)
        batch = broadcast_shapes(inside.shape[:-1], x.shape[:-2])
        x = xp.broadcast_to(x, (*batch, *x.shape[-2:]))
        before = self.wiring.scan(xp.broadcast_to(inside, (*batch, inside.shape[-1])), x) - x
        return before, self.total(x) - before - x

    def average_gradient(self, x: Array) -> Array:
        """Return x (..., n); a derivative is the mean of those of the group."""
        constant = self.wiring.stop_gradient(x)
        if constant is x:  # there is no derivative
            return x
        xp = self.wiring.xp
        # An exact zero that carries the derivative of x: its mean cannot overflow. In float64 it
        # does not round either, however many are tied.
        zero = xp.astype(x - constant, xp.float64)
        mean = self.total(zero[..., None, :])[..., 0, :] / xp.astype(self.size, xp.float64)
        return constant + xp.astype(mean, x.dtype)

    def slopes(self, dtype: Any) -> Array:
        """Return the mean slope of |x_i - s_j| at x_i = s_j over all orders of the group.

        From 1 at the first position to -1 at the last; 0 for a score that is alone.
        """
        xp = self.wiring.xp
        others = xp.astype(self.size - 1, dtype)
        alone = self.size == 1
        slope = 1.0 - 2.0 * xp.astype(self.index, dtype) / xp.where(alone, 1.0, others)
        return xp.where(alone, 0.0, slope)


def find_ties(wiring: Wiring, sorted_scores: Array, finite: Array) -> Ties | None:
    """Return the groups of tied scores; None where it can be seen that there are none.

    Args:
        wiring: The framework of the arrays.
        sorted_scores: (..., n) without gradient.
        finite: (..., n) where to look: all other positions are groups of their own.
    """
    xp = wiring.xp
    same = sorted_scores[..., 1:] == sorted_scores[..., :-1]
    same = same & finite[..., 1:] & finite[..., :-1]
    if sorted_scores.shape[-1] < 2:
        return None
    if wiring.is_concrete(same) and not bool(xp.any(same)):
        return None
    first = xp.ones_like(same[..., :1])
    begins = xp.astype(xp.concat([first, ~same], axis=-1), xp.int64)
    group = wiring.cumulative_sum(begins, -1) - 1
    n = group.shape[-1]
    sizes = wiring.add_along_axis(xp.ones_like(group)[..., None], group, n)[..., 0]
    starts = wiring.cumulative_sum(sizes, -1) - sizes
    size, start = (take_along(wiring, x, group, axis=-1) for x in (sizes, starts))
    return Ties(wiring, group, size, arange_like(xp, n, group) - start)
