"""The transpose of a soft permutation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softorder._array import Array
from softorder._permutation.matrix_like import MatrixLike
from softorder._permutation.row_index import row_index

if TYPE_CHECKING:
    from softorder._permutation.soft_permutation import SoftPermutation


class TransposedPermutation(MatrixLike):
    """The transpose of a soft permutation, as an operator; `P.T` makes it."""

    def __init__(self, permutation: SoftPermutation) -> None:
        """Wrap the permutation that is transposed."""
        self._permutation = permutation

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix: (..., n, n)."""
        return self._permutation.shape

    @property
    def T(self) -> SoftPermutation:
        """The permutation itself."""
        return self._permutation

    def apply(self, u: Array, dim: int = -1, *, rows: Any = None) -> Array:
        """Spread u, given by position along `dim`, over the items; as `SoftPermutation.apply`.

        Args:
            u: Values; along `dim` one for each position.
            dim: The dimension of u to spread.
            rows: The positions that u is given at, as in `SoftPermutation.rows`; zero at all
                others. Default: all positions.

        Returns:
            u with `dim` replaced by the items.
        """
        P = self._permutation
        index = row_index(P._operator, rows)
        return P._permute(
            u,
            dim,
            P.shape[-1] if index is None else index.shape[-1],
            lambda v: P._clear_padding(v, index),
            lambda u: P._fresh_operator().apply_transposed(u, index),
        )

    def matrix(self) -> Array:
        """Build the dense matrix, (..., n, n): items and positions are the last two dimensions."""
        P = self._permutation
        return P._operator.wiring.xp.matrix_transpose(P.matrix())

    def __repr__(self) -> str:
        return f"{self._permutation!r}.T"

    def _matmul(self, v: Array) -> Array:
        P = self._permutation
        return P._multiply(v, P._clear_padding, lambda u: P._fresh_operator().apply_transposed(u))
