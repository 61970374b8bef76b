"""What a soft permutation must be able to do, in the kernels' layout."""

from __future__ import annotations

from abc import ABC, abstractmethod

from softorder._array import Array, Wiring, arange_like, cast, count_valid, take_along
from softorder._kernels.scores import SortedScores


class Operator(ABC):
    """A batch of n x n matrices P: rows are positions, the largest score first; columns are items.

    Arrays that go in and out have the batch dimensions first. `rows` picks positions: None for
    all of them, or an integer array, (k,) for every batch row or (..., k) for each its own.
    Positions at or past the number of valid items are zero rows, masked items zero columns; what
    a product is given holds 0 there.

    Attributes:
        wiring: The framework of the arrays.
        order: (..., n) indices of the items in sorted order, masked ones last.
        valid: (..., n) which items take part; None if all do.
        shape: The shape of the scores, (..., n).
    """

    wiring: Wiring
    order: Array
    valid: Array | None
    shape: tuple[int, ...]

    @abstractmethod
    def sorted(self) -> Array:
        """Return the scores in the order of the positions, (..., n); 0 where masked."""

    @abstractmethod
    def log_rows(self, rows: Array | None = None) -> Array:
        """Return log P[rows], (..., k, n); -inf where P is zero."""

    @abstractmethod
    def rows(self, rows: Array | None = None) -> Array:
        """Return P[rows], (..., k, n)."""

    @abstractmethod
    def apply(self, v: Array, rows: Array | None = None) -> Array:
        """Return P[rows] v for v of shape (..., n, f); zero times infinity counts as zero."""

    def sort_scores(self, *, flip: bool = False) -> Array | None:
        """Return P s for the scores themselves, (..., n), if there is a shorter way than apply.

        `flip` puts the valid positions in the opposite order.
        """
        return None

    @abstractmethod
    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        """Return P[rows]^T u, (..., n, f), for u of shape (..., k, f)."""

    @abstractmethod
    def log_prob(self, permutation: Array) -> Array:
        """Return sum over valid positions i of log P[i, permutation_i], (...)."""

    @abstractmethod
    def entropy(self) -> Array:
        """Return the entropy of each row, (..., n); zero for a zero row."""


class ScoresOperator(Operator):
    """P that was made of sorted scores: their order is its own.

    Attributes:
        scores: The sorted scores.
    """

    def __init__(self, scores: SortedScores) -> None:
        """Hold the scores."""
        self.scores = scores
        self.wiring = scores.wiring
        self.order, self.valid, self.shape = scores.order, scores.valid, scores.shape

    def sorted(self) -> Array:
        return self.scores.sorted()

    def sort_scores(self, *, flip: bool = False) -> Array:
        s, xp = self.scores.scores, self.wiring.xp
        s = s if self.valid is None else xp.where(self.valid, s, 0.0)
        y = self.apply(s[..., None])[..., 0]
        return flip_positions(self, y) if flip else y

    def _in_common_dtype(self, v: Array) -> Array:
        dtype, xp = self.scores.dtype, self.wiring.xp
        return v if v.dtype == dtype else cast(xp, v, xp.result_type(v.dtype, dtype))


def mirror(operator: Operator, rows: Array | None = None) -> Array:
    """Return where positions (None for all) are if the valid ones are in the opposite order."""
    xp, order, valid = operator.wiring.xp, operator.order, operator.valid
    here = arange_like(xp, order.shape[-1], order) if rows is None else rows
    if valid is None:
        return order.shape[-1] - 1 - here
    count = count_valid(xp, valid)
    return xp.where(here < count, count - 1 - here, here)


def flip_positions(operator: Operator, x: Array, axis: int = -1) -> Array:
    """Return x with the valid positions along an axis (-1 or -2) in the opposite order."""
    if operator.valid is None:
        return operator.wiring.xp.flip(x, axis=axis)
    index = mirror(operator)
    return take_along(operator.wiring, x, index if axis == -1 else index[..., None], axis=axis)
