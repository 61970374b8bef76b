"""Products with P in O(n log n) time and O(n) memory, in array operations: the portable kernel.

Where d(a, b) / tau = u^p with u = |a - b| / scale, and exp(-u^p) is a sum of exponentials, a sum
over all items is a pair of first-order recurrences along the sorted scores (see README.md).
Everything here is made of one recurrence, whose derivatives are recurrences of the same kind.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from softorder._array import (
    Array,
    Wiring,
    broadcast_shapes,
    cast,
    device_of,
    move_axis,
    take_along,
)
from softorder._kernels.dense import OfScores, RowSoftmax, bounded_power, extended_product
from softorder._kernels.profiles import Exponentials
from softorder._kernels.scores import FINITE, MASKED, SortedScores
from softorder._kernels.ties import Ties


class Scan(OfScores):
    """P whose weights are exp(-u^p), by recurrences."""

    def __init__(
        self, scores: SortedScores, scale: Any, kernel: Exponentials, dense: RowSoftmax
    ) -> None:
        """Hold what the products are made of; nothing is computed yet.

        Args:
            scores: The sorted scores.
            scale: tau^(1/p): a number, or an array that broadcasts against (..., n).
            kernel: exp(-u^p) as a sum of exponentials.
            dense: The same operator by rows, for what is asked for by rows.
        """
        self._hold(scores)
        self.scale = scale
        self.kernel = kernel
        self.dense = dense

    def log_rows(self, rows: Array | None = None) -> Array:
        return self.dense.log_rows(rows)

    def rows(self, rows: Array | None = None) -> Array:
        return self.dense.rows(rows)

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        y = self._mean(self._in_common_dtype(v))
        return y if rows is None else take_along(self.wiring, y, rows[..., None], axis=-2)

    def sort_scores(self, *, flip: bool = False) -> Array | None:
        scores, xp = self.scores, self.wiring.xp
        sums = Recurrence(self.wiring, scores, self.scale, self.kernel)
        # The scores are in order already, and an infinite one has weight in its own block alone.
        y = xp.squeeze(sums.means(scores.sorted_items[..., None]), axis=-1)
        y = xp.astype(y, scores.dtype)
        y = xp.where(scores.position_block == FINITE, y, scores.sorted())
        return xp.flip(y, axis=-1) if flip else y

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        u = self._in_common_dtype(u)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, self.order.shape[-1])
        return self._spread(u)

    def log_prob(self, permutation: Array) -> Array:
        wiring, xp, scores = self.wiring, self.wiring.xp, self.scores
        chosen = take_along(wiring, scores.items, permutation, axis=-1)
        block = take_along(wiring, scores.block, permutation, axis=-1)
        u = (scores.positions - chosen) / self._scale_like(scores.positions)
        log_p = -bounded_power(xp, u, self.kernel.power, scores.tie_slopes()) - self._log_z()
        log_p = xp.where(block == scores.position_block, log_p, -math.inf)
        return xp.sum(xp.where(scores.position_block == MASKED, 0.0, log_p), axis=-1)

    def entropy(self) -> Array:
        xp = self.wiring.xp
        sums = Recurrence(self.wiring, self.scores, self.scale, self.kernel)
        z = sums.normalizers()
        # -log P_ij = u_ij^p + log Z_i, averaged over the row.
        mean = xp.log(z) + sums.moments(int(self.kernel.power)) / z
        mean = xp.where(self.scores.position_block == MASKED, 0.0, mean)
        return xp.astype(mean, self.scores.dtype)

    def _mean(self, v: Array) -> Array:
        """Return P v by position, for v (..., n, f) by item."""
        sums = Recurrence(self.wiring, self.scores, self.scale, self.kernel)
        v = take_along(self.wiring, v, self.order[..., None], axis=-2)
        y = extended_product(self.wiring, sums.means, sums.reached, v)
        if self.valid is not None:
            padding = self.scores.position_block == MASKED
            y = self.wiring.xp.where(padding[..., None], 0.0, y)
        return self.wiring.xp.astype(y, v.dtype)

    def _spread(self, u: Array) -> Array:
        """Return P^T u by item, for u (..., n, f) by position."""
        sums = Recurrence(self.wiring, self.scores, self.scale, self.kernel)
        w = extended_product(self.wiring, sums.spread, sums.reached, u)
        w = self.wiring.xp.astype(w, u.dtype)
        return self.wiring.add_along_axis(w, self.order, self.order.shape[-1])

    def _log_z(self) -> Array:
        """Return log Z by position, where Z_i = sum_j exp(-u_ij^p)."""
        sums = Recurrence(self.wiring, self.scores, self.scale, self.kernel)
        return self.wiring.xp.astype(self.wiring.xp.log(sums.normalizers()), self.scores.dtype)

    def _scale_like(self, x: Array) -> Any:
        if isinstance(self.scale, float):
            return self.scale
        return self.wiring.xp.astype(self.scale, x.dtype)


class Recurrence:
    """Sums over all items at every position: K w for K_ij = exp(-u_ij^p), in float64.

    In float64 whatever the dtype of the scores: a million terms must not lose digits, and the
    complex ones cancel.
    """

    def __init__(
        self,
        wiring: Wiring,
        scores: SortedScores,
        scale: Any,
        kernel: Exponentials,
        *,
        transposed: bool = False,
    ) -> None:
        """Compute the gaps between neighbouring positions, and the gates that they make.

        Args:
            wiring: The framework of the arrays.
            scores: The sorted scores.
            scale: As in `Scan`.
            kernel: exp(-u^p) as a sum of exponentials.
            transposed: Sum over positions at every item, for K^T w: it has the same values, and at
                ties other derivatives.
        """
        self.wiring = wiring
        self.kernel = kernel
        self.is_transposed = transposed
        self._arguments = wiring, scores, scale, kernel
        xp = wiring.xp
        # Of what is summed over, and of where the sums are: the same values.
        of_sum, of_result = scores.sorted_items, scores.positions
        if transposed:
            of_sum, of_result = of_result, of_sum
        x = xp.astype(of_sum, xp.float64)
        if not isinstance(scale, float):
            scale = xp.astype(scale, xp.float64)
        gap = (shift(xp, x, x[..., :1]) - x) / scale
        block = scores.position_block
        self.cut = (gap > kernel.reach) | (block != shift(xp, block, block[..., :1] + 1))
        # A gradient through a weight of zero would be zero times infinity.
        self.gap = xp.where(self.cut, 0.0, gap)
        self.gate = None if wiring.beside else gates(xp, kernel, self.gap, self.cut)
        # Exactly 0, unless a NaN spoils the row.
        self.spoiled = 0.0 * x
        self.ties = scores.ties
        self.offset = None
        if self.ties is not None:
            # Exactly 0, but a derivative may move a position by more than its item.
            self.offset = (xp.astype(of_result, xp.float64) - x) / scale

    def transposed(self) -> Recurrence:
        """Return the same sums over positions."""
        return self if self.ties is None else Recurrence(*self._arguments, transposed=True)

    def sums(self, w: Array) -> Array:
        """Return K w for w (..., n, c)."""
        xp = self.wiring.xp
        return xp.matrix_transpose(self._sums(xp.matrix_transpose(xp.astype(w, xp.float64))))

    def _sums(self, w: Array) -> Array:
        """Return K w for w (..., c, n) in float64."""
        if self.wiring.beside is not None:
            sums = self.wiring.beside(self.kernel, self.gap, self.cut, w, self.offset)
        else:
            sums = sums_beside(self._scan, self.wiring.xp, self.kernel, self.gate, w, self.offset)
        # The weight of an item for itself is 1.
        sums = sums + w + self.spoiled[..., None, :]
        return sums if self.ties is None else sums + self._among_ties(self.ties, w)

    def _among_ties(self, ties: Ties, w: Array) -> Array:
        """Return an exact 0 with what the derivative of K w lacks for pairs of tied scores.

        Of exp(-|u|), the recurrences have the slope of one order of the ties; this adds that of the
        mean over all orders. For exp(-u^2) it is the second derivative of an item's own weight.
        """
        offset = self._offset_column()
        if not self.kernel.is_real:
            return -offset * offset * w
        slope = ties.slopes(self.wiring.xp.float64)[..., None, :]
        if self.is_transposed:
            before, after = ties.beside(w)
            total = ties.total
            first = offset * (total(slope * w) - (before - after))
            return first + 0.5 * offset * offset * (total(slope * slope * w) - (before + after))
        (before, square_before), (after, square_after) = self._tied_offsets(ties, w)
        own, own_square = -offset * w, offset * offset * w
        first = slope * (before + own + after) - (after - before)
        square = square_before + own_square + square_after
        return first + 0.5 * (slope * slope * square - (square_after + square_before))

    def _tied_offsets(
        self, ties: Ties, w: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return `Ties.beside` of e w and of e^2 w: those before, and those after.

        e, an exact 0, is what a derivative moves an item by, less what it moves its position by.
        """
        e = -self._offset_column()
        before, after = ties.beside(self.wiring.xp.stack([e * w, e * e * w]))
        return (before[0, ...], before[1, ...]), (after[0, ...], after[1, ...])

    def _offset_column(self) -> Any:
        return None if self.offset is None else self.offset[..., None, :]

    def normalizers(self) -> Array:
        """Return Z = K 1, (..., n)."""
        return self.sums(self._ones()[..., None])[..., 0]

    def means(self, v: Array) -> Array:
        """Return (K v) / (K 1) for v (..., n, f) in sorted order."""
        xp = self.wiring.xp
        v = xp.matrix_transpose(xp.astype(v, xp.float64))
        ones = xp.broadcast_to(self._ones()[..., None, :], (*v.shape[:-2], 1, v.shape[-1]))
        sums = self._sums(xp.concat([v, ones], axis=-2))
        means = sums[..., :-1, :] / sums[..., -1:, :]
        if not self.kernel.is_real and v.shape[-1]:
            means = self._bounded(means, xp.min(v, axis=-1), xp.max(v, axis=-1))
        return xp.matrix_transpose(means)

    def spread(self, u: Array) -> Array:
        """Return K (u / Z), (..., n, f) in sorted order."""
        xp = self.wiring.xp
        u = xp.astype(u, xp.float64)
        sums = self.transposed().sums(u / self.normalizers()[..., None])
        if self.kernel.is_real or not u.shape[-2]:
            return sums
        # No bound but 0, and only where all numbers are on one side of it.
        lowest = xp.where(xp.min(u, axis=-2) >= 0, 0.0, -math.inf)
        highest = xp.where(xp.max(u, axis=-2) <= 0, 0.0, math.inf)
        sums = self._bounded(xp.matrix_transpose(sums), lowest, highest)
        return xp.matrix_transpose(sums)

    def _bounded(self, x: Array, lowest: Array, highest: Array) -> Array:
        """Return x (..., c, n) within bounds (..., c), with the derivative of x.

        Complex terms cancel, and may leave a little less than 0 where there is no more than 0.
        """
        xp, stop = self.wiring.xp, self.wiring.stop_gradient
        value = stop(x)
        low, high = (cast(xp, stop(bound)[..., None], value.dtype) for bound in (lowest, highest))
        # A NaN stays.
        bounded = xp.where(value < low, low, xp.where(value > high, high, value))
        return bounded if value is x else bounded + (x - value)

    def reached(self, ends: Array) -> Array:
        """Tell which positions have a weight above zero for the items where `ends` is 1."""
        return self.sums(ends) > self.kernel.noise

    def moments(self, power: int) -> Array:
        """Return sum_j K_ij u_ij^power, (..., n), for power 1 or 2.

        u_ij is the sum of the gaps between i and j, so that a moment enters at each gap and is
        carried on from there: no difference of large numbers.
        """
        xp = self.wiring.xp
        sides = []
        for gate, gap, flip in self._directions():
            sums = self._scan_one(gate, xp.ones_like(gate))
            # Without the item itself, whose distance is 0.
            moments = [gate * shift(xp, sums), self._scan_one(gate, gate * gap * shift(xp, sums))]
            if power == 2:
                entering = gap * (2 * shift(xp, moments[1]) + gap * shift(xp, sums))
                moments.append(self._scan_one(gate, gate * entering))
            if flip:
                moments = [xp.flip(moment, axis=-1) for moment in moments]
            sides.append(self._about_position(moments, -1.0 if flip else 1.0))
        left, right = sides
        weighted = _column(xp, self.kernel, self.kernel.weights, left) * (left + right)
        moment = _real_sum(xp, self.kernel, weighted, axis=-2) + self.spoiled
        return moment if self.ties is None else moment + self._moments_among_ties(self.ties)

    def _about_position(self, moments: list[Array], side: float) -> Array:
        """Return the last of the moments, about where a derivative moves the position to."""
        if self.offset is None:
            return moments[-1]
        xp, power = self.wiring.xp, len(moments) - 1
        offset = cast(xp, side * self._offset_column(), moments[0].dtype)
        lower = moments[0] if power == 1 else 2 * moments[1] - offset * moments[0]
        decays = _column(xp, self.kernel, self.kernel.decays, offset)
        return xp.exp(decays * offset) * (moments[-1] - offset * lower)

    def _moments_among_ties(self, ties: Ties) -> Array:
        """Return for `moments` what `_among_ties` does for sums."""
        offset = self._offset_column()
        if not self.kernel.is_real:
            return (offset * offset)[..., 0, :]
        slope, ones = ties.slopes(self.wiring.xp.float64)[..., None, :], self._ones()[..., None, :]
        (before, square_before), (after, square_after) = self._tied_offsets(ties, ones)
        first = -slope * (before - offset + after) - (before - after)
        square = square_before + offset * offset + square_after
        return (first - slope * slope * square + square_before + square_after)[..., 0, :]

    def _directions(self) -> list[tuple[Array, Array, bool]]:
        """Return gates and gaps as a scan from the left meets them, and one from the right."""
        xp = self.wiring.xp
        gate = gates(xp, self.kernel, self.gap, self.cut) if self.gate is None else self.gate
        gap = cast(xp, self.gap[..., None, :], gate.dtype)
        backwards = [shift(xp, xp.flip(a, axis=-1)) for a in (gate, gap)]
        return [(gate, gap, False), (*backwards, True)]

    def _scan(self, gate: Array, v: Array) -> Array:
        scan = self.wiring.scan
        return chunked_scan(self.wiring.xp, gate, v) if scan is None else scan(gate, v)

    def _scan_one(self, gate: Array, v: Array) -> Array:
        return self._scan(gate, v[..., None, :])[..., 0, :]

    def _ones(self) -> Array:
        return self.wiring.xp.ones_like(self.gap)


