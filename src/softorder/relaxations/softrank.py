"""SoftRank: optimizing non-smooth rank metrics (Taylor, Guiver, Robertson & Minka, WSDM 2008)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from softorder._array import Array, arange_like, broadcast_shapes, cast, take_along
from softorder._kernels.cache import Cache
from softorder._kernels.dense import RowOperator, pick_rows
from softorder._kernels.operator import ScoresOperator
from softorder._kernels.pairwise import expected_ranks, rank_distribution
from softorder._kernels.rank_tails import log_rank_probability
from softorder._kernels.scores import MASKED, SortedScores, pick
from softorder._kernels.spec import Explicit
from softorder.relaxations.base import (
    PermutationRelaxation,
    RankRelaxation,
    WithTau,
    prepare,
    temperature_of_row,
)


@dataclass(frozen=True, eq=False)
class SoftRank(WithTau, PermutationRelaxation, RankRelaxation):
    r"""Ranks of scores with Gaussian noise of variance tau: the expected rank, and all of P.

    .. math:: E[\mathrm{rank}_i] = 1 + \sum_{j \ne i} \Phi((s_j - s_i) / \sqrt{2 \tau})

    P[r, i] is the probability that item i is the r-th largest when each score has noise of its
    own. It is doubly stochastic, and exact: given an item's own noise its comparisons are
    independent, and its noise is integrated over by quadrature (to about 1e-12). `log_prob` and
    `log_matrix` are right however small a probability is. `rank` costs O(n^2) time and O(n)
    memory, P and `log_prob` about O(n^3) time, `log_matrix` O(n^4).

    Args:
        tau: The variance of the noise, in squared units of the scores: a positive number, or an
            array with one value per batch row, which receives its gradient.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.rank(np.array([2.0, 5.0, 4.0]), so.SoftRank(tau=1.0)).round(3)
        array([1.096, 2.743, 2.161])
        >>> so.SoftRank(tau=1.0)(np.array([1.0, 1.0, 1.0])).matrix().round(3)
        array([[0.333, 0.333, 0.333],
               [0.333, 0.333, 0.333],
               [0.333, 0.333, 0.333]])
    """

    def weights(self, scores: SortedScores) -> Explicit:
        """Return the distribution of the ranks."""
        scale = temperature_of_row(self.tau, scores) ** 0.5
        return Explicit(lambda scores: _RankDistribution(scores, scale))

    def ranks(self, scores: SortedScores) -> Array:
        """Return the expected ranks by position, within each block."""
        scale = (2 * temperature_of_row(self.tau, scores)) ** 0.5
        return expected_ranks(scores, scores.wiring.normal_cdf, scale)

    def recursion(self, scores: Array, *, dim: int = -1, mask: Array | None = None) -> Array:
        """Return the paper's own approximation of P, which takes all comparisons as independent.

        Its columns sum to 1, its rows do not: of three equal items, each has the ranks 1, 2, 3 with
        the probabilities 1/4, 1/2, 1/4. O(n^3) time.

        Args:
            scores: Any shape with at least one dimension; a floating dtype.
            dim: The dimension that holds the items.
            mask: True where an item takes part.

        Returns:
            (..., n, n): positions and items are the last two dimensions, as in `P.matrix()`.
        """
        ready, _ = prepare(scores, "scores", dim, mask)
        scale = (2 * temperature_of_row(self.tau, ready)) ** 0.5
        matrix = rank_distribution(ready, [0.0], [1.0], scale)
        return cast(ready.wiring.xp, matrix, scores.dtype)


class _RankDistribution(ScoresOperator, RowOperator):
    """P[r, i] is the probability that item i is the r-th largest; log P has a way of its own."""

    def __init__(self, scores: SortedScores, scale: Any) -> None:
        super().__init__(scores)
        self.scale = scale
        self._cache = Cache(scores.wiring)

    def rows(self, rows: Array | None = None) -> Array:
        return pick_rows(self.wiring, self._cache.get("matrix", self._make), rows)

    def _make(self) -> Array:
        matrix = rank_distribution(self.scores, *_quadrature(self.shape[-1]), self.scale)
        return self.wiring.xp.astype(matrix, self.scores.dtype)

    def log_rows(self, rows: Array | None = None) -> Array:
        xp, n = self.wiring.xp, self.shape[-1]
        positions: Array = arange_like(xp, n, self.order) if rows is None else rows
        batch = broadcast_shapes(self.shape[:-1], positions.shape[:-1])
        position = xp.broadcast_to(positions[..., :, None], (*batch, positions.shape[-1], n))
        item = xp.broadcast_to(self.scores.item_positions[..., None, :], position.shape)
        flat = (*batch, positions.shape[-1] * n)
        log_p = self._log_probability(xp.reshape(position, flat), xp.reshape(item, flat))
        return xp.reshape(log_p, position.shape)

    def log_entries(self, permutation: Array) -> Array:
        position = arange_like(self.wiring.xp, self.shape[-1], self.order)
        item = take_along(self.wiring, self.scores.item_positions, permutation, axis=-1)
        return self._log_probability(self.wiring.xp.broadcast_to(position, item.shape), item)

    def entropy(self, rows: Array | None = None) -> Array:
        p, xp = self.rows(rows), self.wiring.xp
        return 0.0 - xp.sum(p * xp.log(xp.where(p == 0, 1.0, p)), axis=-1)

    def _log_probability(self, position: Array, item: Array) -> Array:
        """Return log P at positions and items, which are given by their sorted positions."""
        wiring, xp, scores = self.wiring, self.wiring.xp, self.scores
        begin, size = (pick(wiring, x, item) for x in scores.spans())
        losses = position - begin
        inside = (losses >= 0) & (losses < size)
        inside = inside & (pick(wiring, scores.position_block, item) != MASKED)
        log_p = log_rank_probability(scores, item, xp.where(inside, losses, 0), self.scale)
        # The rounding of a certainty may be on the wrong side of 0.
        log_p = xp.where(log_p > 0, 0.0, log_p)
        return xp.astype(xp.where(inside, log_p, -math.inf), scores.dtype)


def _quadrature(n: int) -> tuple[list[float], list[float]]:
    """Return nodes and weights for the average over a standard normal variable.

    The trapezoidal rule converges geometrically for what falls like a Gaussian at both ends. Of n
    items that are tied, the number that beat a given one varies by about sqrt(n): its distribution
    moves on within 1 / sqrt(n), and the step must be finer than that.
    """
    step, reach = min(0.4, 0.65 / math.sqrt(max(n, 1))), 8.25
    count = math.ceil(reach / step)
    nodes = [step * k for k in range(-count, count + 1)]
    heights = [math.exp(-0.5 * z * z) for z in nodes]
    return nodes, [height / math.fsum(heights) for height in heights]
