"""The operations: sort, argsort, rank, top-k, quantile, nearest neighbours.

Each is a few lines over a `SoftPermutation` and goes to its namesake in torch as tau goes to 0,
except for `median`, which for even n is the mean of the middle two. In all of them `how` is a
temperature tau, short for `SoftSort(tau)`, or a relaxation; `dim` is the dimension that is ordered;
`mask` is True where an item takes part, and what the others hold does not matter.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy

from softorder import _checks, _messages, relaxations
from softorder._array import (
    Array,
    Wiring,
    arange_like,
    cast,
    count_valid,
    device_of,
    find_wiring,
    move_axis,
    read,
    widen,
    wiring_of,
)
from softorder._kernels.distances import squared_distances
from softorder._kernels.quantile_positions import quantile_places
from softorder._permutation import SoftPermutation
from softorder.relaxations import SoftSort
from softorder.relaxations.base import Relaxation, brief_permutation

How: TypeAlias = Any
"""A temperature for SoftSort (a number or an array), or a relaxation."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _operation(
    dim_habit: int | None = None, *, warn: bool = False
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let an operation explain the arguments that users of other libraries give it.

    Args:
        dim_habit: The place of `how` where torch has `dim`: an integer there is suspect.
        warn: Whether one that can be a temperature is worth a warning.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        names = tuple(inspect.signature(function).parameters)
        name = function.__name__

        @functools.wraps(function)
        def operation(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            for keyword in kwargs:
                if keyword not in names:
                    raise TypeError(
                        _messages.unknown_argument(name, keyword, kwargs[keyword], names)
                    )
            how: Any = args[dim_habit] if dim_habit is not None and len(args) > dim_habit else None
            if isinstance(how, (int, numpy.integer)) and not isinstance(how, bool):
                wiring = find_wiring(args[0])
                # A compiler cannot trace a warning.
                is_silent = wiring is not None and wiring.is_compiling()
                _checks.check_not_dim(int(how), name, warn=warn and not is_silent)
            return function(*args, **kwargs)

        return operation

    return decorate


@_operation(dim_habit=1, warn=True)
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
    x = _scores(x, mask)
    if x.ndim == 0:
        return sort(x[None], how=how, dim=dim, descending=descending, mask=mask)[0]
    relaxation = _relaxation(how, x)
    if hasattr(relaxation, "sort"):
        return relaxation.sort(x, dim=dim, descending=descending, mask=mask)
    if not hasattr(relaxation, "permutation"):
        raise TypeError(_not_offered(relaxation, "sorted values", ["sort", "permutation"]))
    P = _permutation(relaxation, x, dim, mask)
    return P.sort_scores(flip=not descending)


def _sort_by(
    x: Array, by: Array, how: How, dim: int, descending: bool, mask: Array | None
) -> Array:
    x, keys = read(x, "x"), _scores(by, mask, "by")
    xp = wiring_of(x=x, by=keys).xp
    _checks.check_has_dimension(x, "x")
    dim = _checks.check_dim(dim, x.ndim)
    relaxation = _relaxation(how, keys)
    P = _permutation(relaxation, keys, _key_dim(dim, x.ndim, keys.ndim), mask)
    _checks.check_keys(P.shape[-1], x.shape[dim])
    y = (P if descending else P.flip()).apply(x, dim)
    return cast(xp, y, x.dtype) if xp.isdtype(x.dtype, "real floating") else y


@_operation(dim_habit=1)
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
    x = _scores(x, mask)
    if x.ndim == 0:
        return argsort(x[None], how, dim=dim, descending=descending, mask=mask)[0]
    P = _permutation(_relaxation(how, x), x, dim, mask)
    xp = wiring_of(x=x).xp
    index = xp.astype(arange_like(xp, x.shape[dim], x), widen(xp, x).dtype)
    return (P if descending else P.flip()).apply(_along(xp, index, dim, x.ndim), dim)


@_operation()
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
    x = _scores(x, mask)
    if x.ndim == 0:
        return rank(x[None], how, dim=dim, descending=descending, mask=mask)[0]
    relaxation = _relaxation(how, x)
    if hasattr(relaxation, "rank"):
        return relaxation.rank(x, dim=dim, descending=descending, mask=mask)
    if not hasattr(relaxation, "permutation"):
        raise TypeError(_not_offered(relaxation, "ranks", ["rank", "permutation"]))
    P = _permutation(relaxation, x, dim, mask)
    xp = wiring_of(x=x).xp
    position = xp.astype(arange_like(xp, x.shape[dim], x) + 1, widen(xp, x).dtype)
    both = xp.stack([position, xp.ones_like(position)], axis=-1)
    weighted = (P if descending else P.flip()).T @ both
    total = weighted[..., 1]
    ranks = weighted[..., 0] / xp.where(total == 0, 1.0, total)
    return move_axis(xp, ranks, -1, dim)


@_operation(dim_habit=2, warn=True)
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
    x = _scores(x, mask)
    if x.ndim == 0:
        _checks.check_count(k, 1)
        return topk(x[None], 1, how=how, dim=dim, largest=largest, mask=mask)[0]
    P = _permutation(_relaxation(how, x), x, dim, mask)
    k = _checks.check_count(k, x.shape[dim], least=0)
    return (P if largest else P.flip()).apply(x, dim, rows=slice(0, k))


@_operation()
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
    x = _scores(x, mask)
    if x.ndim == 0:
        return topk_mask(x[None], k, how, dim=dim, largest=largest, mask=mask)[0]
    P = _permutation(_relaxation(how, x), x, dim, mask)
    xp = wiring_of(x=x).xp
    k = _checks.check_count(k, x.shape[dim], least=0)
    ones = xp.ones(k, dtype=widen(xp, x).dtype, device=device_of(x))
    share = (P if largest else P.flip()).T.apply(ones, rows=slice(0, k))
    return cast(xp, move_axis(xp, share, -1, dim), x.dtype)


@_operation(dim_habit=2)
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
    x = _scores(x, mask)
    between = _checks.check_choice(
        interpolation, _BETWEEN, "interpolation", "They are those of torch.quantile."
    )
    if dim is None or x.ndim == 0:
        if dim is not None:
            _checks.check_dim(dim, 1)
        return _quantile_of_all(x, q, how, keepdim, interpolation, mask)
    P = _permutation(_relaxation(how, x), x, dim, mask).flip()
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


# What becomes of (xp, position below, weight of the one above).
_BETWEEN: dict[str, Callable[[Any, Array, Array], tuple[Array, Array]]] = {
    "linear": lambda xp, low, weight: (low, weight),
    "lower": lambda xp, low, weight: (low, xp.zeros_like(weight)),
    "higher": lambda xp, low, weight: (
        xp.where(weight > 0, low + 1, low),
        xp.zeros_like(weight),
    ),
    # Of two that are equally near, that of even number.
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
        # Not the array: without float64 it would lose digits.
        return (q if several else [q]), several
    return xp.reshape(widen(xp, levels), (-1,)), several


def _interpolate(
    wiring: Wiring, P: SoftPermutation, values: Array, q: Any, count: Any, between: Any
) -> Array:
    """Return the soft values (..., n) at the places q (count - 1) of an increasing P, (..., q)."""
    xp = wiring.xp
    if values.shape[-1] == 0:
        shape = (*values.shape[:-1], q.shape[0] if hasattr(q, "shape") else len(q))
        return xp.full(shape, math.nan, dtype=values.dtype, device=device_of(values))
    low, weight = between(xp, *quantile_places(wiring, q, count, values))
    weight = cast(xp, weight, values.dtype)
    below = P.apply(values, rows=low)
    # The row above is not looked at where it has no weight: it may be infinite, or not there.
    above = P.apply(values, rows=xp.where(weight > 0, low + 1, low))
    above = xp.where(weight > 0, above, 0.0)
    return xp.where(weight > 0, (1 - weight) * below + weight * above, below)


@_operation(dim_habit=1)
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


@_operation()
def knn(
    query: Array,
    neighbors: Array,
    k: int,
    how: How = 1.0,
    *,
    labels: Array | None = None,
    num_classes: int | None = None,
    mask: Array | None = None,
) -> Array:
    r"""Softly find the k nearest neighbours (the paper's differentiable kNN).

    The scores are negative squared distances; the weight of a neighbour is the average of its
    column in the first k rows of P. With k = 1, tau = 2 and embeddings of norm 1 this is a
    matching network: softmax of the inner products.

    Distances come from one matrix product, and from the differences, which take longer, where the
    product would lose digits: among points that are closer to each other than to the origin. O(q m)
    memory either way.

    Args:
        query: (..., q, d) points to classify.
        neighbors: (..., m, d) candidates.
        k: How many neighbours, 1 to m.
        how: A temperature (in units of squared distance), or a relaxation.
        labels: (..., m) integer classes of the candidates.
        num_classes: The number of classes C. Default: the largest label plus one.
        mask: (..., m) True where a candidate takes part. Where fewer than k do, their weights
            still sum to 1.

    Returns:
        Weights (..., q, m), or with labels the probabilities of the classes (..., q, C).

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> points = np.array([[0.0], [1.0], [5.0]])
        >>> so.knn(np.array([[0.2]]), points, 1, 0.1, labels=np.array([0, 1, 1])).round(3)
        array([[0.998, 0.002]])
    """
    query, neighbors = read(query, "query"), read(neighbors, "neighbors")
    labels, mask = read(labels, "labels"), read(mask, "mask")
    wiring = wiring_of(query=query, neighbors=neighbors, labels=labels, mask=mask)
    xp = wiring.xp
    _checks.check_points(xp, query, neighbors)
    _checks.check_count(k, neighbors.shape[-2])
    if mask is not None:
        _checks.check_mask(xp, mask, neighbors.shape[:-1])
    scores = -squared_distances(wiring, query, neighbors, mask)
    taking_part = None if mask is None else xp.broadcast_to(mask[..., None, :], scores.shape)
    weights = topk_mask(scores, k, how, mask=taking_part)
    # Where fewer than k take part, their rows are all there is to average.
    if mask is not None:
        count = count_valid(xp, taking_part)
        k = xp.where(count > k, k, xp.where(count == 0, 1, count))
        k = xp.astype(k, weights.dtype)
    weights = weights / k
    if labels is not None:
        _checks.check_labels(xp, labels, weights.shape)
        seen = labels if mask is None else xp.where(mask, labels, 0)
        classes = _checks.count_classes(xp, seen, num_classes, wiring.is_concrete(seen))
        of_class = seen[..., None] == xp.arange(classes, dtype=seen.dtype, device=device_of(seen))
        weights = wiring.matmul(weights, xp.astype(of_class, weights.dtype))
    return cast(xp, weights, query.dtype)


def as_relaxation(how: How) -> Any:
    """Return `how` as a relaxation: a number or an array is the temperature of a SoftSort.

    Args:
        how: A number, an array, or a `Relaxation`.

    Example:
        >>> import softorder as so
        >>> so.as_relaxation(0.1)
        SoftSort(tau=0.1, metric='abs')
    """
    if isinstance(how, Relaxation):
        return how
    if not isinstance(how, _checks.REAL) and find_wiring(how) is None:
        fix = (
            "Pass for example 0.1, SoftSort(tau=0.1), or an object of a class of your own that "
            "inherits from softorder.Relaxation."
        )
        if isinstance(how, relaxations.Sinkhorn):
            fix = "It takes a matrix: Sinkhorn(tau)(matrix). For scores: OptimalTransportSort."
        raise _messages.type_error(
            "how must be a temperature (a number or an array) or a relaxation",
            f"the class {how.__name__}" if isinstance(how, type) else _messages.describe(how),
            fix,
        )
    return SoftSort(tau=how)


def _relaxation(how: How, x: Array) -> Any:
    """Return `how` as a relaxation; an array must be of the framework of x."""
    if not isinstance(how, (Relaxation, *_checks.REAL)) and find_wiring(how) is not None:
        wiring_of(x=x, how=how)
    return as_relaxation(how)


def _scores(x: Array, mask: Array | None, name: str = "x") -> Array:
    """Check scores by the name that they have here; return the array to compute with."""
    x = read(x, name)
    wiring = find_wiring(x)
    if wiring is None or mask is not None:
        wiring = wiring_of(**{name: x, "mask": read(mask, "mask")})
    _checks.check_floating(wiring.xp, x, name)
    return x


def _permutation(relaxation: Any, scores: Array, dim: int, mask: Array | None) -> SoftPermutation:
    if not hasattr(relaxation, "permutation"):
        raise TypeError(_not_offered(relaxation, "a permutation matrix", ["permutation"]))
    return brief_permutation(relaxation, scores, dim, mask)


def _not_offered(relaxation: Any, what: str, methods: list[str]) -> str:
    """Say that a relaxation lacks what an operation needs, and which ones have it."""
    able = [
        name
        for name in relaxations.__all__
        if any(hasattr(getattr(relaxations, name), method) for method in methods)
    ]
    hint = f" {relaxation.hint}" if relaxation.hint else ""
    return _messages.message(
        f"this operation needs a relaxation that has {what}",
        f"{type(relaxation).__name__}, which has none",
        f"Use one of these: {', '.join(able)}.{hint}",
    )


def _key_dim(dim: int, ndim: int, key_ndim: int) -> int:
    """Find in the keys the dimension `dim` of the values (counted from the end)."""
    if key_ndim >= ndim:
        return dim
    # Keys lack feature dimensions: theirs are the leading ones of the values.
    return min(dim + ndim, key_ndim - 1)


def _along(xp: Any, vector: Array, dim: int, ndim: int) -> Array:
    """Return a vector as an array of ndim dimensions that lies along `dim`."""
    shape = [1] * ndim
    shape[dim] = vector.shape[0]
    return xp.reshape(vector, tuple(shape))
