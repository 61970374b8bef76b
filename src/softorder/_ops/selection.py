"""Softly select: the k largest, the items among them, the nearest neighbours."""

from __future__ import annotations

from softorder import _checks
from softorder._array import Array, cast, count_valid, device_of, move_axis, read, widen, wiring_of
from softorder._kernels.distances import squared_distances
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


@operation()
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
    # Where fewer than k candidates take part, only their rows are averaged.
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
