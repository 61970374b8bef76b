"""What a soft permutation must be able to do, in the kernels' layout."""

from __future__ import annotations

from abc import ABC, abstractmethod

from softorder._array import Array, Wiring


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
    """

    wiring: Wiring
    order: Array
    valid: Array | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores, (..., n)."""
        return tuple(self.order.shape)

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

        `flip` puts the positions in the opposite order; only where no item is masked.
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
