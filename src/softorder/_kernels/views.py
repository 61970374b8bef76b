"""Operators made of an order, or of another operator: exact, straight-through, reversed."""

from __future__ import annotations

import math
from typing import Any

from softorder._array import Array, arange_like, device_of, take_along
from softorder._kernels.dense import multiply
from softorder._kernels.operator import Operator, flip_positions, mirror
from softorder._kernels.scores import pick


class View(Operator):
    """Another operator, seen differently: the same items in the same order."""

    def __init__(self, inner: Operator) -> None:
        self.wiring, self.valid, self.shape = inner.wiring, inner.valid, inner.shape
        self.inner = inner

    @property
    def order(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.order

    def sorted(self) -> Array:
        return self.inner.sorted()


class Hard(View):
    """The exact permutation that sorts as another operator does: a single one in each row."""

    def __init__(self, soft: Operator, dtype: Any) -> None:
        super().__init__(soft)
        self.dtype = dtype

    def rows(self, rows: Array | None = None) -> Array:
        xp = self.wiring.xp
        column = pick(self.wiring, self.order, rows)[..., :, None]
        one = column == arange_like(xp, self.order.shape[-1], self.order)
        if self.valid is not None:
            one = one & self.valid[..., None, :]
        return xp.astype(one, self.dtype)

    def log_rows(self, rows: Array | None = None) -> Array:
        one = self.rows(rows)
        return self.wiring.xp.where(one == 1, one - 1, -math.inf)

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        y = take_along(self.wiring, v, self.order[..., None], axis=-2)
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        xp = self.wiring.xp
        if rows is not None:
            return multiply(self.wiring, xp.matrix_transpose(self.rows(rows)), u)
        position = xp.argsort(self.order, axis=-1)
        return take_along(self.wiring, u, position[..., None], axis=-2)

    def log_prob(self, permutation: Array) -> Array:
        xp = self.wiring.xp
        agrees = xp.astype(permutation == self.order, self.dtype)
        log_p = xp.where(agrees == 1, agrees - 1, -math.inf)
        if self.valid is not None:
            log_p = xp.where(take_along(self.wiring, self.valid, self.order, axis=-1), log_p, 0.0)
        return xp.sum(log_p, axis=-1)

    def entropy(self) -> Array:
        return self.wiring.xp.zeros(
            self.order.shape, dtype=self.dtype, device=device_of(self.order)
        )


class StraightThrough(View):
    """A matrix with the values of one operator and the derivatives of another.

    For every output, y = hard + (soft - stop_gradient(soft)). In products with v the soft part
    sees v as a constant: what is replaced is the matrix, so that d(P v) = dP_soft v + P_hard dv,
    just as for the dense matrix.
    """

    def __init__(self, hard: Operator, soft: Operator) -> None:
        super().__init__(soft)
        self.hard, self.soft = hard, soft

    def _graft(self, value: Array, slope: Array) -> Array:
        xp = self.wiring.xp
        slope = xp.where(xp.isinf(slope), 0.0, slope)
        return value + (slope - self.wiring.stop_gradient(slope))

    def rows(self, rows: Array | None = None) -> Array:
        return self._graft(self.hard.rows(rows), self.soft.rows(rows))

    def log_rows(self, rows: Array | None = None) -> Array:
        return self._graft(self.hard.log_rows(rows), self.soft.log_rows(rows))

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        fixed = self.wiring.stop_gradient(v)
        return self._graft(self.hard.apply(v, rows), self.soft.apply(fixed, rows))

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        fixed = self.wiring.stop_gradient(u)
        soft = self.soft.apply_transposed(fixed, rows)
        return self._graft(self.hard.apply_transposed(u, rows), soft)

    def log_prob(self, permutation: Array) -> Array:
        return self._graft(self.hard.log_prob(permutation), self.soft.log_prob(permutation))

    def entropy(self) -> Array:
        return self._graft(self.hard.entropy(), self.soft.entropy())


class Flipped(View):
    """Another operator with its valid positions in the opposite order; padding stays last."""

    @property
    def order(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return pick(self.wiring, self.inner.order, self.mirror())

    def sorted(self) -> Array:
        return pick(self.wiring, self.inner.sorted(), self.mirror())

    def mirror(self, rows: Array | None = None) -> Array:
        """Map a position here to the position there, and back."""
        return mirror(self.inner, rows)

    def rows(self, rows: Array | None = None) -> Array:
        return self.inner.rows(self.mirror(rows))

    def log_rows(self, rows: Array | None = None) -> Array:
        return self.inner.log_rows(self.mirror(rows))

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        if rows is None:
            return flip_positions(self.inner, self.inner.apply(v), axis=-2)
        return self.inner.apply(v, self.mirror(rows))

    def sort_scores(self, *, flip: bool = False) -> Array | None:
        return self.inner.sort_scores(flip=not flip)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        if rows is None:
            return self.inner.apply_transposed(flip_positions(self.inner, u, axis=-2))
        return self.inner.apply_transposed(u, self.mirror(rows))

    def log_prob(self, permutation: Array) -> Array:
        return self.inner.log_prob(pick(self.wiring, permutation, self.mirror()))

    def entropy(self) -> Array:
        return pick(self.wiring, self.inner.entropy(), self.mirror())
