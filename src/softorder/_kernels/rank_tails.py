"""The logarithm of the probability of a rank under Gaussian noise, however small it is.

Given an item's own noise z, the number of items above it is Poisson-binomial, and z is integrated
over, as in `pairwise.rank_distribution`. For an unlikely rank the integrand is far from z = 0, so
each pair of an item and a rank has nodes of its own, around the peak of its integrand.
"""

from __future__ import annotations

import math
from typing import Any

from softorder._array import Array, Wiring, arange_like, take_along
from softorder._kernels.pairwise import Comparisons, by_parts, count_losses
from softorder._kernels.scores import SortedScores, pick

# The trapezoidal rule in u, where z = peak + width STRETCH sinh(u / STRETCH): steps are finest at
# the peak and grow with the distance from it.
_STEP, _STRETCH = 0.3, 3.0
# An integrand falls at least like exp(-z^2 / 2): past this distance there is less than 1e-16 of it.
_REACH = 8.6
_NEWTON_STEPS = 8
# Log-odds are cut off here, where one side is certain: their exponential would overflow.
_CERTAIN = 60.0


def log_rank_probability(scores: SortedScores, item: Array, losses: Array, scale: Any) -> Array:
    """Return the log-probability that `losses` others are above an item, (..., k) in float64.

    O(k n^2 log n) time.

    Args:
        scores: The sorted scores.
        item: (..., k) sorted positions of items.
        losses: (..., k) how many items of its block are above each of them.
        scale: The standard deviation of the noise: a number, or an array (..., 1).
    """
    wiring, xp, n = scores.wiring, scores.wiring.xp, scores.shape[-1]
    if n == 0:
        return xp.astype(item, xp.float64)
    # The squares of all differences together must not overflow.
    comparisons = Comparisons(scores, scale, 1e-3 * math.sqrt(float(xp.finfo(xp.float64).max)))
    begin = pick(wiring, scores.spans()[0], item)
    nodes, log_weights = (
        xp.asarray(x, dtype=xp.float64, device=scores.device) for x in _quadrature(n)
    )

    def part(pairs: Array) -> Array:
        here, first, lost = (pick(wiring, x, pairs)[..., None] for x in (item, begin, losses))
        meets = ~comparisons.in_other_blocks(here[..., 0]) & (comparisons.every != here)
        number = comparisons.every - first - xp.astype(comparisons.every > here, xp.int64)
        above, below = meets & (number < lost), meets & (number >= lost)
        gaps = comparisons.differences(here[..., 0])
        peak, width = _find_peak(wiring, wiring.stop_gradient(gaps), above, below)
        z = peak[..., None] + width[..., None] * nodes
        f = _log_integrand(wiring, gaps, z, above, below)
        # Apart from the sum: a large number would take the digits that tell the nodes apart.
        top = wiring.stop_gradient(xp.max(f, axis=-1, keepdims=True))
        return wiring.logsumexp(f - top + log_weights, -1) + xp.log(width) + top[..., 0]

    pairs = arange_like(xp, item.shape[-1], scores.order)
    # All steps of `count_losses` are kept for the backward pass of a part.
    each = math.prod(item.shape[:-1]) * nodes.shape[0] * n * n
    return by_parts(wiring, part, pairs, each, -1)


def _quadrature(n: int) -> tuple[list[float], list[float]]:
    """Return nodes in units of the width, and the logarithms of their weights times the density's.

    The width is at least 1 / sqrt(n), so that the last node is at the reach or past it.
    """
    count = math.ceil(_STRETCH * math.asinh(_REACH * math.sqrt(max(n, 1)) / _STRETCH) / _STEP)
    u = [_STEP * k / _STRETCH for k in range(-count, count + 1)]
    factor = _STEP / math.sqrt(2 * math.pi)
    return [_STRETCH * math.sinh(x) for x in u], [math.log(factor * math.cosh(x)) for x in u]


def _find_peak(wiring: Wiring, gaps: Array, above: Array, below: Array) -> tuple[Array, Array]:
    """Return where the integrand is largest, and its width there, (..., k).

    Of the sets that may be above, the one of the largest items has the largest share, and its
    logarithm is concave: it stands for all of them here. Its derivative is about piecewise linear,
    which gives the start; then Newton's method.
    """
    xp = wiring.xp
    z = _piecewise_peak(wiring, gaps, above, below)

    def slopes(z: Array) -> tuple[Array, Array]:
        u = gaps - z[..., None]
        first, curvature = _differentiate_log_cdf(wiring, xp.where(above, u, -u))
        pull = xp.where(above, -first, xp.where(below, first, 0.0))
        return (
            xp.sum(pull, axis=-1) - z,
            xp.sum(xp.where(above | below, curvature, 0.0), axis=-1) + 1,
        )

    def newton(z: Array, _: Any) -> Array:
        slope, curvature = slopes(z)
        step = slope / curvature
        return z + xp.where(step > 1, 1.0, xp.where(step < -1, -1.0, step))

    z = wiring.fold(newton, z, range(_NEWTON_STEPS))
    return z, 1 / xp.sqrt(slopes(z)[1])


