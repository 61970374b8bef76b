"""Semi-metrics between sorted scores and items, with derivatives where a = b."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from softorder import _checks
from softorder._array import Array
from softorder._kernels.scores import SortedScores


def distance(
    scores: SortedScores, rows: Array | None, metric: float | Callable[[Array, Array], Array]
) -> Array:
    """Return d(x_i, s_j) for sorted scores x at the positions `rows` and items s, (..., k, n).

    d(a, a) is 0. Its derivative is 0 too, but for |a - b| between tied scores, where it is the mean
    over the orders that they could be in (README.md, "Tied scores"). Pairs of different blocks get
    some finite number.

    Args:
        scores: The sorted scores.
        rows: Positions; None for all.
        metric: A power p for |a - b|^p, or a callable on arrays of one shape.
    """
    xp = scores.wiring.xp
    a, b = scores.at(rows)[..., :, None], scores.items[..., None, :]
    if not callable(metric) and metric in (1.0, 2.0):
        # These two need no care to have a finite derivative at 0.
        slopes = scores.tie_slopes(rows)
        return bounded_power(xp, a - b, metric, None if slopes is None else slopes[..., :, None])
    # Keep the metric away from pairs that do not count. Any two different numbers would do in
    # their place; these two are in the domain of log, sqrt and logit too.
    ignored = (a == b) | scores.in_other_blocks(rows)
    a, b = xp.where(ignored, 0.25, a), xp.where(ignored, 0.75, b)
    d = metric(a, b) if callable(metric) else bounded_power(xp, a - b, metric)
    _checks.check_distance(d, ignored.shape)
    return xp.where(ignored, 0.0, d)


def bounded_power(xp: Any, u: Array, p: float, slopes: Array | None = None) -> Array:
    """Return |u|^p, cut off where it would overflow and its gradient be zero times infinity.

    Args:
        xp: The array namespace.
        u: The differences.
        p: The power.
        slopes: What the slope of |u| is at 0, if p is 1; None for 0.
    """
    bound = 0.5 * float(xp.finfo(u.dtype).max) ** (1 / max(p, 1.0))
    u = xp.where(xp.abs(u) > bound, bound, u)
    if p == 1.0:
        return xp.abs(u) if slopes is None else xp.where(u == 0, slopes * u, xp.abs(u))
    return xp.square(u) if p == 2.0 else xp.abs(u) ** p
