"""Sums over all items at every position, by recurrences along the sorted scores.

Where d(a, b) / tau = u^p with u = |a - b| / scale, and exp(-u^p) is a sum of exponentials, such a
sum is a pair of first-order recurrences (README.md, "Recurrences").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from softorder._array import Array, Wiring, broadcast_shapes, cast, device_of
from softorder._kernels.profiles import Exponentials
from softorder._kernels.scan import shift
from softorder._kernels.scores import SortedScores
from softorder._kernels.ties import Ties


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
        profile: Exponentials,
        *,
        transposed: bool = False,
    ) -> None:
        """Compute the gaps between neighbouring positions, and the gates that they make.

        Args:
            wiring: The framework of the arrays.
            scores: The sorted scores.
            scale: tau^(1/p): a number, or an array that broadcasts against (..., n).
            profile: exp(-u^p) as a sum of exponentials.
            transposed: Sum over positions at every item, for K^T w: it has the same values, and at
                ties other derivatives.
        """
        self.wiring = wiring
        self.profile = profile
        self.is_transposed = transposed
        self._arguments = wiring, scores, scale, profile
        xp = wiring.xp
        # Of what is summed over, and of where the sums are: the same values.
        of_sum, of_result = scores.sorted_items, scores.position_scores
        if transposed:
            of_sum, of_result = of_result, of_sum
        x = xp.astype(of_sum, xp.float64)
        if not isinstance(scale, float):
            scale = xp.astype(scale, xp.float64)
        gap = (shift(xp, x, x[..., :1]) - x) / scale
        block = scores.position_block
        self.cut = (gap > profile.reach) | (block != shift(xp, block, block[..., :1] + 1))
        # A gradient through a weight of zero would be zero times infinity.
        self.gap = xp.where(self.cut, 0.0, gap)
        self.gate = None if wiring.sums_over_others else gates(xp, profile, self.gap, self.cut)
        # Exactly 0, or NaN where the batch row has one.
        self.nan = 0.0 * x
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
        if self.wiring.sums_over_others is not None:
            sums = self.wiring.sums_over_others(self.profile, self.gap, self.cut, w, self.offset)
        else:
            sums = sums_over_others(
                self.wiring.scan, self.wiring.xp, self.profile, self.gate, w, self.offset
            )
        # The weight of an item for itself is 1.
        sums = sums + w + self.nan[..., None, :]
        return sums if self.ties is None else sums + self._among_ties(self.ties, w)

    def _among_ties(self, ties: Ties, w: Array) -> Array:
        """Return an exact 0 with what the derivative of K w lacks for pairs of tied scores.

        Of exp(-|u|), the recurrences have the slope of one order of the ties; this adds that of the
        mean over all orders. For exp(-u^2) it is the second derivative of an item's own weight.
        """
        offset = self._offset_column()
        if not self.profile.is_real:
            return -offset * offset * w
        slope = ties.slopes(self.wiring.xp.float64)[..., None, :]
        if self.is_transposed:
            before, after = ties.before_and_after(w)
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
        """Return `Ties.before_and_after` of e w and of e^2 w: those before, and those after.

        e, an exact 0, is what a derivative moves an item by, less what it moves its position by.
        """
        e = -self._offset_column()
        before, after = ties.before_and_after(self.wiring.xp.stack([e * w, e * e * w]))
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
        if not self.profile.is_real and v.shape[-1]:
            means = self._bounded(means, xp.min(v, axis=-1), xp.max(v, axis=-1))
        return xp.matrix_transpose(means)

    def spread(self, u: Array) -> Array:
        """Return K (u / Z), (..., n, f) in sorted order."""
        xp = self.wiring.xp
        u = xp.astype(u, xp.float64)
        sums = self.transposed().sums(u / self.normalizers()[..., None])
        if self.profile.is_real or not u.shape[-2]:
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
        return self.sums(ends) > self.profile.noise

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
        weighted = term_column(xp, self.profile, self.profile.weights, left) * (left + right)
        moment = real_sum(xp, self.profile, weighted, axis=-2) + self.nan
        return moment if self.ties is None else moment + self._moments_among_ties(self.ties)

    def _about_position(self, moments: list[Array], side: float) -> Array:
        """Return the last of the moments, about where a derivative moves the position to."""
        if self.offset is None:
            return moments[-1]
        xp, power = self.wiring.xp, len(moments) - 1
        offset = cast(xp, side * self._offset_column(), moments[0].dtype)
        lower = moments[0] if power == 1 else 2 * moments[1] - offset * moments[0]
        decays = term_column(xp, self.profile, self.profile.decays, offset)
        return xp.exp(decays * offset) * (moments[-1] - offset * lower)

    def _moments_among_ties(self, ties: Ties) -> Array:
        """Return for `moments` what `_among_ties` does for sums."""
        offset = self._offset_column()
        if not self.profile.is_real:
            return (offset * offset)[..., 0, :]
        slope, ones = ties.slopes(self.wiring.xp.float64)[..., None, :], self._ones()[..., None, :]
        (before, square_before), (after, square_after) = self._tied_offsets(ties, ones)
        first = -slope * (before - offset + after) - (before - after)
        square = square_before + offset * offset + square_after
        return (first - slope * slope * square + square_before + square_after)[..., 0, :]

    def _directions(self) -> list[tuple[Array, Array, bool]]:
        """Return gates and gaps as a scan from the left meets them, and one from the right."""
        xp = self.wiring.xp
        gate = gates(xp, self.profile, self.gap, self.cut) if self.gate is None else self.gate
        gap = cast(xp, self.gap[..., None, :], gate.dtype)
        backwards = [shift(xp, xp.flip(a, axis=-1)) for a in (gate, gap)]
        return [(gate, gap, False), (*backwards, True)]

    def _scan_one(self, gate: Array, v: Array) -> Array:
        return self.wiring.scan(gate, v[..., None, :])[..., 0, :]

    def _ones(self) -> Array:
        return self.wiring.xp.ones_like(self.gap)


def gates(xp: Any, profile: Exponentials, gap: Array, cut: Array) -> Array:
    """Return what is left of each term across gaps (..., n), as (..., m, n); 0 where they cut."""
    decays = term_column(xp, profile, profile.decays, gap)
    gate = xp.exp(-decays * cast(xp, gap[..., None, :], decays.dtype))
    return xp.where(cut[..., None, :], xp.zeros_like(gate), gate)


def term_column(xp: Any, profile: Exponentials, numbers: Sequence[complex], like: Array) -> Array:
    """Return one number for each term, (m, 1); real where all terms are."""
    values = [[number.real if profile.is_real else number] for number in numbers]
    dtype = xp.float64 if profile.is_real else xp.complex128
    return xp.asarray(values, dtype=dtype, device=device_of(like))


def real_sum(xp: Any, profile: Exponentials, x: Array, axis: int) -> Array:
    """Return the real part of the sum over all terms."""
    return xp.squeeze(x, axis=axis) if profile.is_real else xp.real(xp.sum(x, axis=axis))


def sums_over_others(
    scan: Callable[[Array, Array], Array],
    xp: Any,
    profile: Exponentials,
    gate: Array,
    w: Array,
    offset: Array | None = None,
) -> Array:
    """Return the sums over all items to the left and to the right, (..., c, n), by two scans.

    The weight of an item is that of the profile for the gaps on the way to it. Batch dimensions
    broadcast.

    Args:
        scan: As `chunked_scan` of these arrays.
        xp: The array namespace.
        profile: The sum of exponentials.
        gate: (..., m, n), between each position and the one before: see `gates`.
        w: (..., c, n), real.
        offset: (..., n) how far each position is to the left of its item; None for nothing.
    """
    weights = term_column(xp, profile, profile.weights, w)[..., None]
    w = weights * cast(xp, w[..., None, :, :], gate.dtype)
    batch = broadcast_shapes(gate.shape[:-1], w.shape[:-2])
    w = xp.broadcast_to(w, (*batch, *w.shape[-2:]))
    gate = xp.broadcast_to(gate, (*batch, gate.shape[-1]))
    both = xp.stack([gate, shift(xp, xp.flip(gate, axis=-1))])
    sides = both[..., None, :] * shift(xp, scan(both, xp.stack([w, xp.flip(w, axis=-1)])))
    left, right = sides[0, ...], xp.flip(sides[1, ...], axis=-1)
    if offset is not None:
        decays = term_column(xp, profile, profile.decays, offset)
        step = decays * cast(xp, offset[..., None, :], decays.dtype)
        left, right = left * xp.exp(step)[..., None, :], right * xp.exp(-step)[..., None, :]
    return real_sum(xp, profile, left + right, axis=-3)