def _piecewise_peak(wiring: Wiring, gaps: Array, above: Array, below: Array) -> Array:
    """Return the peak of -z^2 / 2 less half the squares of how far items are on the wrong side.

    If k items are, the peak is the mean of their gaps and a 0. The items of `above` are pulled
    across from the lowest on, those of `below` from the highest on; gaps decrease.
    """
    xp = wiring.xp

    def means(side: Array, gaps: Array) -> Array:
        total = wiring.cumulative_sum(xp.where(side, gaps, 0.0), -1)
        count = wiring.cumulative_sum(xp.astype(side, gaps.dtype), -1)
        return total / (1 + count)

    lowest = xp.min(means(xp.flip(above, axis=-1), xp.flip(gaps, axis=-1)), axis=-1)
    highest = xp.max(means(below, gaps), axis=-1)
    # One of them at most is on its side of 0.
    return xp.where(lowest < 0, lowest, xp.where(highest > 0, highest, 0.0))


def _log_integrand(wiring: Wiring, gaps: Array, z: Array, above: Array, below: Array) -> Array:
    """Return -z^2 / 2 plus the log-probability that as many items are above z as `above` has.

    Chances are tilted so that this number is a likely one, whatever z (..., k, m) is: multiplied
    by a factor, all odds to be above give a distribution that differs from the true one by a known
    factor, and nothing in it underflows.
    """
    xp, stop = wiring.xp, wiring.stop_gradient
    count = xp.sum(xp.astype(above, xp.int64), axis=-1)[..., None, None]
    above, below = above[..., None, :], below[..., None, :]
    log_p, log_q = _log_chances(wiring, gaps[..., None, :] - z[..., :, None])
    odds = log_p - log_q
    odds = odds + _tilt(wiring, stop(odds), above, below)
    # How unlikely each item is on its other side, after the tilt.
    other = xp.where(above, odds, xp.where(below, -odds, math.inf))
    other = xp.exp(-xp.where(other > _CERTAIN, _CERTAIN, other))
    other = xp.where(above | below, other, 0.0)
    lost = xp.where(above, 1.0, other) / (1 + other)
    tilted = take_along(wiring, count_losses(wiring, lost), count, axis=-1)[..., 0]
    likely = xp.where(above, log_p, xp.where(below, log_q, 0.0))
    return xp.sum(likely + xp.log(1 + other), axis=-1) + xp.log(tilted) - 0.5 * z * z


def _tilt(wiring: Wiring, odds: Array, above: Array, below: Array) -> Array:
    """Return what to add to all log-odds so that about as many items as in `above` are above."""
    xp = wiring.xp
    k, others = (xp.sum(xp.astype(x, odds.dtype), axis=-1, keepdims=True) for x in (above, below))
    least = xp.min(xp.where(above, odds, math.inf), axis=-1, keepdims=True)
    most = xp.max(xp.where(below, odds, -math.inf), axis=-1, keepdims=True)
    least = xp.where(k > 0, least, xp.where(others > 0, most, 0.0))
    most = xp.where(others > 0, most, least)
    return xp.log((k + 0.5) / (others + 0.5)) - 0.5 * (least + most)


def _log_chances(wiring: Wiring, u: Array) -> tuple[Array, Array]:
    """Return log Phi(u) and log Phi(-u)."""
    xp = wiring.xp
    # Where erfc, or its square in a second derivative, is about to underflow.
    far = 20.0 if wiring.has_float64() else 7.0
    t = xp.where(u > 0, u, -u)
    is_far = t > far
    small = wiring.normal_cdf(-xp.where(is_far, far, t))
    log_small = xp.where(is_far, _asymptotic(xp, xp.where(is_far, t, far)), xp.log(small))
    log_large = xp.log(1 - small)
    return xp.where(u > 0, log_large, log_small), xp.where(u > 0, log_small, log_large)


def _asymptotic(xp: Any, t: Array) -> Array:
    """Return log Phi(-t) for large t."""
    y, series = 1 / (t * t), xp.ones_like(t)
    for k in range(15, 0, -2):
        series = 1 - k * y * series
    return xp.log(series / t) - 0.5 * t * t - 0.5 * math.log(2 * math.pi)


def _differentiate_log_cdf(wiring: Wiring, u: Array) -> tuple[Array, Array]:
    """Return the first derivative of log Phi(u) and minus the second, to about 1e-2."""
    xp = wiring.xp
    is_far = u < -5
    near, t = xp.where(is_far, -5.0, u), xp.where(is_far, -u, 5.0)
    ratio = xp.exp(-0.5 * near * near) / (math.sqrt(2 * math.pi) * wiring.normal_cdf(near))
    first = xp.where(is_far, t + 1 / t, ratio)
    return first, xp.where(is_far, 1 - 1 / (t * t), ratio * (ratio + near))
