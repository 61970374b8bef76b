"""Squared distances between two sets of points, right to the last digits wherever the points lie.

|a|^2 + |b|^2 - 2ab is one matrix product, but it cancels where two points are closer to each other
than to the origin. Sums of squared differences do not cancel, and take longer. So the first form is
computed, and the second where the error bound of the first does not hold.
"""

from __future__ import annotations

import math

from softorder._array import Array, Wiring, arange_like, take_along, widen

# Differences of one block, and its queries: as many as let the neighbours be read a few times only.
BLOCK = 1 << 20
QUERIES = 16


def squared_distances(
    wiring: Wiring, query: Array, neighbors: Array, mask: Array | None = None
) -> Array:
    """Return |query_i - neighbor_j|^2, (..., q, m), in O(q m) memory; half types are widened.

    Args:
        wiring: The framework of the arrays.
        query: (..., q, d).
        neighbors: (..., m, d). An infinite one is infinitely far away.
        mask: (..., m) True where a neighbour takes part; the distances of the others are finite,
            and have no meaning.
    """
    xp = wiring.xp
    dtype = widen(xp, query).dtype
    finite = xp.all(~xp.isinf(neighbors), axis=-1)
    there = finite if mask is None else finite & mask
    query = xp.astype(query, xp.float64)
    neighbors = xp.where(there[..., None], xp.astype(neighbors, xp.float64), 0.0)
    origin = wiring.stop_gradient(_mean_query(wiring, query, neighbors))
    a, b = query - origin, xp.where(there[..., None], neighbors - origin, 0.0)
    lengths = _squared_length(wiring, a)[..., :, None], _squared_length(wiring, b)[..., None, :]
    product = lengths[0] + lengths[1] - 2 * wiring.matmul(a, xp.matrix_transpose(b))
    # The error of the product is at most about 2 eps (|a|^2 + |b|^2).
    working = float(xp.finfo(query.dtype).eps)
    share = 2 * working / max(float(xp.finfo(dtype).eps), working**0.75)
    bounds = tuple(share * wiring.stop_gradient(x) for x in lengths)
    squared = wiring.cond(
        ~xp.any(bounds[0] + bounds[1] > wiring.stop_gradient(product)),
        lambda: product,
        lambda: wiring.cond(
            _one_may_coincide(wiring, product, bounds),
            lambda: product,
            lambda: _by_differences(wiring, query, neighbors),
        ),
    )
    return xp.astype(xp.where(finite[..., None, :], squared, math.inf), dtype)


def _mean_query(wiring: Wiring, query: Array, neighbors: Array) -> Array:
    """Return the mean of the finite queries, for each batch of neighbours.

    Not of the neighbours: one that is far away would take the origin with it. A single query is its
    own mean, and the product is then a sum of squared differences.
    """
    xp = wiring.xp
    shape = (1,) * (query.ndim - neighbors.ndim) + tuple(neighbors.shape)
    shape = shape[len(shape) - query.ndim :]
    axes = tuple(i for i in range(query.ndim - 1) if i == query.ndim - 2 or shape[i] == 1)
    counts = xp.all(xp.isfinite(query), axis=-1, keepdims=True)
    total = xp.sum(xp.where(counts, query, 0.0), axis=axes, keepdims=True)
    number = xp.sum(xp.astype(counts, query.dtype), axis=axes, keepdims=True)
    return total / xp.where(number == 0, 1.0, number)


def _squared_length(wiring: Wiring, x: Array) -> Array:
    return wiring.xp.sum(wiring.xp.square(x), axis=-1)


def _one_may_coincide(wiring: Wiring, product: Array, bounds: tuple[Array, Array]) -> Array:
    """Tell whether the product will do where each query may lie on one of the neighbours.

    No relative error bound holds for that distance. But what an order depends on is the difference
    to other distances of the query: an error that is small beside all of those does no harm.
    """
    xp, squared = wiring.xp, wiring.stop_gradient(product)
    bound = bounds[0] + bounds[1]
    near = bound > squared
    others = xp.min(xp.where(near, math.inf, squared), axis=-1, keepdims=True)
    alone = xp.sum(xp.astype(near, xp.int64), axis=-1) <= 1
    return xp.all(alone) & ~xp.any(near & (bound > others))


def _by_differences(wiring: Wiring, query: Array, neighbors: Array) -> Array:
    """Return the sums of squared differences, block by block."""
    xp = wiring.xp

    def block(query: Array, neighbors: Array) -> Array:
        return _squared_length(wiring, query[..., :, None, :] - neighbors[..., None, :, :])

    # A compiler makes one loop of it, in which no difference is ever stored.
    if wiring.fuses() or 0 in (*query.shape, *neighbors.shape):
        return block(query, neighbors)
    batch = max(math.prod(query.shape[:-2]), math.prod(neighbors.shape[:-2]))
    width = max(1, BLOCK // (batch * query.shape[-1] * min(QUERIES, query.shape[-2])))

    def of_queries(rows: Array) -> Array:
        some = take_along(wiring, query, rows[:, None], axis=-2)
        return wiring.by_parts(
            lambda columns: block(some, take_along(wiring, neighbors, columns[:, None], axis=-2)),
            arange_like(xp, neighbors.shape[-2], neighbors),
            width,
            -1,
        )

    return wiring.by_parts(of_queries, arange_like(xp, query.shape[-2], query), QUERIES, -2)
