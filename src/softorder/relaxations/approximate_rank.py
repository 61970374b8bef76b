"""Approximate ranks: a general approximation framework for direct optimization of IR measures.

Qin, Liu & Li, Information Retrieval 2010.
"""

from __future__ import annotations

from dataclasses import dataclass

from softorder._array import Array
from softorder._kernels.pairwise import expected_ranks
from softorder._kernels.scores import SortedScores
from softorder.relaxations.base import RankRelaxation, WithTau, temperature_of_row


@dataclass(frozen=True, eq=False)
class ApproximateRank(WithTau, RankRelaxation):
    r"""The rank of an item is one more than the number of larger scores, softly counted.

    .. math:: \mathrm{rank}_i = 1 + \sum_{j \ne i} \sigma((s_j - s_i) / \tau)

    This gives the largest score rank 1, as `softorder.rank(..., descending=True)` does. There is
    no matrix. O(n^2) time, O(n) memory.

    Args:
        tau: The temperature, in the units of the scores: a positive number, or an array with one
            value per batch row, which receives its gradient.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.rank(np.array([2.0, 5.0, 4.0]), so.ApproximateRank(tau=0.5)).round(3)
        array([1.02 , 2.878, 2.101])
    """

    def ranks(self, scores: SortedScores) -> Array:
        """Return the ranks by position, within each block."""
        xp = scores.wiring.xp

        # The logistic function, in a form that overflows nowhere.
        def logistic(u: Array) -> Array:
            return 0.5 + 0.5 * xp.tanh(0.5 * u)

        return expected_ranks(scores, logistic, temperature_of_row(self.tau, scores))
