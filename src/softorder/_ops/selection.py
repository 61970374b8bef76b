"""Softly select: the k largest values, and the items among the k largest."""

from __future__ import annotations

from softorder import _checks
from softorder._array import Array, cast, device_of, move_axis, widen, wiring_of
from softorder._ops.common import How, as_scores, operation, relax, relaxation_for


@operation(dim_at=2, warn=True)
def topk(
    x: Array,
    k: int,
    how: How = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Array | None = None,
) -> Array:
    """Softly take the k largest values, largest first (or the k smallest, smallest first).

    Args:
        x: Values, any shape.
        k: How many, 0 to n.
        how: A temperature, or a relaxation.
        dim: The dimension to select along.
        largest: False for the smallest.
        mask: True where an item takes part. Where fewer than k do, zeros fill the rest.

    Returns:
        The shape of x with k in place of `dim`. Values only, unlike torch.topk.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.topk(np.array([2.0, 5.0, 4.0]), 2, 1e-3)
        array([5., 4.])
    """
    x = as_scores(x, mask)
    if x.ndim == 0:
        _checks.check_count(k, 1)
        return topk(x[None], 1, how=how, dim=dim, largest=largest, mask=mask)[0]
    P = relax(relaxation_for(how, x), x, dim, mask)
    k = _checks.check_count(k, x.shape[dim], least=0)
    return (P if largest else P.flip()).apply(x, dim, rows=slice(0, k))


@operation()
def topk_mask(
    x: Array,
    k: int,
    how: How = 1.0,
    *,
    dim: int = -1,
    largest: bool = True,
    mask: Array | None = None,
) -> Array:
    """Softly tell which items are among the k largest: column sums of the first k rows of P.

    The result is at least 0 and sums to k. Above 1 it can be, unless the relaxation is doubly
    stochastic: one item may be the likeliest at several positions.

    Args:
        x: Scores, any shape.
        k: How many, 0 to n.
        how: A temperature, or a relaxation.
        dim: The dimension to select along.
        largest: False for the smallest.
        mask: True where an item takes part; the result is 0 for the others.

    Returns:
        The shape and dtype of x.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.topk_mask(np.array([2.0, 5.0, 4.0]), 2, 1e-3)
        array([0., 1., 1.])
    """
    x = as_scores(x, mask)
    if x.ndim == 0:
        return topk_mask(x[None], k, how, dim=dim, largest=largest, mask=mask)[0]
    P = relax(relaxation_for(how, x), x, dim, mask)
    xp = wiring_of(x=x).xp
    k = _checks.check_count(k, x.shape[dim], least=0)
    ones = xp.ones(k, dtype=widen(xp, x).dtype, device=device_of(x))
    share = (P if largest else P.flip()).T.apply(ones, rows=slice(0, k))
    return cast(xp, move_axis(xp, share, -1, dim), x.dtype)
