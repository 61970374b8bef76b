"""NeuralSort: stochastic optimization of sorting networks via continuous relaxations.

Grover, Wang, Zweig & Ermon, ICLR 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softorder._array import Array, arange_like, take_along
from softorder.kernels.choice import choose_rows
from softorder.kernels.dense import RowSoftmax
from softorder.kernels.operator import Operator
from softorder.kernels.scan import shift
from softorder.kernels.scores import SortedScores, pick
from softorder.kernels.tiled import Closeness
from softorder.relaxations.base import PermutationRelaxation, check_temperature, temperature


@dataclass(frozen=True, eq=False)
class NeuralSort(PermutationRelaxation):
    r"""Row i is the softmax of logits that the i-th largest score maximises.

    .. math:: P_i = \mathrm{softmax}([(n + 1 - 2i) s - A_s 1] / \tau), \quad A_s = |s_j - s_k|

    Rows are unimodal distributions, and the matrix goes to the exact permutation as tau goes to 0.
    Products cost O(n^2) time, less where tau is small (n times the width of the band that has
    weight), and O(n) memory.

    Args:
        tau: The temperature, in the units of the scores: a positive number, or an array with one
            value per batch row (it broadcasts against the scores' shape without `dim`), which
            receives its gradient.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> P = so.NeuralSort(tau=1.0)(np.array([2.0, 5.0, 4.0]))
        >>> P.matrix().round(2)
        array([[0.  , 0.73, 0.27],
               [0.09, 0.24, 0.67],
               [0.88, 0.01, 0.12]])
    """

    tau: float | Array = 1.0

    def __post_init__(self) -> None:
        """Check what can be checked without scores."""
        check_temperature(self.tau)

    def operator(self, scores: SortedScores) -> Operator:
        """Return the matrix for sorted scores of shape (..., n)."""
        return choose_rows(_rows, scores, temperature(self.tau, scores), "neuralsort_")


def _rows(scores: SortedScores, tau: Any) -> tuple[RowSoftmax, Closeness]:
    logits = _Logits(scores, tau)
    return RowSoftmax(scores, logits.of_rows), logits.of_places


class _Logits:
    """The logits for one batch of scores, less those of the items at their own positions."""

    def __init__(self, scores: SortedScores, tau: Any) -> None:
        """Hold the scores, and tau: a number, or an array of shape (..., 1, 1)."""
        self.scores = scores
        self.tau = tau
        self.sums = _distances_above(scores)

    def of_rows(self, scores: SortedScores, rows: Array | None) -> Array:
        """Return the logits of all items at the positions `rows`: as `RowSoftmax` asks for them."""
        sums, wiring = self.sums, scores.wiring
        place = arange_like(wiring.xp, sums.shape[-1], sums) if rows is None else rows
        here = place, pick(wiring, scores.sorted_items, rows), pick(wiring, sums, rows)
        there = scores.items[..., None, :], scores.by_item(sums)[..., None, :]
        cost = _cost(scores, tuple(x[..., :, None] for x in here), there)
        return -cost / self.tau

    def of_places(self, place: Array) -> Array:
        """Return the logit of one item at each position: that which stands at `place` (..., n)."""
        scores, sums = self.scores, self.sums
        here = arange_like(scores.wiring.xp, sums.shape[-1], sums), scores.sorted_items, sums
        x, others = (take_along(scores.wiring, a, place, axis=-1) for a in here[1:])
        tau = self.tau if isinstance(self.tau, float) else self.tau[..., 0]
        return -_cost(scores, here, (x, others)) / tau


def _distances_above(scores: SortedScores) -> Array:
    """Return at each position the sum of the distances to all larger scores, in float64.

    A_s 1 is this and the same from below. Made of gaps, no term of which cancels another.
    """
    xp = scores.wiring.xp
    x = xp.astype(scores.sorted_items, xp.float64)
    gaps = shift(xp, x, x[..., :1]) - x
    place = xp.astype(arange_like(xp, x.shape[-1], x), xp.float64)
    return scores.wiring.cumulative_sum(place * gaps, -1)


def _cost(scores: SortedScores, here: tuple[Array, ...], there: tuple[Array, Array]) -> Array:
    """Return how far the logit of an item is below that of the item at its own position.

    With 0-based positions r and p, sorted scores x and the sums V of `_distances_above`, the
    paper's logits differ by c_r(p) - c_r(r) = -2 (V_p - V_r) - (2r + 1) (x_p - x_r): the number
    of items is gone, and so is any block before this one (kernels/README.md).

    Args:
        scores: For the framework and the dtype of the result.
        here: r, x_r and V_r.
        there: x_p and V_p.
    """
    xp = scores.wiring.xp
    place, x, sums = here
    other_x, other_sums = there
    # In float64: both parts are about n times as large as what they leave.
    step = xp.astype(other_x, xp.float64) - xp.astype(x, xp.float64)
    cost = 2 * (other_sums - sums) + (2 * xp.astype(place, xp.float64) + 1) * step
    bound = 0.5 * float(xp.finfo(scores.dtype).max)
    return xp.astype(xp.where(cost > bound, bound, cost), scores.dtype)
