"""Soft nearest neighbours."""

from __future__ import annotations

from softorder import _checks
from softorder._array import Array, Wiring, cast, count_valid, device_of, read, wiring_of
from softorder._kernels.distances import squared_distances
from softorder._ops.common import How, operation
from softorder._ops.selection import topk_mask


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
        weights = _class_probabilities(wiring, weights, labels, num_classes, mask)
    return cast(xp, weights, query.dtype)


def _class_probabilities(
    wiring: Wiring, weights: Array, labels: Array, num_classes: int | None, mask: Array | None
) -> Array:
    """Return the sums of the weights (..., q, m) of each class, (..., q, C)."""
    xp = wiring.xp
    _checks.check_labels(xp, labels, weights.shape)
    seen = labels if mask is None else xp.where(mask, labels, 0)
    classes = _checks.count_classes(xp, seen, num_classes, wiring.is_concrete(seen))
    of_class = seen[..., None] == xp.arange(classes, dtype=seen.dtype, device=device_of(seen))
    return wiring.matmul(weights, xp.astype(of_class, weights.dtype))
