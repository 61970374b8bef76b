"""Rows that are softmaxes, with products in C++; see `native.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softorder._array import Array, take_along
from softorder._kernels.dense import RowSoftmax
from softorder._kernels.native import Native
from softorder._kernels.operator import Operator
from softorder._kernels.scores import MASKED, SortedScores
from softorder._kernels.tiled import Closeness, rows_of_a_tile

Formula = Callable[[SortedScores, Any], tuple[RowSoftmax, Closeness]]
"""`(scores, tau)` gives rows in array operations; tau is a number, or has shape (..., 1, 1)."""

# At most one row in so many: in array operations, but these alone, they cost less than all in C++.
FEW = 256


@dataclass(frozen=True)
class _RowsAgain:
    """Gives the rows of a formula in array operations."""

    formula: Formula
    choose: Callable[[RowSoftmax, Closeness], Operator]

    def __call__(self, scores: SortedScores, scale: Any) -> Operator:
        tau = scale if isinstance(scale, float) else scale[..., None]
        return self.choose(*self.formula(scores, tau))


class NativeRows(Native):
    """The rows of a formula: products in C++, the rest in array operations."""

    def __init__(
        self,
        scores: SortedScores,
        tau: Any,
        prefix: str,
        formula: Formula,
        choose: Callable[[RowSoftmax, Closeness], Operator],
    ) -> None:
        """Sort the scores.

        Args:
            scores: The scores.
            tau: As in `Formula`.
            prefix: What the names of its products in `native.PRODUCTS` begin with.
            formula: What the rows are.
            choose: Gives the best operator for such rows in array operations.
        """
        self._hold(scores)
        self.scale = tau if isinstance(tau, float) else tau[..., 0]
        self.tau = tau
        self.formula = formula

        # exp(-cost / tau): the scale is tau to the power of 1.
        self._start(prefix, 1.0, _RowsAgain(formula, choose))

    def log_rows(self, rows: Array | None = None) -> Array:
        return self._portable().log_rows(rows)

    def rows(self, rows: Array | None = None) -> Array:
        return self._portable().rows(rows)

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        y = None if self._are_few(rows) else self._product("apply", self._in_common_dtype(v))
        if y is None:
            return self._portable().apply(v, rows)
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        if self._are_few(rows):
            return self._portable().apply_transposed(u, rows)
        u = self._in_common_dtype(u)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, self.shape[-1])
        w = self._product("apply_transposed", u)
        return self._portable().apply_transposed(u) if w is None else w

    def log_prob(self, permutation: Array) -> Array:
        log_p = self._log_prob(permutation)
        if log_p is not None:
            return log_p
        log_z = self._log_normalizers()
        if log_z is None:
            return self._portable().log_prob(permutation)
        _, closeness = self.formula(self.scores, self.tau)
        xp, block = self.wiring.xp, self.scores.position_block
        place = take_along(self.wiring, self.scores.places, permutation, axis=-1)
        other = take_along(self.wiring, block, place, axis=-1)
        log_p = xp.where(block == other, closeness(place) - log_z, -math.inf)
        return xp.sum(xp.where(block == MASKED, 0.0, log_p), axis=-1)

    def entropy(self) -> Array:
        return self._portable().entropy()

    def _portable(self) -> Operator:
        """Return the same in array operations. Not kept: it is made of what may have a gradient."""
        return self._rebuild(self.scores, self.scale)

    def _are_few(self, rows: Array | None) -> bool:
        """Tell whether to compute these rows alone, if that takes no more memory than a tile."""
        if rows is None or self.wiring.is_open(self.shape):
            return False
        few = rows.shape[-1]
        return few * FEW <= self.shape[-1] and few <= rows_of_a_tile(self.shape)
