"""Scores in sorted order: cleaned, in blocks, with the gradient that the contract asks for."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

from softorder._array import (
    Array,
    Wiring,
    arange_like,
    as_rows,
    count_valid,
    device_of,
    take_along,
    widen,
)
from softorder._config import chosen_kernel
from softorder._extension import is_built
from softorder._kernels.cache import Cache
from softorder._kernels.ties import Ties, find_ties

# P is block diagonal: items of different blocks have weight zero for each other.
FINITE, PLUS_INFINITY, MINUS_INFINITY, MASKED = 0, 1, 2, 3


def hard_sort(wiring: Wiring, scores: Array, valid: Array | None) -> SortedScores:
    """Sort scores of shape (..., n), any floating dtype, once and for all.

    Args:
        wiring: The framework of the arrays.
        scores: The scores; half types are widened.
        valid: (..., n) which items take part; None if all do.
    """
    scores = widen(wiring.xp, scores)
    native = wiring.native if is_built() and chosen_kernel() in (None, "native") else None
    if native is None or not native.is_on_cpu(scores) or not native.can_read(scores):
        return SortedScores(wiring, scores, valid, _descending(wiring, scores, valid))
    xp, shape, flat_valid, counts = wiring.xp, tuple(scores.shape), None, None
    if valid is not None:
        flat_valid = as_rows(xp, valid, shape)
        counts = count_valid(xp, flat_valid)[..., 0]
    order, positions = native.sort(as_rows(xp, scores, shape), flat_valid)
    rows = SortedRows(positions, order, counts)
    order = order if len(shape) == 2 else xp.reshape(order, shape)
    return SortedScores(wiring, scores, valid, order, rows)


@dataclass(frozen=True, slots=True, eq=False)
class SortedRows:
    """What the native kernel is given of sorted scores: arrays without gradient.

    Attributes:
        sorted: (rows, n) sorted scores, infinities in place, 0 where masked.
        order: (rows, n) item at each position.
        counts: (rows,) number of valid items; None if all are.
    """

    sorted: Array
    order: Array
    counts: Array | None


class SortedScores:
    """Scores in the layout that every engine reads: (..., n), items last.

    It never changes. What follows from the scores is computed when it is first asked for.

    Attributes:
        wiring: The framework of the arrays.
        scores: The scores as they came, half types widened.
        valid: Which items take part; None if all do.
        order: Index of the item at each position. Stable at ties; masked items last.
        native_rows: The same as flat arrays; None if the native kernel did not sort them.
        shape: Of the scores, (..., n).
        dtype: Of the scores.
        device: Of the scores.
    """

    def __init__(
        self,
        wiring: Wiring,
        scores: Array,
        valid: Array | None,
        order: Array,
        native_rows: SortedRows | None = None,
    ) -> None:
        """Hold scores whose order is known; see the attributes."""
        self.wiring = wiring
        self.scores = scores
        self.valid = valid
        self.order = order
        self.native_rows = native_rows
        self.shape = tuple(scores.shape)
        self.dtype = scores.dtype
        self._cache = Cache(wiring)

    @property
    def device(self) -> Any:
        return device_of(self.scores)

    @property
    def item_positions(self) -> Array:
        """The position of each item, (..., n): the inverse of the order."""
        return self._cache.constant("item_positions", self._invert)

    @property
    def block(self) -> Array:
        """Which diagonal block each item belongs to (FINITE, ...)."""
        return self._cache.constant("blocks", self._find_blocks)[0]

    @property
    def position_block(self) -> Array:
        """Which diagonal block each position belongs to."""
        return self._cache.constant("blocks", self._find_blocks)[1]

    @property
    def items(self) -> Array:
        """The scores as they came, 0 where infinite or masked; each has its own gradient."""
        return self._cache.get("items", self._clean)

    @property
    def sorted_items(self) -> Array:
        """`items` in decreasing order; each has its own gradient still."""
        return self._cache.get("sorted_items", self._sort)

    @property
    def position_scores(self) -> Array:
        """The sorted scores: the values of `sorted_items`, with the gradient that sorting has.

        A position that tied scores share sends each of them the same part of its gradient.
        """
        return self._cache.get("position_scores", self._share)

    @property
    def ties(self) -> Ties | None:
        """The groups of tied finite scores; None where it can be seen that there are none."""
        return self._cache.constant("ties", self._find_ties)

    @property
    def window(self) -> slice:
        """Which positions the items stand at: all of them, or fewer in a `ScoresWindow`."""
        return slice(0, self.shape[-1])

    def by_item(self, x: Array) -> Array:
        """Return x, given by position, by item: (..., n)."""
        column = self.wiring.add_along_axis(x[..., None], self.order, self.order.shape[-1])
        return column[..., 0]

    def columns_by_item(self, x: Array) -> Array:
        """Return x (..., k, items in sorted order) with the items as they came."""
        return take_along(self.wiring, x, self.item_positions[..., None, :], axis=-1)

    def at(self, rows: Array | None) -> Array:
        """Return the sorted scores at the positions `rows`, (..., k); None means all."""
        return pick(self.wiring, self.position_scores, rows)

    def tie_slopes(self, rows: Array | None = None) -> Array | None:
        """Return `Ties.slopes` at the positions `rows`, (..., k); None if there are no ties."""
        if self.ties is None:
            return None
        return pick(self.wiring, self.ties.slopes(self.dtype), rows)

    def in_other_blocks(self, rows: Array | None) -> Array:
        """Tell which items have weight zero at the positions `rows`, (..., k, n)."""
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
        return xp.where(
            is_infinite, xp.astype(infinite, self.position_scores.dtype), self.position_scores
        )

    def _invert(self) -> Array:
        n = self.shape[-1]
        position = arange_like(self.wiring.xp, n, self.order)[:, None]
        return self.wiring.add_along_axis(position, self.order, n)[..., 0]

    def _clean(self) -> Array:
        return self.wiring.xp.where(self.block == FINITE, self._with_nan(), 0.0)

    def _sort(self) -> Array:
        return take_along(self.wiring, self.items, self.order, axis=-1)

    def _share(self) -> Array:
        x = self.sorted_items
        return x if self.ties is None else self.ties.average_gradient(x)

    def _find_ties(self) -> Ties | None:
        values = self.wiring.stop_gradient(self.sorted_items)
        return find_ties(self.wiring, values, self.position_block == FINITE)

    def _with_nan(self) -> Array:
        """Return the scores with -inf where masked, and NaN in all of a batch row that has one.

        The NaN is added, not put in place of the scores, so that the gradient goes through it too.
        """
        xp, scores = self.wiring.xp, self.scores
        if self.valid is not None:
            scores = xp.where(self.valid, scores, -math.inf)
        has_nan = xp.any(xp.isnan(scores), axis=-1, keepdims=True)
        return scores + xp.astype(xp.where(has_nan, math.nan, 0.0), scores.dtype)

    def _find_blocks(self) -> tuple[Array, Array]:
        xp = self.wiring.xp
        scores = self._with_nan()
        block = xp.astype(scores == math.inf, xp.int8) * PLUS_INFINITY
        block = block + xp.astype(scores == -math.inf, xp.int8) * MINUS_INFINITY
        if self.valid is not None:
            block = xp.where(self.valid, block, MASKED)
        return block, take_along(self.wiring, block, self.order, axis=-1)


class ScoresWindow(SortedScores):
    """The same positions over fewer items, which stand in sorted order: far ones are left out."""

    def __init__(self, whole: SortedScores, window: slice) -> None:
        """Restrict the items of sorted scores to those at the positions of a slice."""
        super().__init__(whole.wiring, whole.scores, whole.valid, whole.order)
        self._window = window
        # Computed here and not when they are asked for: a checkpoint runs what asks for them twice,
        # and must find the same the second time.
        block, sorted_items = whole.position_block, whole.sorted_items
        self._cache.preset(
            {"blocks": (block[..., window], block), "ties": whole.ties},
            items=sorted_items[..., window],
            sorted_items=sorted_items,
            position_scores=whole.position_scores,
        )

    @property
    def window(self) -> slice:
        return self._window

    def by_item(self, x: Array) -> Array:
        return x[..., self._window]

    def columns_by_item(self, x: Array) -> Array:
        return x


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
