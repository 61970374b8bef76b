"""What a relaxation is: hyper-parameters, and one or more of three methods."""

from __future__ import annotations

from abc import ABC, abstractmethod

from softorder import _checks
from softorder._array import Array, move_axis, wiring_of
from softorder.kernels.operator import Operator
from softorder.kernels.scores import SortedScores, sort_scores
from softorder.permutation import SoftPermutation


class Relaxation:
    """A way to soften an order. It holds hyper-parameters, and offers at least one of these.

    - `permutation(scores, *, dim, mask)` gives a `SoftPermutation`, and serves every operation;
    - `rank(scores, *, dim, descending, mask)` serves `softorder.rank`;
    - `sort(values, *, dim, descending, mask)` serves `softorder.sort` without `by`.

    An operation calls the last two where they exist, and the first otherwise.
    """


class PermutationRelaxation(Relaxation, ABC):
    """A relaxation with a matrix: scores in, `SoftPermutation` out.

    A subclass writes `operator` for clean, sorted scores in one layout; dimensions, masks,
    infinities, NaN, ties and half precision are taken care of here.
    """

    @abstractmethod
    def operator(self, scores: SortedScores) -> Operator:
        """Return the matrix for sorted scores of shape (..., n)."""

    def permutation(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """Relax the permutation that sorts the scores in decreasing order.

        Args:
            scores: Any shape with at least one dimension; a floating dtype.
            dim: The dimension that holds the items.
            mask: True where an item takes part; broadcasts to the shape of the scores.

        Returns:
            A lazy matrix of shape (..., n, n); nothing of that size is computed here.
        """
        wiring = wiring_of(scores=scores, mask=mask)
        xp = wiring.xp
        _checks.check_floating(xp, scores, "scores")
        _checks.check_has_dimension(scores, "scores")
        dim = _checks.check_dim(dim, scores.ndim)
        if mask is not None:
            _checks.check_mask(xp, mask, scores.shape)
            mask = move_axis(xp, xp.broadcast_to(mask, scores.shape), dim, -1)
        ready = sort_scores(wiring, move_axis(xp, scores, dim, -1), mask)
        return SoftPermutation(self.operator(ready), ready.sorted(), dim=dim, dtype=scores.dtype)

    def __call__(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """The same as `permutation`."""
        return self.permutation(scores, dim=dim, mask=mask)
