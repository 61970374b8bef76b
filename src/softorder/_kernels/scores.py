"""Scores made ready for a kernel: cleaned, sorted, with the gradient that the contract asks for."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from softorder._array import Array, Wiring, arange_like, count_valid, device_of, take_along, widen
from softorder._kernels.ties import Ties, find_ties

# P is block diagonal: items of different blocks have weight zero for each other.
FINITE, PLUS_INFINITY, MINUS_INFINITY, MASKED = 0, 1, 2, 3


class Cache:
    """What is computed once; once more if that was without the gradient that is wanted now."""

    def __init__(self, wiring: Wiring) -> None:
        """Hold nothing yet."""
        self._wiring = wiring
        self._made_in = self._trace = wiring.trace()
        self._constants: dict[str, Any] = {}
        self._values: dict[str, tuple[Any, bool]] = {}

    def renewed(self) -> Cache:
        """Return a cache that has the constants alone."""
        cache = copy.copy(self)
        cache._trace, cache._values = self._wiring.trace(), {}
        return cache

    def constant(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, which has no gradient."""
        if name not in self._constants:
            value = make()
            # What an inner program computes is unknown to the one that this was made in.
            if self._wiring.trace() != self._made_in:
                return value
            self._constants[name] = value
        return self._constants[name]

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` gives, with its gradient."""
        recording = self._wiring.is_recording()
        value, has_gradient = self._values.get(name, (None, False))
        if value is not None and (has_gradient or not recording):
            return value
        value = make()
        if self._wiring.trace() == self._trace:
            self._values[name] = value, recording
        return value


class SortedScores:
    """Scores in the layout that every kernel reads: (..., n), items last.

    What follows from the scores is computed when it is asked for, and kept: a native kernel needs
    the order alone.

    Attributes:
        wiring: The framework of the arrays.
        valid: Which items take part; None if all do.
        shape: Of the scores, (..., n).
        dtype: Of the scores, half types widened.
        device: Of the scores.
    """

    def __init__(self, wiring: Wiring, scores: Array, valid: Array | None) -> None:
        """Hold scores of shape (..., n), any floating dtype, and `valid`, (..., n) boolean."""
        self.wiring = wiring
        self.valid = valid
        self._scores = widen(wiring.xp, scores)
        self.shape = tuple(self._scores.shape)
        self.dtype = self._scores.dtype
        self.device = device_of(self._scores)
        self._cache = Cache(wiring)
        self._plain_positions: Array | None = None
        self._window: slice | None = None

    @property
    def scores(self) -> Array:
        """The scores as they came, half types widened."""
        return self._scores

    @property
    def order(self) -> Array:
        """Index of the item at each position. Stable at ties; masked items last."""
        return self._cache.constant(
            "order", lambda: _descending(self.wiring, self.scores, self.valid)
        )

    def set_order(self, order: Array, positions: Array | None) -> None:
        """Take the order from a kernel that sorts by itself, with the sorted scores as they are."""
        self._cache.constant("order", lambda: order)
        self._plain_positions = positions

    @property
    def plain_positions(self) -> Array | None:
        """The sorted scores as a sorting kernel left them: infinities in place, no gradient."""
        return self._plain_positions

    @property
    def places(self) -> Array:
        """Where each item stands among the sorted ones, (..., n)."""
        n = self.shape[-1]
        place = arange_like(self.wiring.xp, n, self.order)[:, None]
        return self.wiring.add_along_axis(place, self.order, n)[..., 0]

    @property
    def block(self) -> Array:
        """Which diagonal block each item belongs to (FINITE, ...)."""
        return self._find_blocks()[0]

    @property
    def position_block(self) -> Array:
        """Which diagonal block each position belongs to."""
        return self._find_blocks()[1]

    @property
    def items(self) -> Array:
        """The scores as they came, 0 where infinite or masked; each has its own gradient."""
        if self._window is not None:
            return self.sorted_items[..., self._window]
        return self._cache.get("items", self._clean)

    @property
    def sorted_items(self) -> Array:
        """`items` in decreasing order; each has its own gradient still."""
        return self._cache.get("sorted_items", self._sort)

    @property
    def positions(self) -> Array:
        """The sorted scores: the values of `sorted_items`, with the gradient that sorting has.

        A position that tied scores share sends each of them the same part of its gradient.
        """
        return self._cache.get("positions", self._share)

    @property
    def ties(self) -> Ties | None:
        """The groups of tied finite scores; None where it can be seen that there are none."""
        return self._cache.constant("ties", self._find_ties)

    def by_item(self, x: Array) -> Array:
        """Return x, given by position, by item: (..., n), or fewer in a window of `in_order`."""
        if self._window is not None:
            return x[..., self._window]
        column = self.wiring.add_along_axis(x[..., None], self.order, self.order.shape[-1])
        return column[..., 0]

    @property
    def window(self) -> slice:
        """Which positions the items stand at: all of them, or fewer after `in_order`."""
        return slice(0, self.shape[-1]) if self._window is None else self._window

    def columns_by_item(self, x: Array) -> Array:
        """Return x (..., k, items in sorted order) with the items as they came."""
        if self._window is not None:
            return x
        return take_along(self.wiring, x, self.places[..., None, :], axis=-1)

    def at(self, rows: Array | None) -> Array:
        """Return the sorted scores at the positions `rows`, (..., k); None means all."""
        return pick(self.wiring, self.positions, rows)

    def tie_slopes(self, rows: Array | None = None) -> Array | None:
        """Return `Ties.slopes` at the positions `rows`, (..., k); None if there are no ties."""
        if self.ties is None:
            return None
        return pick(self.wiring, self.ties.slopes(self.dtype), rows)

    def apart(self, rows: Array | None) -> Array:
        """Tell which items have weight zero at the positions `rows`, (..., k, n): other blocks."""
        here = pick(self.wiring, self.position_block, rows)[..., :, None]
        return (here != self.block[..., None, :]) | (here == MASKED)

    def spans(self) -> tuple[Array, Array]:
        """Return where the block of each position begins, and how many items it has: (..., n)."""
        xp, block = self.wiring.xp, self.position_block
        in_order = (PLUS_INFINITY, FINITE, MINUS_INFINITY, MASKED)
        begin = size = start = xp.zeros_like(self.order)
        for number in in_order:
            here = block == number
            count = count_valid(xp, here)
            begin, size = xp.where(here, start, begin), xp.where(here, count, size)
            start = start + count
        return begin, size

    def renewed(self) -> SortedScores:
        """Return the same scores in the same order, without what was computed with a gradient."""
        scores = copy.copy(self)
        scores._cache = self._cache.renewed()
        return scores

    def sorted(self) -> Array:
        """Return the scores in decreasing order, infinities included, 0 where masked."""
        xp, block = self.wiring.xp, self.position_block
        infinite = xp.where(block == PLUS_INFINITY, math.inf, -math.inf)
        is_infinite = (block == PLUS_INFINITY) | (block == MINUS_INFINITY)
        return xp.where(is_infinite, xp.astype(infinite, self.positions.dtype), self.positions)

    def in_order(self, start: int, stop: int) -> SortedScores:
        """Return the same positions over fewer items: those at the positions start to stop.

        The items of the result are in sorted order, so that a kernel can leave out far ones.
        """
        window = SortedScores(self.wiring, self._scores, self.valid)
        block = self.position_block
        window._cache.constant("order", lambda: self.order)
        window._cache.constant("blocks", lambda: (block[..., start:stop], block))
        window._cache.constant("ties", lambda: self.ties)
        window._cache.get("sorted_items", lambda: self.sorted_items)
        window._cache.get("positions", lambda: self.positions)
        window._window = slice(start, stop)
        return window

    def _clean(self) -> Array:
        return self.wiring.xp.where(self.block == FINITE, self._spoiled(), 0.0)

    def _sort(self) -> Array:
        return take_along(self.wiring, self.items, self.order, axis=-1)

    def _share(self) -> Array:
        x = self.sorted_items
        return x if self.ties is None else self.ties.average_gradient(x)

    def _find_ties(self) -> Ties | None:
        values = self.wiring.stop_gradient(self.sorted_items)
        return find_ties(self.wiring, values, self.position_block == FINITE)

    def _spoiled(self) -> Array:
        """Return the scores with -inf where masked, and NaN in all of a row that has one.

        A NaN spoils the whole batch row, infinite items included, in values and in gradients:
        added, not put in place of the scores, so that the gradient goes through it.
        """
        xp, scores = self.wiring.xp, self.scores
        if self.valid is not None:
            scores = xp.where(self.valid, scores, -math.inf)
        spoiled = xp.any(xp.isnan(scores), axis=-1, keepdims=True)
        return scores + xp.astype(xp.where(spoiled, math.nan, 0.0), scores.dtype)

    def _find_blocks(self) -> tuple[Array, Array]:
        return self._cache.constant("blocks", self._make_blocks)

    def _make_blocks(self) -> tuple[Array, Array]:
        xp = self.wiring.xp
        scores = self._spoiled()
        block = xp.astype(scores == math.inf, xp.int8) * PLUS_INFINITY
        block = block + xp.astype(scores == -math.inf, xp.int8) * MINUS_INFINITY
        if self.valid is not None:
            block = xp.where(self.valid, block, MASKED)
        return block, take_along(self.wiring, block, self.order, axis=-1)


def pick(wiring: Wiring, x: Array, rows: Array | None) -> Array:
    """Return x[..., rows], with rows None, (k,) or (..., k)."""
    if rows is None:
        return x
    return take_along(wiring, x, rows, axis=-1)


def _descending(wiring: Wiring, scores: Array, valid: Array | None) -> Array:
    xp = wiring.xp
    if valid is not None:
        scores = xp.where(valid, scores, -math.inf)
    order = xp.argsort(scores, axis=-1, descending=True, stable=True)
    if valid is None:
        return order
    # A masked item must come after a valid one of score -inf: one more stable sort.
    masked = xp.astype(~take_along(wiring, valid, order, axis=-1), xp.int8)
    return take_along(wiring, order, xp.argsort(masked, axis=-1, stable=True), axis=-1)
