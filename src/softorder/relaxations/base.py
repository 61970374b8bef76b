"""What a relaxation is: hyper-parameters, and one or more of three methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from softorder import _checks
from softorder._array import Array, find_wiring, move_axis, wiring_of
from softorder.kernels.operator import Operator
from softorder.kernels.scores import SortedScores
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

    A subclass writes `operator` for clean scores in one layout. Taken care of here are
    dimensions, half precision, the gradients of ties, and that no weight crosses from one block
    to another (finite, +inf, -inf, masked). What is left to a subclass: where it uses the number
    of items, the number of a position, or sums over items, these are those of the block, for the
    slots of other blocks hold 0 (see kernels/README.md).
    """

    @abstractmethod
    def operator(self, scores: SortedScores) -> Operator:
        """Return the matrix for prepared scores.

        For rows that are softmaxes, this is `RowSoftmax(scores, logits)`, where
        `logits(scores, rows)` returns (..., k, n): the positions `rows` (all n for None) by the
        items as they came.
        `scores.at(rows)` has the sorted scores (..., k) and `scores.items` the items (..., n).
        """

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
        ready = SortedScores(wiring, move_axis(xp, scores, dim, -1), mask)
        return SoftPermutation(self.operator(ready), dim=dim, scores=scores)

    def __call__(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """The same as `permutation`."""
        return self.permutation(scores, dim=dim, mask=mask)


def check_temperature(tau: Any) -> None:
    """Check what can be checked of a temperature without scores: for `__post_init__`."""
    if isinstance(tau, _checks.REAL) or find_wiring(tau) is None:
        _checks.check_positive_number(tau, "tau")


def temperature(tau: Any, scores: SortedScores) -> Any:
    """Return tau ready to divide (..., k, n): a number, or an array of shape (..., 1, 1)."""
    xp, dtype = scores.wiring.xp, scores.dtype
    smallest = float(xp.finfo(dtype).smallest_normal)
    if isinstance(tau, _checks.REAL):
        return _checks.check_positive_number(tau, "tau", smallest=smallest)
    wiring = wiring_of(scores=scores.scores, tau=tau)
    _checks.check_floating(xp, tau, "tau")
    _checks.check_temperature_shape(tau.shape, scores.shape[:-1])
    if wiring.is_concrete(tau):
        _checks.check_temperatures(xp, xp.astype(tau, dtype), smallest)
    return xp.astype(tau, dtype)[..., None, None]
