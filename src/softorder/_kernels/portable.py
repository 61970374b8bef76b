"""The portable engine: products with P in O(n log n) time and O(n) memory, in array operations."""

from __future__ import annotations

import math
from typing import Any

from softorder._array import Array, take_along
from softorder._kernels.dense import Dense, extended_product
from softorder._kernels.metrics import bounded_power
from softorder._kernels.operator import flip_positions
from softorder._kernels.profiles import Exponentials
from softorder._kernels.recurrence import Recurrence
from softorder._kernels.scores import FINITE, MASKED, SortedScores
from softorder._kernels.spec import KernelSpec


class Portable(Dense):
    """P whose weights are sums of exponentials, by recurrences; single rows are dense."""

    def __init__(self, spec: KernelSpec, scores: SortedScores) -> None:
        """Hold what the products are made of; nothing is computed yet."""
        super().__init__(spec.formula.rows(scores, spec.tau), scores)
        self.exponentials = _exponentials(spec)
        self.scale = spec.formula.scale(spec.tau, scores.wiring.xp)

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        v = self._in_common_dtype(v)
        v = take_along(self.wiring, v, self.order[..., None], axis=-2)
        sums = self._recurrence()
        y = extended_product(self.wiring, sums.means, sums.reached, v)
        if self.valid is not None:
            padding = self.scores.position_block == MASKED
            y = self.wiring.xp.where(padding[..., None], 0.0, y)
        y = self.wiring.xp.astype(y, v.dtype)
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def sort_scores(self, *, flip: bool = False) -> Array:
        scores, xp = self.scores, self.wiring.xp
        # The scores are in order already, and an infinite one has weight in its own block alone.
        y = xp.squeeze(self._recurrence().means(scores.sorted_items[..., None]), axis=-1)
        y = xp.astype(y, scores.dtype)
        y = xp.where(scores.position_block == FINITE, y, scores.sorted())
        return flip_positions(self, y) if flip else y

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        u = self._in_common_dtype(u)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, self.shape[-1])
        sums = self._recurrence()
        w = extended_product(self.wiring, sums.spread, sums.reached, u)
        w = self.wiring.xp.astype(w, u.dtype)
        return self.wiring.add_along_axis(w, self.order, self.shape[-1])

    def log_prob(self, permutation: Array) -> Array:
        wiring, xp, scores = self.wiring, self.wiring.xp, self.scores
        chosen = take_along(wiring, scores.items, permutation, axis=-1)
        block = take_along(wiring, scores.block, permutation, axis=-1)
        scale = self.scale
        if not isinstance(scale, float):
            scale = xp.astype(scale, scores.dtype)
        u = (scores.position_scores - chosen) / scale
        cost = bounded_power(xp, u, self.exponentials.power, scores.tie_slopes())
        log_z = xp.astype(xp.log(self._recurrence().normalizers()), scores.dtype)
        log_p = xp.where(block == scores.position_block, -cost - log_z, -math.inf)
        return xp.sum(xp.where(scores.position_block == MASKED, 0.0, log_p), axis=-1)

    def entropy(self, rows: Array | None = None) -> Array:
        if rows is not None:
            return super().entropy(rows)
        xp, sums = self.wiring.xp, self._recurrence()
        z = sums.normalizers()
        # -log P_ij = u_ij^p + log Z_i, averaged over the row.
        mean = xp.log(z) + sums.moments(int(self.exponentials.power)) / z
        mean = xp.where(self.scores.position_block == MASKED, 0.0, mean)
        return xp.astype(mean, self.scores.dtype)

    def _recurrence(self) -> Recurrence:
        return Recurrence(self.wiring, self.scores, self.scale, self.exponentials)


def _exponentials(spec: KernelSpec) -> Exponentials:
    found: Any = spec.formula.exponentials
    return found
