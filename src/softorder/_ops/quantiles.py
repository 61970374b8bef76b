"""Soft quantiles and medians."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softorder import _checks
from softorder._array import (
    Array,
    Wiring,
    cast,
    count_valid,
    device_of,
    find_wiring,
    move_axis,
    read,
    widen,
    wiring_of,
)
from softorder._kernels.quantile_positions import quantile_places
from softorder._ops.common import How, as_scores, operation, relax, relaxation_for
from softorder._permutation import SoftPermutation


@operation(dim_at=2)
def quantile(
    x: Array,
    q: Any,
    how: How = 1.0,
    *,
    dim: int | None = -1,
    keepdim: bool = False,
    interpolation: str = "linear",
    mask: Array | None = None,
) -> Array:
    """Softly take quantiles of x, between two values interpolated as torch.quantile does.

    Args:
        x: Values, any shape.
        q: A number in [0, 1], or several (a sequence or a 1-dimensional array).
        how: A temperature, or a relaxation.
        dim: The dimension to reduce; None for all of them, as one.
        keepdim: Keep `dim`, with length 1.
        interpolation: "linear"; or "lower", "higher" or "nearest", the value of one of the two
            neighbours, or "midpoint", their mean: q then has no gradient.
        mask: True where an item takes part. With no valid item the result is NaN.

    Returns:
        The shape of x without `dim`; several q come first, in a dimension of their own.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.quantile(np.array([2.0, 5.0, 4.0, 1.0, 3.0]), [0.0, 0.25, 0.6], 1e-3)
        array([1. , 2. , 3.4])
    """
    x = as_scores(x, mask)
    between = _checks.check_choice(
        interpolation, _BETWEEN, "interpolation", "They are those of torch.quantile."
    )
    if dim is None or x.ndim == 0:
        if dim is not None:
            _checks.check_dim(dim, 1)
        return _quantile_of_all(x, q, how, keepdim, interpolation, mask)
    P = relax(relaxation_for(how, x), x, dim, mask).flip()
    wiring = wiring_of(x=x)
    xp = wiring.xp
    dim = _checks.check_dim(dim, x.ndim)
    values = widen(xp, move_axis(xp, x, dim, -1))
    q, several = _quantiles(wiring, x, q)
    if mask is None:
        y = _interpolate(wiring, P, values, q, values.shape[-1], between)
    else:
        count = count_valid(xp, move_axis(xp, xp.broadcast_to(mask, x.shape), dim, -1))
        y = _interpolate(wiring, P, values, q, count, between)
        y = xp.where(count == 0, math.nan, y)
    y = move_axis(xp, cast(xp, y, x.dtype), -1, 0)
    if keepdim:
        y = xp.expand_dims(y, axis=dim)
    return y if several else y[0, ...]


def _quantile_of_all(
    x: Array, q: Any, how: How, keepdim: bool, interpolation: str, mask: Array | None
) -> Array:
    """Return the quantiles of x, flattened."""
    xp = wiring_of(x=x).xp
    if mask is not None:
        _checks.check_mask(xp, mask, x.shape)
        mask = xp.reshape(xp.broadcast_to(mask, x.shape), (-1,))
    flat = xp.reshape(x, (-1,))
    y = quantile(flat, q, how, interpolation=interpolation, mask=mask)
    return xp.reshape(y, (*y.shape, *(1 for _ in x.shape))) if keepdim else y


# Interpolation -> what (xp, position below, weight of the position above) become.
_BETWEEN: dict[str, Callable[[Any, Array, Array], tuple[Array, Array]]] = {
    "linear": lambda xp, low, weight: (low, weight),
    "lower": lambda xp, low, weight: (low, xp.zeros_like(weight)),
    "higher": lambda xp, low, weight: (
        xp.where(weight > 0, low + 1, low),
        xp.zeros_like(weight),
    ),
    # Of two positions that are equally near, the even one.
    "nearest": lambda xp, low, weight: (
        xp.where((weight > 0.5) | ((weight == 0.5) & (low % 2 == 1)), low + 1, low),
        xp.zeros_like(weight),
    ),
    "midpoint": lambda xp, low, weight: (low, xp.where(weight > 0, 0.5, xp.zeros_like(weight))),
}


def _quantiles(wiring: Wiring, x: Array, q: Any) -> tuple[Any, bool]:
    """Check q; return it as a list of numbers or an array (k,), and whether there were several."""
    xp = wiring.xp
    if find_wiring(q) is None:
        _checks.check_numbers(q)
        levels = xp.asarray(q, dtype=xp.float64, device=device_of(x))
    else:
        levels = read(q, "q")
        wiring_of(x=x, q=levels)
    _checks.check_probabilities(xp, levels, wiring.is_concrete(levels))
    several = levels.ndim == 1
    if find_wiring(q) is None:
        # Numbers, not the array: without float64 it would lose digits.
        return (q if several else [q]), several
    return xp.reshape(widen(xp, levels), (-1,)), several


def _interpolate(
    wiring: Wiring, P: SoftPermutation, values: Array, q: Any, count: Any, between: Any
) -> Array:
    """Return soft values (..., q): of values (..., n), at the positions q (count - 1) of P."""
    xp = wiring.xp
    if values.shape[-1] == 0:
        shape = (*values.shape[:-1], q.shape[0] if hasattr(q, "shape") else len(q))
        return xp.full(shape, math.nan, dtype=values.dtype, device=device_of(values))
    low, weight = between(xp, *quantile_places(wiring, q, count, values))
    weight = cast(xp, weight, values.dtype)
    below = P.apply(values, rows=low)
    # Where the row above has no weight it is ignored: it may be infinite, or missing.
    above = P.apply(values, rows=xp.where(weight > 0, low + 1, low))
    above = xp.where(weight > 0, above, 0.0)
    return xp.where(weight > 0, (1 - weight) * below + weight * above, below)


@operation(dim_at=1)
def median(
    x: Array,
    how: How = 1.0,
    *,
    dim: int | None = -1,
    keepdim: bool = False,
    mask: Array | None = None,
) -> Array:
    """Softly take the median: `quantile` at 0.5, for even n the mean of the middle two.

    torch.median takes the lower of the two: that is `quantile(x, 0.5, how, interpolation="lower")`.

    Args:
        x: Values, any shape.
        how: A temperature, or a relaxation.
        dim: The dimension to reduce; None for all of them, as one.
        keepdim: Keep `dim`, with length 1.
        mask: True where an item takes part. With no valid item the result is NaN.

    Returns:
        The shape of x without `dim`.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> float(so.median(np.array([2.0, 5.0, 4.0]), 1e-3))
        4.0
    """
    return quantile(x, 0.5, how, dim=dim, keepdim=keepdim, mask=mask)
