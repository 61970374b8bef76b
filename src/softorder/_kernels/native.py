"""The native engine: products with P in C++, float32 and float64 on the CPU.

The sums and the first derivatives are in native/. Derivatives of higher order, forward mode and
vmap are those of the same products in array operations (definitions.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softorder._array import Array, as_rows, broadcast_shapes, cast, take_along
from softorder._kernels.operator import ScoresOperator
from softorder._kernels.products import Call, Product
from softorder._kernels.scores import SortedRows, SortedScores
from softorder._kernels.spec import KernelSpec
from softorder._kernels.tiled import rows_of_a_tile

# Up to one row in this many: those rows alone, in array operations, cost less than all in C++.
FEW = 256


class Native(ScoresOperator):
    """P with its products in C++, and everything else in array operations."""

    def __init__(
        self, spec: KernelSpec, scores: SortedScores, in_arrays: Callable[[], ScoresOperator]
    ) -> None:
        """Hold what the products are made of.

        Args:
            spec: The weights; its formula has a number in C++.
            scores: The sorted scores.
            in_arrays: Gives the same operator in array operations.
        """
        super().__init__(scores)
        self.native: Any = scores.wiring.native
        self.formula = spec.formula
        self.scale = spec.formula.scale(spec.tau, scores.wiring.xp)
        self._in_arrays = in_arrays

    def log_rows(self, rows: Array | None = None) -> Array:
        return self._in_arrays().log_rows(rows)

    def rows(self, rows: Array | None = None) -> Array:
        return self._in_arrays().rows(rows)

    def entropy(self) -> Array:
        return self._in_arrays().entropy()

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        v = self._in_common_dtype(v)
        if self._are_few(rows) or not self._serves(v):
            return self._in_arrays().apply(v, rows)
        y = self._product(Call(Product.APPLY, self.formula), v)
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def sort_scores(self, *, flip: bool = False) -> Array:
        if not self._serves():
            return self._in_arrays().sort_scores(flip=flip)
        return self._product(Call(Product.APPLY, self.formula, own_scores=True, flip=flip), None)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        u = self._in_common_dtype(u)
        if self._are_few(rows) or not self._serves(u):
            return self._in_arrays().apply_transposed(u, rows)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, self.shape[-1])
        return self._product(Call(Product.APPLY_TRANSPOSED, self.formula), u)

    def log_prob(self, permutation: Array) -> Array:
        if not self._serves():
            return self._in_arrays().log_prob(permutation)
        xp, shape = self.wiring.xp, self.shape
        if permutation.ndim == 1:
            items = permutation[None, :]
        else:
            shape = (*broadcast_shapes(permutation.shape[:-1], shape[:-1]), shape[-1])
            items = as_rows(xp, permutation, shape)
        y = self._call(Call(Product.LOG_PROB, self.formula), items, shape, self.scores.dtype)
        return xp.reshape(y, shape[:-1])

    def _serves(self, values: Array | None = None) -> bool:
        """Tell whether the kernel can read these arrays, and that its derivatives suffice."""
        scores = self.scores
        if scores.native_rows is None:
            return False
        return self.native.can_read(scores.scores, values, self.scale)

    def _product(self, call: Call, values: Array | None) -> Array:
        """Return a product for values (..., n, f) of any batch that fits that of the scores."""
        shape, dtype = self.shape, self.scores.dtype
        if values is not None:
            shape = (*broadcast_shapes(values.shape[:-2], shape[:-1]), shape[-1])
            dtype = values.dtype
            if values.ndim != 3 or tuple(values.shape[:-1]) != shape:
                xp, features = self.wiring.xp, values.shape[-1]
                values = xp.broadcast_to(values, (*shape, features))
                values = xp.reshape(values, (math.prod(shape[:-1]), shape[-1], features))
        y = self._call(call, values, shape, dtype)
        return y if len(shape) == 2 else self.wiring.xp.reshape(y, (*shape, *y.shape[2:]))

    def _call(self, call: Call, values: Any, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a product of flat arrays, for scores broadcast to `shape`."""
        xp, scores = self.wiring.xp, self.scores
        rows = scores.native_rows
        if shape != scores.shape or dtype != scores.dtype:
            rows = self._broadcast_rows(shape, dtype)
        flat = as_rows(xp, cast(xp, scores.scores, dtype), shape)
        return self.native.product(call, flat, values, self._flat_scale(shape), rows)

    def _broadcast_rows(self, shape: tuple[int, ...], dtype: Any) -> SortedRows:
        xp, scores = self.wiring.xp, self.scores
        rows: Any = scores.native_rows
        positions = xp.reshape(cast(xp, rows.sorted, dtype), scores.shape)
        counts = rows.counts
        if counts is not None:
            counts = xp.reshape(counts, (*scores.shape[:-1], 1))
            counts = as_rows(xp, counts, (*shape[:-1], 1))[..., 0]
        return SortedRows(as_rows(xp, positions, shape), as_rows(xp, scores.order, shape), counts)

    def _flat_scale(self, shape: tuple[int, ...]) -> Any:
        """Return the scale: a number, or one for each batch row."""
        if isinstance(self.scale, float):
            return self.scale
        xp = self.wiring.xp
        rows = xp.reshape(xp.broadcast_to(self.scale, (*shape[:-1], 1)), (-1,))
        return cast(xp, rows, xp.float64)

    def _are_few(self, rows: Array | None) -> bool:
        """Tell whether to compute these rows alone, if that takes no more memory than a tile."""
        if rows is None or not self.formula.few_rows_are_cheaper:
            return False
        if self.wiring.sizes_may_vary(self.shape):
            return False
        few = rows.shape[-1]
        return few * FEW <= self.shape[-1] and few <= rows_of_a_tile(self.shape)