def gates(xp: Any, kernel: Exponentials, gap: Array, cut: Array) -> Array:
    """Return what is left of each term across gaps (..., n), as (..., m, n); 0 where they cut."""
    decays = _column(xp, kernel, kernel.decays, gap)
    gate = xp.exp(-decays * cast(xp, gap[..., None, :], decays.dtype))
    return xp.where(cut[..., None, :], xp.zeros_like(gate), gate)


def _column(xp: Any, kernel: Exponentials, numbers: Sequence[complex], like: Array) -> Array:
    """Return one number for each term, (m, 1); real where all terms are."""
    values = [[number.real if kernel.is_real else number] for number in numbers]
    dtype = xp.float64 if kernel.is_real else xp.complex128
    return xp.asarray(values, dtype=dtype, device=device_of(like))


def _real_sum(xp: Any, kernel: Exponentials, x: Array, axis: int) -> Array:
    """Return the real part of the sum over all terms."""
    return xp.squeeze(x, axis=axis) if kernel.is_real else xp.real(xp.sum(x, axis=axis))


def sums_beside(
    scan: Callable[[Array, Array], Array],
    xp: Any,
    kernel: Exponentials,
    gate: Array,
    w: Array,
    offset: Array | None = None,
) -> Array:
    """Return the sums over all items to the left and to the right, (..., c, n), by two scans.

    The weight of an item is that of the kernel for the gaps on the way to it. Batch dimensions
    broadcast.

    Args:
        scan: As `chunked_scan` of these arrays.
        xp: The array namespace.
        kernel: The sum of exponentials.
        gate: (..., m, n), between each position and the one before: see `gates`.
        w: (..., c, n), real.
        offset: (..., n) how far each position is to the left of its item; None for nothing.
    """
    weights = _column(xp, kernel, kernel.weights, w)[..., None]
    w = weights * cast(xp, w[..., None, :, :], gate.dtype)
    batch = broadcast_shapes(gate.shape[:-1], w.shape[:-2])
    w = xp.broadcast_to(w, (*batch, *w.shape[-2:]))
    gate = xp.broadcast_to(gate, (*batch, gate.shape[-1]))
    both = xp.stack([gate, shift(xp, xp.flip(gate, axis=-1))])
    sides = both[..., None, :] * shift(xp, scan(both, xp.stack([w, xp.flip(w, axis=-1)])))
    left, right = sides[0, ...], xp.flip(sides[1, ...], axis=-1)
    if offset is not None:
        decays = _column(xp, kernel, kernel.decays, offset)
        step = decays * cast(xp, offset[..., None, :], decays.dtype)
        left, right = left * xp.exp(step)[..., None, :], right * xp.exp(-step)[..., None, :]
    return _real_sum(xp, kernel, left + right, axis=-3)


