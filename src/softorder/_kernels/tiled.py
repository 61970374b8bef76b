"""Rows that are softmaxes, a few at a time: any metric, exact, O(n) memory.

O(n^2) time, forward and backward. Where the weights are known to fall with distance, items whose
weight underflows are left out, and the time is n times the width of the band that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy

from softorder._array import Array, arange_like, broadcast_shapes, cast, device_of, take_along
from softorder._kernels.dense import Dense
from softorder._kernels.scores import MASKED, ScoresWindow, SortedScores, pick
from softorder._kernels.spec import RowSoftmax

# Entries of one tile: large enough that an array operation is worth its overhead.
TILE = 1 << 20
# Entries that cost as much time as the overhead of one tile.
WASTE = 1 << 16


class Tiled(Dense):
    """Rows that are softmaxes, never there all at once; single rows are dense."""

    def __init__(self, softmax: RowSoftmax, scores: SortedScores) -> None:
        """Hold what the rows are made of. The logits must serve a `ScoresWindow`."""
        super().__init__(softmax, scores)
        self.closeness = softmax.closeness
        self._reach: tuple[numpy.ndarray, numpy.ndarray] | None = None

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        if self._is_empty() or (rows is not None and rows.shape[-1] <= self._height()):
            return super().apply(v, rows)
        dtype = self.wiring.xp.result_type(v.dtype, self.scores.dtype)
        v = self._wide(take_along(self.wiring, v, self.order[..., None], axis=-2))
        y = self._concat(lambda tile, here, window: tile.apply(v[..., window, :], here), axis=-2)
        y = cast(self.wiring.xp, y, dtype)
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        if self._is_empty() or (rows is not None and rows.shape[-1] <= self._height()):
            return super().apply_transposed(u, rows)
        n = self.order.shape[-1]
        dtype = self.wiring.xp.result_type(u.dtype, self.scores.dtype)
        u = self._wide(u)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, n)
        bands = self._bands()
        w = self._sum_of_tiles(u) if bands is None else self._sum_of_bands(u, bands)
        return cast(self.wiring.xp, self.wiring.add_along_axis(w, self.order, n), dtype)

    def _sum_of_tiles(self, u: Array) -> Array:
        """Return P^T u, (..., n, f) in sorted order, from tiles of whole rows."""
        xp, n, height = self.wiring.xp, self.order.shape[-1], self._height()
        tile = self._window(slice(0, n))
        tiles = -(-n // height)
        # The last tile is as high as the others: rows past the end have no part in the sum.
        number = xp.reshape(arange_like(xp, tiles * height, self.order), (tiles, height))
        rows = xp.where(number < n, number, n - 1)

        def part(u: Array, here: Array, number: Array) -> Array:
            u = xp.where((number < n)[:, None], u, 0.0)
            return tile.apply_transposed(u, here)

        def add(w: Array, at: Array) -> Array:
            here, number = at[0, ...], at[1, ...]
            below = take_along(self.wiring, u, here[:, None], axis=-2)
            return w + self.wiring.checkpoint(part, below, here, number)

        batch = broadcast_shapes(u.shape[:-2], self.order.shape[:-1])
        nothing = xp.zeros((*batch, n, u.shape[-1]), **_like(u))
        return self.wiring.fold(add, nothing, xp.stack([rows, number], axis=1))

    def _sum_of_bands(self, u: Array, bands: list[tuple[slice, slice]]) -> Array:
        """Return the same from tiles that leave out what has no weight."""
        xp, n = self.wiring.xp, self.order.shape[-1]
        # What is before the window of a tile is finished: later windows begin and end further on.
        finished, start, rest = [], 0, None
        for band, window in bands:
            here = arange_like(xp, n, self.order)[band]
            tile = self._window(window)

            def part(u: Array, here: Array = here, tile: Dense = tile) -> Array:
                return tile.apply_transposed(u, here)

            inside = self.wiring.checkpoint(part, u[..., band, :])
            if rest is not None:
                finished.append(rest[..., : window.start - start, :])
                rest = rest[..., window.start - start :, :]
                longer = (*rest.shape[:-2], inside.shape[-2] - rest.shape[-2], rest.shape[-1])
                inside = inside + xp.concat([rest, xp.zeros(longer, **_like(rest))], axis=-2)
            rest, start = inside, window.start
        return xp.concat([*finished, rest], axis=-2)

    def log_prob(self, permutation: Array) -> Array:
        if self._is_empty():
            return super().log_prob(permutation)
        xp = self.wiring.xp
        position = take_along(self.wiring, self.scores.item_positions, permutation, axis=-1)

        def chosen(tile: Dense, here: Array, window: slice) -> Array:
            column = pick(self.wiring, position, here)[..., None]
            return take_along(self.wiring, tile.log_rows(here), column, axis=-1)[..., 0]

        # What a narrower window leaves out has a logarithm all the same: every tile is whole.
        log_p = self._concat(chosen, axis=-1, whole=True)
        masked = self.scores.position_block == MASKED
        return xp.sum(xp.where(masked, 0.0, log_p), axis=-1)

    def entropy(self, rows: Array | None = None) -> Array:
        if self._is_empty() or rows is not None:
            return super().entropy(rows)
        return self._concat(lambda tile, here, window: tile.entropy(here), axis=-1)

    def _wide(self, x: Array) -> Array:
        """Return x in float64: a sum over many items must not lose digits."""
        return cast(self.wiring.xp, x, self.wiring.xp.float64)

    def _concat(
        self,
        function: Callable[[Dense, Array, slice], Array],
        axis: int,
        *,
        whole: bool = False,
    ) -> Array:
        """Return function(tile, rows, window) of all tiles, one after the other along `axis`."""
        xp, n = self.wiring.xp, self.order.shape[-1]
        bands = None if whole else self._bands()
        if bands is None:
            every = slice(0, n)
            tile = self._window(every)
            return self.wiring.by_parts(
                lambda here: function(tile, here, every),
                arange_like(xp, n, self.order),
                self._height(),
                axis,
            )
        parts = []
        for band, window in bands:
            tile = self._window(window)

            def part(here: Array, tile: Dense = tile, window: slice = window) -> Array:
                return function(tile, here, window)

            here = arange_like(xp, n, self.order)[band]
            parts.append(self.wiring.checkpoint(part, here))
        return xp.concat(parts, axis=axis)

    def _window(self, window: slice) -> Dense:
        """Return the rows restricted to the items at these positions, in sorted order."""
        return Dense(self.softmax, ScoresWindow(self.scores, window))

    def _height(self) -> int:
        return rows_of_a_tile(tuple(self.order.shape))

    def _is_empty(self) -> bool:
        return math.prod(self.order.shape) == 0

    def _bands(self) -> list[tuple[slice, slice]] | None:
        """Return the positions of each tile, and the window of positions with weight for them.

        None where these cannot be known: tiles are then whole rows.
        """
        if self._reach is None:
            self._reach = self._find_reach()
        if self._reach is None:
            return None
        return _cut_band(*self._reach, rows=math.prod(self.order.shape[:-1]))

    def _find_reach(self) -> tuple[numpy.ndarray, numpy.ndarray] | None:
        """Return the first and the last position with weight for each position, in any batch row.

        By bisection: weights fall from the position itself to either end. None where that is not
        known, or cannot be looked at.
        """
        wiring, scores, closeness = self.wiring, self.scores, self.closeness
        xp = wiring.xp
        if closeness is None or not wiring.new_shapes_are_cheap:
            return None
        if not wiring.is_concrete(scores.scores):
            return None
        info = xp.finfo(scores.dtype)
        # exp of less than this is 0 in the dtype that the rows are computed in.
        lowest = math.log(float(info.smallest_normal) * float(info.eps)) - 1
        block, n = scores.position_block, self.order.shape[-1]

        def has_weight(position: Array) -> Array:
            other = take_along(wiring, block, position, axis=-1)
            # Written so that a NaN has weight: its row must be computed.
            far = wiring.stop_gradient(closeness(position)) < lowest
            return ~far & (block == other) & (block != MASKED)

        own = xp.broadcast_to(arange_like(xp, n, self.order), self.order.shape)
        ends = []
        for end in (0, n - 1):
            inside, outside = own, xp.full_like(own, end)
            for _ in range(n.bit_length()):
                # Rounded towards the end, which is thus looked at too.
                middle = (inside + outside + (end > 0)) // 2
                reached = has_weight(middle)
                inside = xp.where(reached, middle, inside)
                outside = xp.where(reached, outside, middle)
            if not wiring.is_concrete(inside):
                return None
            ends.append(numpy.asarray(xp.reshape(inside, (-1, n))))
        return ends[0].min(axis=0), ends[1].max(axis=0)


def rows_of_a_tile(shape: tuple[int, ...]) -> int:
    """Return how many rows a tile has, for scores of this shape."""
    return max(1, TILE // max(1, math.prod(shape)))


def _cut_band(first: numpy.ndarray, last: numpy.ndarray, rows: int) -> list[tuple[slice, slice]]:
    """Cut a band into tiles, and return the positions and the window of each.

    Args:
        first: The first position with weight for each position.
        last: The last one.
        rows: How many batch rows there are.
    """
    n = len(first)
    first = numpy.minimum.accumulate(first[::-1])[::-1].tolist()
    last = numpy.maximum.accumulate(last).tolist()
    # A square of this height lies beside the band and is computed for nothing.
    height = max(1, math.isqrt(WASTE // rows))
    tiles, start = [], 0
    while start < n:
        stop = min(start + height, n)
        while stop > start + 1 and rows * (stop - start) * (last[stop - 1] - first[start]) > TILE:
            stop = (start + stop) // 2
        tiles.append((slice(start, stop), slice(first[start], last[stop - 1] + 1)))
        start = stop
    return tiles


def _like(x: Array) -> dict[str, object]:
    return {"dtype": x.dtype, "device": device_of(x)}
