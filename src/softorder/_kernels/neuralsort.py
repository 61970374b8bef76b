"""The rows of NeuralSort (README.md); its products in C++ are in native/neuralsort.hpp."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from softorder._array import Array, arange_like, take_along
from softorder._kernels.profiles import LAPLACE
from softorder._kernels.scan import shift
from softorder._kernels.scores import SortedScores, pick
from softorder._kernels.spec import Formula, RowSoftmax


@dataclass(frozen=True)
class NeuralSortFormula(Formula):
    """Logits ((n + 1 - 2i) s - A_s 1) / tau."""

    native = 1
    few_rows_are_cheaper = True
    saves_sums = True
    # exp(-cost / tau), whose noise floor is that of a real exponential.
    table = LAPLACE.table

    def rows(self, scores: SortedScores, tau: Any) -> RowSoftmax:
        logits = _Logits(scores, tau)
        return RowSoftmax(logits.of_rows, logits.of_positions)


NEURALSORT = NeuralSortFormula()


class _Logits:
    """The logits for one batch of scores, less those of the items at their own positions."""

    def __init__(self, scores: SortedScores, tau: Any) -> None:
        """Hold the scores, and tau: a number, or an array of shape (..., 1, 1)."""
        self.scores = scores
        self.tau = tau
        xp = scores.wiring.xp
        x = xp.astype(scores.sorted_items, xp.float64)
        self.gaps = shift(xp, x, x[..., :1]) - x
        self.tied = _tied_distances(scores, x)

    def of_rows(self, scores: SortedScores, rows: Array | None) -> Array:
        """Return the logits of all items at the positions `rows`: as `RowSoftmax` asks for them."""
        every = arange_like(scores.wiring.xp, scores.shape[-1], self.gaps)
        here = (every if rows is None else rows)[..., :, None]
        cost = _costs_from(scores, here, every[scores.window], self.gaps[..., None, scores.window])
        if self.tied is not None:
            own = pick(scores.wiring, self.tied, rows)[..., :, None]
            cost = cost + own - self.tied[..., None, scores.window]
        return -_capped(scores, scores.columns_by_item(cost)) / self.tau

    def of_positions(self, position: Array) -> Array:
        """Return the logit of one item at each position: that which stands at `position` (..., n).

        With 0-based positions r and p, sorted scores x, and V the sums of the distances to all
        larger scores, the paper's logits differ by -2 (V_p - V_r) - (2r + 1) (x_p - x_r).
        """
        wiring, xp = self.scores.wiring, self.scores.wiring.xp
        here = xp.astype(arange_like(xp, self.gaps.shape[-1], self.gaps), xp.float64)
        above = wiring.cumulative_sum(here * self.gaps, -1)
        # What rounding took from each sum: beside a far score, it is more than a small gap.
        lost = wiring.stop_gradient(shift(xp, above) - above + here * self.gaps)
        lost = wiring.cumulative_sum(lost, -1)
        if self.tied is not None:
            above = above - 0.5 * self.tied
        x = xp.astype(self.scores.sorted_items, xp.float64)
        step, rise, rest = (take_along(wiring, a, position, axis=-1) - a for a in (x, above, lost))
        tau = self.tau if isinstance(self.tau, float) else self.tau[..., 0]
        return -_capped(self.scores, 2 * (rise + rest) + (2 * here + 1) * step) / tau


def _costs_from(scores: SortedScores, here: Array, there: Array, gaps: Array) -> Array:
    """Return how far the logit of each item is below that of the item at the position itself.

    Gap q stands between the positions q - 1 and q. From position r it counts 2 |q - r| - 1 times to
    the right and 2 |q - r| + 1 times to the left: the costs add up from r outwards, with no
    difference of large sums (_kernels/README.md).

    Args:
        scores: For the framework.
        here: (..., k, 1) the positions.
        there: (m,) the positions of the items.
        gaps: (..., 1, m) before each item.
    """
    xp, add_up = scores.wiring.xp, scores.wiring.cumulative_sum
    steps = there - here
    times = xp.astype(2 * xp.abs(steps), gaps.dtype)
    right = add_up(xp.where(steps > 0, (times - 1) * gaps, 0.0), -1)
    left = xp.flip(xp.where(steps > 0, 0.0, (times + 1) * gaps), axis=-1)
    return right + xp.flip(shift(xp, add_up(left, -1)), axis=-1)


def _tied_distances(scores: SortedScores, x: Array) -> Array | None:
    """Return an exact 0 with what the derivative of A_s 1 has too much: pairs of tied scores.

    |s_j - s_k| has no slope where the two are tied. Gaps give it the sign of one order: in all,
    (m - 1 - 2i) times the score at place i among m, less those after it, plus those before it.
    """
    ties, stop = scores.ties, scores.wiring.stop_gradient
    if ties is None or stop(x) is x:
        return None
    moved = (x - stop(x))[..., None, :]
    before, after = ties.before_and_after(moved)
    imbalance = scores.wiring.xp.astype(ties.size - 1 - 2 * ties.index, x.dtype)
    return imbalance * moved[..., 0, :] - (after - before)[..., 0, :]


def _capped(scores: SortedScores, cost: Array) -> Array:
    xp = scores.wiring.xp
    bound = 0.5 * float(xp.finfo(scores.dtype).max)
    return xp.astype(xp.where(cost > bound, bound, cost), scores.dtype)
