"""Rows that are softmaxes, a few at a time: any metric, exact, O(n) memory.

O(n^2) time, forward and backward. Where the weights are known to fall with distance, items whose
weight underflows are left out, and the time is n times the width of the band that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from softorder._array import Array, arange_like, cast, take_along
from softorder.kernels.dense import RowSoftmax
from softorder.kernels.operator import Operator
from softorder.kernels.scores import MASKED, SortedScores, pick

# Entries of one tile: large enough that an array operation is worth its overhead.
TILE = 1 << 20


class Tiled(Operator):
    """A `RowSoftmax` whose rows are never there all at once."""

    def __init__(
        self, dense: RowSoftmax, radius: Callable[[SortedScores], float | None] | None = None
    ) -> None:
        """Wrap the operator that is cut into tiles.

        Args:
            dense: The operator. Its logits must serve `SortedScores.in_order`.
            radius: How far apart two scores have weight zero, for a metric that grows with
                distance; None where that cannot be known.
        """
        self.wiring = dense.wiring
        self.valid = dense.valid
        self.dense = dense
        self.radius = radius

    @property
    def order(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.dense.order

    def sorted(self) -> Array:
        return self.dense.sorted()

    def log_rows(self, rows: Array | None = None) -> Array:
        return self.dense.log_rows(rows)

    def rows(self, rows: Array | None = None) -> Array:
        return self.dense.rows(rows)

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        if self._is_empty() or (rows is not None and rows.shape[-1] <= self._height()):
            return self.dense.apply(v, rows)
        dtype = self.wiring.xp.result_type(v.dtype, self.dense.scores.dtype)
        v = self._wide(take_along(self.wiring, v, self.order[..., None], axis=-2))
        y = self._concat(lambda tile, here, window: tile.apply(v[..., window, :], here), axis=-2)
        y = cast(self.wiring.xp, y, dtype)
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        if self._is_empty() or (rows is not None and rows.shape[-1] <= self._height()):
            return self.dense.apply_transposed(u, rows)
        n = self.order.shape[-1]
        dtype = self.wiring.xp.result_type(u.dtype, self.dense.scores.dtype)
        u = self._wide(u)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, n)
        xp, w = self.wiring.xp, None
        for block, window in self._tiles():
            here = arange_like(xp, n, self.order)[block]
            tile = self._window(window)

            def part(u: Array, here: Array = here, tile: RowSoftmax = tile) -> Array:
                return tile.apply_transposed(u, here)

            inside = self.wiring.checkpoint(part, u[..., block, :])
            before = xp.zeros((*inside.shape[:-2], window.start, inside.shape[-1]), **_like(inside))
            after = xp.zeros(
                (*inside.shape[:-2], n - window.stop, inside.shape[-1]), **_like(inside)
            )
            padded = xp.concat([before, inside, after], axis=-2)
            w = padded if w is None else w + padded
        return cast(xp, self.wiring.add_along_axis(w, self.order, n), dtype)

    def log_prob(self, permutation: Array) -> Array:
        if self._is_empty():
            return self.dense.log_prob(permutation)
        # Where the chosen item stands among the sorted ones.
        place = take_along(self.wiring, self._inverse_order(), permutation, axis=-1)
        xp = self.wiring.xp

        def chosen(tile: RowSoftmax, here: Array, window: slice) -> Array:
            column = pick(self.wiring, place, here)[..., None]
            return take_along(self.wiring, tile.log_rows(here), column, axis=-1)[..., 0]

        # What a narrower window leaves out has a logarithm all the same: every tile is whole.
        log_p = self._concat(chosen, axis=-1, whole=True)
        return xp.sum(xp.where(self.dense.scores.position_block == MASKED, 0.0, log_p), axis=-1)

    def entropy(self) -> Array:
        if self._is_empty():
            return self.dense.entropy()
        return self._concat(lambda tile, here, window: tile.entropy(here), axis=-1)

    def _wide(self, x: Array) -> Array:
        """Return x in float64: a sum over many items must not lose digits."""
        return cast(self.wiring.xp, x, self.wiring.xp.float64)

    def _inverse_order(self) -> Array:
        xp, n = self.wiring.xp, self.order.shape[-1]
        place = arange_like(xp, n, self.order)[:, None]
        return self.wiring.add_along_axis(place, self.order, n)[..., 0]

    def _concat(
        self,
        function: Callable[[RowSoftmax, Array, slice], Array],
        axis: int,
        *,
        whole: bool = False,
    ) -> Array:
        """Return function(tile, rows, window) of all tiles, one after the other along `axis`."""
        xp, n = self.wiring.xp, self.order.shape[-1]
        parts = []
        for block, window in self._tiles(whole):
            tile = self._window(window)

            def part(here: Array, tile: RowSoftmax = tile, window: slice = window) -> Array:
                return function(tile, here, window)

            here = arange_like(xp, n, self.order)[block]
            parts.append(self.wiring.checkpoint(part, here))
        return xp.concat(parts, axis=axis)

    def _window(self, window: slice) -> RowSoftmax:
        """Return the rows restricted to the items at these positions, in sorted order."""
        scores = self.dense.scores.in_order(window.start, window.stop)
        return RowSoftmax(scores, self.dense.logits)

    def _height(self) -> int:
        """Return how many rows a tile has."""
        return max(1, TILE // max(1, math.prod(self.order.shape)))

    def _is_empty(self) -> bool:
        return math.prod(self.order.shape) == 0

    def _tiles(self, whole: bool = False) -> list[tuple[slice, slice]]:
        """Return the positions of each tile, and the window of positions with weight for them."""
        n, height = self.order.shape[-1], self._height()
        blocks = [slice(start, min(start + height, n)) for start in range(0, n, height)]
        radius = None if whole or self.radius is None else self.radius(self.dense.scores)
        if radius is None:
            return [(block, slice(0, n)) for block in blocks]
        return [(block, self._reach(block, radius)) for block in blocks]

    def _reach(self, block: slice, radius: float) -> slice:
        """Return the window of positions that any batch row has within `radius` of the block.

        Positions of an infinite or masked item hold 0, which is in no order: where there are any,
        the window is everything.
        """
        xp, scores = self.wiring.xp, self.dense.scores
        n = self.order.shape[-1]
        if not bool(xp.all(scores.position_block == 0)):
            return slice(0, n)
        x = self.wiring.stop_gradient(scores.positions)
        near = (x <= x[..., block.start : block.start + 1] + radius) & (
            x >= x[..., block.stop - 1 : block.stop] - radius
        )
        near = xp.reshape(near, (-1, n))
        inside = xp.any(near, axis=0)
        places = arange_like(xp, n, x)[inside]
        # A NaN is near nothing; its row must still be computed.
        if not bool(xp.all(xp.any(near, axis=-1))):
            return slice(0, n)
        return slice(int(places[0]), int(places[-1]) + 1)


def _like(x: Array) -> dict[str, object]:
    return {"dtype": x.dtype, "device": x.device}
