"""Scores made ready for a kernel: cleaned, sorted, with the gradient that the contract asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from softorder._array import Array, Wiring, take_along, widen

# P is block diagonal: items of different blocks have weight zero for each other.
FINITE, PLUS_INFINITY, MINUS_INFINITY, MASKED = 0, 1, 2, 3


@dataclass(frozen=True, eq=False)
class SortedScores:
    """Scores in the layout that every kernel reads: (..., n), items last.

    Attributes:
        wiring: The framework of the arrays.
        items: The scores as they came; half types widened, 0 where infinite or masked.
        positions: `items` in decreasing order.
        order: Index of the item at each position. Stable at ties; masked items last.
        block: Which diagonal block each item belongs to (FINITE, ...).
        position_block: The same for each position.
        valid: Which items take part; None if all do.
    """

    wiring: Wiring
    items: Array
    positions: Array
    order: Array
    block: Array
    position_block: Array
    valid: Array | None

    def at(self, rows: Array | None) -> Array:
        """Return the sorted scores at the positions `rows`, (..., k); None means all."""
        return pick(self.wiring, self.positions, rows)

    def apart(self, rows: Array | None) -> Array:
        """Tell which items have weight zero at the positions `rows`, (..., k, n): other blocks."""
        here = pick(self.wiring, self.position_block, rows)[..., :, None]
        return (here != self.block[..., None, :]) | (here == MASKED)

    def sorted(self) -> Array:
        """Return the scores in decreasing order, infinities included, 0 where masked."""
        xp = self.wiring.xp
        infinite = xp.where(self.position_block == PLUS_INFINITY, math.inf, -math.inf)
        is_infinite = (self.position_block == PLUS_INFINITY) | (
            self.position_block == MINUS_INFINITY
        )
        return xp.where(is_infinite, xp.astype(infinite, self.positions.dtype), self.positions)


def pick(wiring: Wiring, x: Array, rows: Array | None) -> Array:
    """Return x[..., rows], with rows None, (k,) or (..., k)."""
    if rows is None:
        return x
    return take_along(wiring, x, rows, axis=-1)


def sort_scores(wiring: Wiring, scores: Array, valid: Array | None) -> SortedScores:
    """Clean and sort scores of shape (..., n); see the contract for what is promised.

    Args:
        wiring: The framework of the arrays.
        scores: (..., n), any floating dtype.
        valid: (..., n) boolean, or None.
    """
    xp = wiring.xp
    scores = widen(xp, scores)
    if valid is not None:
        scores = xp.where(valid, scores, -math.inf)
    order = _descending(wiring, scores, valid)
    # A NaN spoils the whole batch row, infinite items included, in values and in gradients:
    # added, not put in place of the scores, so that the gradient goes through it.
    spoiled = xp.any(xp.isnan(scores), axis=-1, keepdims=True)
    scores = scores + xp.astype(xp.where(spoiled, math.nan, 0.0), scores.dtype)

    block = xp.astype(scores == math.inf, xp.int8) * PLUS_INFINITY
    block = block + xp.astype(scores == -math.inf, xp.int8) * MINUS_INFINITY
    if valid is not None:
        block = xp.where(valid, block, MASKED)
    position_block = take_along(wiring, block, order, axis=-1)

    finite = xp.where(block == FINITE, scores, 0.0)
    positions = take_along(wiring, finite, order, axis=-1)
    positions = wiring.average_gradient(positions, _begins_run(xp, positions, position_block))
    # Items are taken from the positions, so that both carry the averaged gradient.
    items = take_along(wiring, positions, xp.argsort(order, axis=-1), axis=-1)
    return SortedScores(wiring, items, positions, order, block, position_block, valid)


def _descending(wiring: Wiring, scores: Array, valid: Array | None) -> Array:
    xp = wiring.xp
    order = xp.argsort(scores, axis=-1, descending=True, stable=True)
    if valid is None:
        return order
    # A masked item must come after a valid one of score -inf: one more stable sort.
    masked = xp.astype(~take_along(wiring, valid, order, axis=-1), xp.int8)
    return take_along(wiring, order, xp.argsort(masked, axis=-1, stable=True), axis=-1)


def _begins_run(xp: Any, positions: Array, block: Array) -> Array:
    """Mark where a run of equal sorted scores begins; the first mark means nothing."""
    return (positions != xp.roll(positions, 1, axis=-1)) | (block != xp.roll(block, 1, axis=-1))
