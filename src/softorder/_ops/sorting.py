"""Softly sort, argsort and rank."""

from __future__ import annotations

from softorder import _checks
from softorder._array import Array, arange_like, cast, move_axis, read, widen, wiring_of
from softorder._ops.common import How, as_scores, operation, relax, relaxation_for


@operation(dim_at=1, warn=True)
def sort(
    x: Array,
    how: How = 1.0,
    *,
    dim: int = -1,
    descending: bool = False,
    by: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """Softly sort x along a dimension, in increasing order unless `descending`.

    Values only, unlike torch.sort. Row i of the result is the average of x under row i of P.

    Args:
        x: Values to sort, any shape.
        how: A temperature, or a relaxation.
        dim: The dimension of x to sort along.
        descending: Largest first.
        by: Sort x by these keys instead of by x itself. They have the shape of x, or lack its
            trailing feature dimensions: keys (B, n) sort x of shape (B, n, F) along dim=1.
        mask: True where an item takes part; broadcasts to the shape of the keys. Results of the
            valid items come first in both directions, zeros after them.

    Returns:
        The shape and dtype of x; the dtype of the keys for an x of integers.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.sort(np.array([2.0, 5.0, 4.0]), 0.1)
        array([2.        , 4.00004539, 4.9999546 ])
        >>> so.sort(np.array([10.0, 20.0, 30.0]), 1e-3, by=np.array([0.3, 0.1, 0.2]))
        array([20., 30., 10.])
    """
    if by is not None:
        return _sort_by(x, by, how, dim, descending, mask)
    x = as_scores(x, mask)
    if x.ndim == 0:
        return sort(x[None], how=how, dim=dim, descending=descending, mask=mask)[0]
    relaxation = relaxation_for(how, x)
    if hasattr(relaxation, "sort"):
        return relaxation.sort(x, dim=dim, descending=descending, mask=mask)
    P = relax(relaxation, x, dim, mask, "sort")
    return P.sort_scores(flip=not descending)


def _sort_by(
    x: Array, by: Array, how: How, dim: int, descending: bool, mask: Array | None
) -> Array:
    x, keys = read(x, "x"), as_scores(by, mask, "by")
    xp = wiring_of(x=x, by=keys).xp
    _checks.check_has_dimension(x, "x")
    dim = _checks.check_dim(dim, x.ndim)
    relaxation = relaxation_for(how, keys)
    P = relax(relaxation, keys, _key_dim(dim, x.ndim, keys.ndim), mask)
    _checks.check_keys(P.shape[-1], x.shape[dim])
    y = (P if descending else P.flip()).apply(x, dim)
    return cast(xp, y, x.dtype) if xp.isdtype(x.dtype, "real floating") else y


@operation(dim_at=1)
def argsort(
    x: Array,
    how: How = 1.0,
    *,
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
) -> Array:
    """Softly argsort x: at each position, the average index (from 0) of the items there.

    Args:
        x: Scores, any shape.
        how: A temperature, or a relaxation.
        dim: The dimension to sort along.
        descending: Largest first.
        mask: True where an item takes part. Indices count the masked items too, as those of
            torch.argsort do; positions past the number of valid items are 0.

    Returns:
        The shape and dtype of x; float32 for half precision, which cannot count far.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.argsort(np.array([2.0, 5.0, 4.0]), 1e-3)
        array([0., 2., 1.])
    """
    x = as_scores(x, mask)
    if x.ndim == 0:
        return argsort(x[None], how, dim=dim, descending=descending, mask=mask)[0]
    P = relax(relaxation_for(how, x), x, dim, mask)
    xp = wiring_of(x=x).xp
    index = xp.astype(arange_like(xp, x.shape[dim], x), widen(xp, x).dtype)
    # One vector of indices for the whole batch: the positions come out last.
    return move_axis(xp, (P if descending else P.flip()).apply(index), -1, dim)


@operation()
def rank(
    x: Array,
    how: How = 1.0,
    *,
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
) -> Array:
    r"""Softly rank x: for each item, its average position (from 1), as scipy.stats.rankdata.

    .. math:: \mathrm{rank}_j = \sum_i i P_{ij} / \sum_i P_{ij}

    Args:
        x: Scores, any shape.
        how: A temperature, or a relaxation.
        dim: The dimension to rank along.
        descending: Give rank 1 to the largest instead of the smallest.
        mask: True where an item takes part; the rank of the others is 0.

    Returns:
        The shape and dtype of x; float32 for half precision, which cannot count far.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> so.rank(np.array([2.0, 5.0, 4.0, 4.0]), 1e-3)
        array([1. , 4. , 2.5, 2.5])
    """
    x = as_scores(x, mask)
    if x.ndim == 0:
        return rank(x[None], how, dim=dim, descending=descending, mask=mask)[0]
    relaxation = relaxation_for(how, x)
    if hasattr(relaxation, "rank"):
        return relaxation.rank(x, dim=dim, descending=descending, mask=mask)
    P = relax(relaxation, x, dim, mask, "rank")
    xp = wiring_of(x=x).xp
    position = xp.astype(arange_like(xp, x.shape[dim], x) + 1, widen(xp, x).dtype)
    both = xp.stack([position, xp.ones_like(position)], axis=-1)
    weighted = (P if descending else P.flip()).T @ both
    total = weighted[..., 1]
    ranks = weighted[..., 0] / xp.where(total == 0, 1.0, total)
    return move_axis(xp, ranks, -1, dim)


def _key_dim(dim: int, ndim: int, key_ndim: int) -> int:
    """Find in the keys the dimension `dim` of the values (counted from the end)."""
    if key_ndim >= ndim:
        return dim
    # Keys lack feature dimensions: theirs are the leading ones of the values.
    return min(dim + ndim, key_ndim - 1)
