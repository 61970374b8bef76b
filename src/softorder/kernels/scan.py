"""Products with P in O(n log n) time and O(n) memory, in array operations: the portable kernel.

Where d(a, b) / tau = u^p with u = |a - b| / scale, and exp(-u^p) is a sum of exponentials, a sum
over all items is a pair of first-order recurrences along the sorted scores (see README.md).
Everything here is made of one recurrence, whose derivatives are recurrences of the same kind.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from softorder._array import Array, Wiring, device_of, move_axis, take_along
from softorder.kernels.dense import OfScores, RowSoftmax, bounded_power, extended_product
from softorder.kernels.exponentials import Exponentials
from softorder.kernels.scores import FINITE, MASKED, SortedScores


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
        scores, xp = self.scores.settled(), self.wiring.xp
        sums = Recurrence(self.wiring, scores, self.scale, self.kernel)
        # The scores are in order already, and an infinite one has weight in its own block alone.
        y = xp.squeeze(sums.means(scores.positions[..., None]), axis=-1)
        y = xp.astype(y, scores.dtype)
        y = xp.where(scores.position_block == FINITE, y, scores.sorted())
        return xp.flip(y, axis=-1) if flip else y

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        u = self._in_common_dtype(u)
        if rows is not None:
            u = self.wiring.add_along_axis(u, rows, self.order.shape[-1])
        return self._spread(u)

    def log_prob(self, permutation: Array) -> Array:
        wiring, xp, scores = self.wiring, self.wiring.xp, self.scores.settled()
        chosen = take_along(wiring, scores.items, permutation, axis=-1)
        block = take_along(wiring, scores.block, permutation, axis=-1)
        u = (scores.positions - chosen) / self._scale_like(scores.positions)
        log_p = -bounded_power(xp, u, self.kernel.power) - self._log_z()
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
        self, wiring: Wiring, scores: SortedScores, scale: Any, kernel: Exponentials
    ) -> None:
        """Compute the gates between neighbouring positions."""
        self.wiring = wiring
        self.kernel = kernel
        xp = wiring.xp
        x = xp.astype(scores.positions, xp.float64)
        if not isinstance(scale, float):
            scale = xp.astype(scale, xp.float64)
        gap = (shift(xp, x, x[..., :1]) - x) / scale
        block = scores.position_block
        cut = (gap > kernel.reach) | (block != shift(xp, block, block[..., :1] + 1))
        # A gradient through a weight of zero would be zero times infinity.
        self.gap = xp.where(cut, 0.0, gap)
        self.decays = self._column(kernel.decays, x)
        gate = xp.exp(-self.decays * self._spread_over_terms(self.gap))
        self.gate = xp.where(cut[..., None, :], xp.zeros_like(gate), gate)
        # Exactly 0, unless a NaN spoils the row.
        self.spoiled = 0.0 * x

    def sums(self, w: Array) -> Array:
        """Return K w for w (..., n, c)."""
        xp = self.wiring.xp
        return xp.matrix_transpose(self._sums(xp.matrix_transpose(xp.astype(w, xp.float64))))

    def _sums(self, w: Array) -> Array:
        """Return K w for w (..., c, n) in float64."""
        beside = self.wiring.beside or functools.partial(sums_beside, self._scan, self.wiring.xp)
        terms = beside(self.gate, self._spread_over_terms(w, axis=-3))
        # The weight of an item for itself is 1.
        return self._real_sum(terms) + w + self.spoiled[..., None, :]

    def normalizers(self) -> Array:
        """Return Z = K 1, (..., n)."""
        return self.sums(self._ones()[..., None])[..., 0]

    def means(self, v: Array) -> Array:
        """Return (K v) / (K 1) for v (..., n, f) in sorted order."""
        xp = self.wiring.xp
        v = xp.matrix_transpose(xp.astype(v, xp.float64))
        ones = xp.broadcast_to(self._ones()[..., None, :], (*v.shape[:-2], 1, v.shape[-1]))
        sums = self._sums(xp.concat([v, ones], axis=-2))
        return xp.matrix_transpose(sums[..., :-1, :] / sums[..., -1:, :])

    def spread(self, u: Array) -> Array:
        """Return K (u / Z), (..., n, f) in sorted order."""
        return self.sums(u / self.normalizers()[..., None])

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
            moment = self._scan_one(gate, gate * gap * shift(xp, sums))
            if power == 2:
                entering = gap * (2 * shift(xp, moment) + gap * shift(xp, sums))
                moment = self._scan_one(gate, gate * entering)
            sides.append(xp.flip(moment, axis=-1) if flip else moment)
        left, right = sides
        return self._real_sum((left + right)[..., None, :])[..., 0, :] + self.spoiled

    def _directions(self) -> list[tuple[Array, Array, bool]]:
        """Return gates and gaps as a scan from the left meets them, and one from the right."""
        xp = self.wiring.xp
        gap = self._spread_over_terms(self.gap)
        backwards = [shift(xp, xp.flip(a, axis=-1)) for a in (self.gate, gap)]
        return [(self.gate, gap, False), (*backwards, True)]

    def _scan(self, gate: Array, v: Array) -> Array:
        scan = self.wiring.scan
        return chunked_scan(self.wiring.xp, gate, v) if scan is None else scan(gate, v)

    def _scan_one(self, gate: Array, v: Array) -> Array:
        return self._scan(gate, v[..., None, :])[..., 0, :]

    def _ones(self) -> Array:
        return self.wiring.xp.ones_like(self.gap)

    def _column(self, numbers: list[complex], like: Array) -> Array:
        """Return one number for each term, (m, 1); real where all terms are."""
        xp = self.wiring.xp
        real = self.kernel.is_real
        values = [[number.real if real else number] for number in numbers]
        dtype = xp.float64 if real else xp.complex128
        return xp.asarray(values, dtype=dtype, device=device_of(like))

    def _spread_over_terms(self, x: Array, axis: int = -2) -> Array:
        """Return x with a dimension for the terms, in their dtype."""
        return self.wiring.xp.astype(
            self.wiring.xp.expand_dims(x, axis=axis), self.decays.dtype, copy=False
        )

    def _real_sum(self, x: Array) -> Array:
        """Return Re sum_m weight_m x_m for x (..., m, c, n)."""
        xp = self.wiring.xp
        if self.kernel.is_real:
            return self.kernel.weights[0].real * xp.squeeze(x, axis=-3)
        return xp.sum(xp.real(self._column(self.kernel.weights, x)[..., None] * x), axis=-3)


def sums_beside(scan: Callable[[Array, Array], Array], xp: Any, gate: Array, w: Array) -> Array:
    """Return the sums over all items to the left and to the right, by two scans.

    An item's weight is the product of the gates on the way to it. Batch dimensions broadcast.

    Args:
        scan: As `chunked_scan` of these arrays.
        xp: The array namespace.
        gate: (..., n), between each position and the one before.
        w: (..., c, n).
    """
    batch = numpy.broadcast_shapes(tuple(gate.shape[:-1]), tuple(w.shape[:-2]))
    w = xp.broadcast_to(w, (*batch, *w.shape[-2:]))
    gate = xp.broadcast_to(gate, (*batch, gate.shape[-1]))
    gates = xp.stack([gate, shift(xp, xp.flip(gate, axis=-1))])
    sides = gates[..., None, :] * shift(xp, scan(gates, xp.stack([w, xp.flip(w, axis=-1)])))
    return sides[0, ...] + xp.flip(sides[1, ...], axis=-1)


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


def chunked_sums_beside(xp: Any, gate: Array, w: Array) -> tuple[Array, Array, Array]:
    """Return what `sums_beside` does, from one pass over the chunks in each direction.

    With L the sums from the left and R those from the right, each with the item itself, it also
    returns L_{i-1} and R_i, which its derivative is made of, by step (`_steps_first`).

    Args:
        xp: The array namespace.
        gate: (..., n).
        w: (..., c, n), of the same batch.
    """
    n = w.shape[-1]
    length = max(1, min(n, _CHUNK))
    chunks = -(-n // length)
    gates = xp.unstack(_steps_first(xp, gate[..., None, :], chunks, length))
    items = xp.unstack(_steps_first(xp, w, chunks, length))
    arriving = [a * x for a, x in zip(gates, items, strict=True)]
    before, after = _flows(xp, gates, items, arriving)
    sums = [a * left + right for a, left, right in zip(gates, before, after, strict=True)]
    beyond = [x + right for x, right in zip(items, after, strict=True)]
    return _steps_last(xp, sums, n), xp.stack(before), xp.stack(beyond)


def by_item(xp: Any, x: Array, n: int) -> Array:
    """Return what lies by step (`_steps_first`) by item again, (..., n)."""
    return _steps_last(xp, xp.unstack(x), n)


def _flows(
    xp: Any, gates: Sequence[Array], left: Sequence[Array], right: Sequence[Array]
) -> tuple[list[Array], list[Array]]:
    """Return L_{i-1} and G_{i+1} by step, where L_i = l_i + a_i L_{i-1}, G_i = r_i + a_i G_{i+1}.

    All chunks take a step at once. What leaves them flows on by the same function.
    """
    *states, leaving = _states(gates, left)
    *states_back, leaving_back = _states(gates[::-1], right[::-1])
    *products, whole = itertools.accumulate(gates, operator.mul)
    *products_back, _ = itertools.accumulate(gates[::-1], operator.mul)
    chunks = whole.shape[-1]
    if chunks <= 1:
        entering, entering_back = xp.zeros_like(leaving), xp.zeros_like(leaving_back)
    else:
        length = min(chunks, _CHUNK)
        again = [
            xp.unstack(_steps_first(xp, x, -(-chunks // length), length))
            for x in (whole, leaving, leaving_back)
        ]
        entering, entering_back = (_steps_last(xp, x, chunks) for x in _flows(xp, *again))
    before = [s + p * entering for s, p in zip(states, products, strict=True)]
    after = [s + p * entering_back for s, p in zip(states_back, products_back, strict=True)]
    return [entering, *before], [*after[::-1], entering_back]


def _states(gates: Sequence[Array], entering: Sequence[Array]) -> list[Array]:
    """Return F with F_i = x_i + a_i F_{i-1}, step by step."""
    states = [entering[0]]
    for a, x in zip(gates[1:], entering[1:], strict=True):
        states.append(x + a * states[-1])
    return states


def _steps_last(xp: Any, steps: Sequence[Array], n: int) -> Array:
    """Return what is given by step, each (..., chunks), as (..., n)."""
    x = move_axis(xp, xp.stack(steps), 0, -1)
    x = xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    return x if x.shape[-1] == n else x[..., :n]


def _steps_first(xp: Any, x: Array, chunks: int, length: int) -> Array:
    """Return x (..., n) as (length, ..., chunks): what all chunks do at once lies together."""
    padding = chunks * length - x.shape[-1]
    if padding:
        x = xp.concat([x, xp.zeros_like(x[..., :padding])], axis=-1)
    x = move_axis(xp, xp.reshape(x, (*x.shape[:-1], chunks, length)), -1, 0)
    # So that torch puts it into this order in memory: twice as fast.
    return xp.stack([x])[0, ...]


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
