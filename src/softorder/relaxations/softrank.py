"""SoftRank: optimizing non-smooth rank metrics (Taylor, Guiver, Robertson & Minka, WSDM 2008)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from softorder._array import Array, cast
from softorder.kernels.contests import expected_ranks, rank_distribution
from softorder.kernels.dense import Explicit
from softorder.kernels.operator import Operator
from softorder.kernels.scores import SortedScores
from softorder.relaxations.base import (
    PermutationRelaxation,
    RankRelaxation,
    check_temperature,
    prepare,
    temperature_of_row,
)


@dataclass(frozen=True, eq=False)
class SoftRank(PermutationRelaxation, RankRelaxation):
    r"""Ranks of scores with Gaussian noise of variance tau: the expected rank, and all of P.

    .. math:: E[\mathrm{rank}_i] = 1 + \sum_{j \ne i} \Phi((s_j - s_i) / \sqrt{2 \tau})

    P[r, i] is the probability that item i is the r-th largest when each score has noise of its
    own. It is doubly stochastic, and exact: given an item's own noise its contests are
    independent, and its noise is integrated over by quadrature (to about 1e-12). `rank` costs
    O(n^2) time and O(n) memory; P costs O(n^3) time and O(n^2) memory.

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

    tau: float | Array = 1.0

    def __post_init__(self) -> None:
        """Check what can be checked without scores."""
        check_temperature(self.tau)

    def operator(self, scores: SortedScores) -> Operator:
        """Return the matrix for sorted scores of shape (..., n)."""
        scale = _root(scores, temperature_of_row(self.tau, scores))

        def log_matrix() -> Array:
            xp = scores.wiring.xp
            matrix = rank_distribution(scores, *_quadrature(scores.shape[-1]), scale)
            matrix = xp.astype(matrix, scores.dtype)
            return xp.where(matrix == 0, -math.inf, xp.log(xp.where(matrix == 0, 1.0, matrix)))

        return Explicit(scores, log_matrix)

    def ranks(self, scores: SortedScores) -> Array:
        """Return the expected ranks by position, within each block."""
        scale = _root(scores, 2 * temperature_of_row(self.tau, scores))
        return expected_ranks(scores, scores.wiring.normal_cdf, scale)

    def recursion(self, scores: Array, *, dim: int = -1, mask: Array | None = None) -> Array:
        """Return the paper's own approximation of P, which takes all contests as independent.

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
        scale = _root(ready, 2 * temperature_of_row(self.tau, ready))
        matrix = rank_distribution(ready, [0.0], [1.0], scale)
        return cast(ready.wiring.xp, matrix, scores.dtype)


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


def _root(scores: SortedScores, tau: Any) -> Any:
    return math.sqrt(tau) if isinstance(tau, float) else scores.wiring.xp.sqrt(tau)