def shift(xp: Any, x: Array, first: Array | None = None) -> Array:
    """Return x moved on by one along the last axis, with `first` (or 0) in front."""
    front = xp.zeros_like(x[..., :1]) if first is None else first
    return xp.concat([front, x[..., :-1]], axis=-1)


def cumulative_logsumexp(
    wiring: Wiring, running_maximum: Callable[[Array], Array], x: Array, axis: int
) -> Array:
    """Return log(exp(x_0) + ... + exp(x_i)) at i; x may hold -inf.

    Frameworks have this too, but their derivatives are NaN where the sum is still empty.

    Args:
        wiring: The framework of the arrays.
        running_maximum: The largest so far, along the last axis.
        x: Any shape.
        axis: Which one.
    """
    xp = wiring.xp
    x = move_axis(xp, x, axis, -1)
    largest = running_maximum(wiring.stop_gradient(x))
    empty = largest == -math.inf
    level = xp.where(empty, 0.0, largest)
    before = shift(xp, largest, xp.full_like(largest[..., :1], -math.inf))
    # Sums of exp(x - level): at least 1, for the largest counts 1.
    gate, term = xp.exp(before - level), xp.exp(x - level)[..., None, :]
    scan = wiring.scan
    sums = (chunked_scan(xp, gate, term) if scan is None else scan(gate, term))[..., 0, :]
    total = level + xp.log(xp.where(empty, 1.0, sums))
    return move_axis(xp, xp.where(empty, -math.inf, total), -1, axis)


# Short chunks: few operations on long arrays. Longer ones were slower at every n.
_CHUNK = 16


def chunked_scan(xp: Any, gate: Array, v: Array) -> Array:
    """Return F with F_i = v_i + gate_i F_{i-1} along the last axis.

    The row is cut into chunks. All chunks take a step at once; then what leaves each chunk is
    carried into the next by the same function. So n items need about log(n) array operations.

    Args:
        xp: The array namespace.
        gate: (..., n); the first does not matter.
        v: (..., c, n).
    """
    n = v.shape[-1]
    if n == 0:
        return xp.zeros_like(v)
    length = min(n, _CHUNK)
    chunks = -(-n // length)
    states, products = _steps(
        xp,
        _steps_first(xp, v, chunks, length),
        _steps_first(xp, gate[..., None, :], chunks, length),
    )
    if chunks > 1:
        leaving = chunked_scan(xp, products[-1, ..., 0, :], states[-1, ...])
        states = states + products * shift(xp, leaving)
    whole = move_axis(xp, states, 0, -1)
    whole = xp.reshape(whole, (*whole.shape[:-2], chunks * length))
    return whole if chunks * length == n else whole[..., :n]


@dataclass(frozen=True, eq=False)
class Flows:
    """What all items send past each position, by step (`_by_step`): (..., m, c, chunks).

    Attributes:
        left: The sum over the items up to here, this one included, as much as arrives of it.
        right: That over the items from here on.
    """

    left: Sequence[Array]
    right: Sequence[Array]


def gates_by_step(xp: Any, kernel: Exponentials, gap: Array, cut: Array) -> list[Array]:
    """Return `gates` by step, each (..., m, 1, chunks)."""
    steps = zip(_by_step(xp, gap), _by_step(xp, cut), strict=True)
    return [gates(xp, kernel, *step)[..., None, :] for step in steps]


def chunked_sums_beside(
    xp: Any, kernel: Exponentials, steps: Sequence[Array], w: Array
) -> tuple[Array, Flows]:
    """Return what `sums_beside` does, and the flows that its derivative is made of.

    In the order of steps from beginning to end: only what is real and has no terms is brought
    into that order, and back.

    Args:
        xp: The array namespace.
        kernel: The sum of exponentials.
        steps: `gates_by_step`.
        w: (..., c, n), real, of the same batch.
    """
    weights = _column(xp, kernel, kernel.weights, w)[..., None]
    items = [weights * cast(xp, x[..., None, :, :], weights.dtype) for x in _by_step(xp, w)]
    # The gate to the next position: that of the last step is the first of the next chunk.
    first = steps[0]
    onward = [*steps[1:], xp.concat([first[..., 1:], xp.zeros_like(first[..., :1])], axis=-1)]

    def carry(gate: Array, leaving: Array) -> Array:
        return shift(xp, chunked_scan(xp, gate[..., 0, :], leaving))

    def carry_back(gate: Array, leaving: Array) -> Array:
        gate, leaving = xp.flip(gate, axis=-1), xp.flip(leaving, axis=-1)
        return xp.flip(carry(gate, leaving), axis=-1)

    left = _flow(steps, items, carry)
    right = _flow(onward[::-1], items[::-1], carry_back)[::-1]
    sums = [_real_sum(xp, kernel, a + b, axis=-3) for a, b in zip(left, right, strict=True)]
    # Both sides have the item itself.
    own = 2 * sum(weight.real for weight in kernel.weights)
    return _by_item(xp, sums, w.shape[-1]) - own * w, Flows(left, right)


def gap_gradient(
    xp: Any, kernel: Exponentials, steps: Sequence[Array], of_w: Flows, of_g: Flows, n: int
) -> Array:
    """Return the gradient of sum(g * sums) in the gaps, (..., n).

    A gap stands between all that is before it and all from there on, in both directions.
    """
    # Both flows have the weights, which count once.
    ratios = [-d / w for d, w in zip(kernel.decays, kernel.weights, strict=True)]
    factor = _column(xp, kernel, ratios, steps[0])[..., None]

    def before(left: Sequence[Array]) -> list[Array]:
        return [shift(xp, left[-1]), *left[:-1]]

    sides = zip(steps, before(of_w.left), of_g.right, before(of_g.left), of_w.right, strict=True)
    passed = [
        _real_sum(xp, kernel, factor * gate * xp.sum(a * b + c * d, axis=-2, keepdims=True), -3)
        for gate, a, b, c, d in sides
    ]
    return _by_item(xp, passed, n)[..., 0, :]


def offset_gradient(xp: Any, kernel: Exponentials, of_w: Flows, g: Array) -> Array:
    """Return the gradient of sum(g * sums) in the offsets, (..., n), at offsets of 0."""
    decays = _column(xp, kernel, kernel.decays, g)[..., None]
    slopes = [
        _real_sum(xp, kernel, decays * (left - right), axis=-3)
        for left, right in zip(of_w.left, of_w.right, strict=True)
    ]
    return xp.sum(g * _by_item(xp, slopes, g.shape[-1]), axis=-2)


def _flow(
    steps: Sequence[Array], items: Sequence[Array], carry: Callable[[Array, Array], Array]
) -> list[Array]:
    """Return F with F_i = x_i + a_i F_{i-1} by step; all chunks take a step at once.

    Args:
        steps: The gates a.
        items: The items x.
        carry: Given the product of each chunk's gates and what leaves it, what enters the chunks.
    """
    states = [items[0]]
    for a, x in zip(steps[1:], items[1:], strict=True):
        states.append(x + a * states[-1])
    products = list(itertools.accumulate(steps, operator.mul))
    entering = carry(products[-1], states[-1])
    return [state + product * entering for state, product in zip(states, products, strict=True)]


def _by_step(xp: Any, x: Array) -> Sequence[Array]:
    """Return x (..., n), cut into chunks, as one array (..., chunks) for each place in them."""
    n = x.shape[-1]
    length = max(1, min(n, _CHUNK))
    return xp.unstack(_cut(xp, x, -(-n // length), length))


def _by_item(xp: Any, steps: Sequence[Array], n: int) -> Array:
    """Return what is given by step as (..., n) again."""
    x = move_axis(xp, xp.stack(steps), 0, -1)
    x = xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    return x if x.shape[-1] == n else x[..., :n]


def _steps_first(xp: Any, x: Array, chunks: int, length: int) -> Array:
    """Return x (..., n) as (length, ..., chunks): what all chunks do at once lies together."""
    # So that torch puts it into this order in memory: twice as fast.
    return xp.stack([_cut(xp, x, chunks, length)])[0, ...]


def _cut(xp: Any, x: Array, chunks: int, length: int) -> Array:
    padding = chunks * length - x.shape[-1]
    if padding:
        x = xp.concat([x, xp.zeros_like(x[..., :padding])], axis=-1)
    return move_axis(xp, xp.reshape(x, (*x.shape[:-1], chunks, length)), -1, 0)


def _steps(xp: Any, v: Array, gate: Array) -> tuple[Array, Array]:
    """Scan along the first axis, step by step; return the scan, and the products of the gates."""
    state, product = v[0, ...], gate[0, ...]
    states, products = [state], [product]
    for i in range(1, v.shape[0]):
        step = gate[i, ...]
        state = v[i, ...] + step * state
        product = step * product
        states.append(state)
        products.append(product)
    return xp.stack(states), xp.stack(products)
