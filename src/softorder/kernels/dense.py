"""The reference: the paper's formula, with the matrix built in full. O(n^2) time and memory.

Every other kernel is compared with this one, and this one with the oracle in tests/.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from softorder import _checks
from softorder._array import Array, Wiring, any_infinite, take_along
from softorder.kernels.operator import Operator
from softorder.kernels.scores import MASKED, SortedScores, pick


class RowSoftmax(Operator):
    """P whose rows are softmaxes: P[i] = softmax(logits_i), within the blocks of the scores."""

    def __init__(self, scores: SortedScores, logits: Callable[[Array | None], Array]) -> None:
        """Hold what the rows are made of; nothing is computed yet.

        Args:
            scores: The sorted scores.
            logits: Maps `rows` (None or positions) to logits of shape (..., k, n). It sees finite
                scores only; blocks and masks are applied here.
        """
        self.wiring = scores.wiring
        self.order = scores.order
        self.valid = scores.valid
        self.scores = scores
        self.logits = logits

    def log_rows(self, rows: Array | None = None) -> Array:
        xp = self.wiring.xp
        here = pick(self.wiring, self.scores.position_block, rows)[..., :, None]
        apart = (here != self.scores.block[..., None, :]) | (here == MASKED)
        return log_softmax(self.wiring, xp.where(apart, -math.inf, self.logits(rows)))

    def rows(self, rows: Array | None = None) -> Array:
        return self.wiring.xp.exp(self.log_rows(rows))

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        return multiply(self.wiring, self.rows(rows), v)

    def apply_transposed(self, u: Array) -> Array:
        return multiply(self.wiring, self.wiring.xp.matrix_transpose(self.rows()), u)

    def log_prob(self, permutation: Array) -> Array:
        xp = self.wiring.xp
        log_p = take_along(self.wiring, self.log_rows(), permutation[..., :, None], axis=-1)[..., 0]
        return xp.sum(xp.where(self.scores.position_block == MASKED, 0.0, log_p), axis=-1)

    def entropy(self) -> Array:
        xp = self.wiring.xp
        log_p = self.log_rows()
        # Where p underflows to 0, so does p log p; where log p is -inf the product would be NaN.
        p = xp.exp(log_p)
        return -xp.sum(p * xp.where(p == 0, 0.0, log_p), axis=-1)


def log_softmax(wiring: Wiring, logits: Array) -> Array:
    """Return log softmax over the last axis; a row of -inf alone stays -inf (a zero row)."""
    xp = wiring.xp
    if logits.shape[-1] == 0:
        return logits
    largest = wiring.stop_gradient(xp.max(logits, axis=-1, keepdims=True))
    shifted = logits - xp.where(largest == -math.inf, 0.0, largest)
    total = xp.sum(xp.exp(shifted), axis=-1, keepdims=True)
    return shifted - xp.log(xp.where(total == 0, 1.0, total))


def multiply(wiring: Wiring, matrix: Array, v: Array) -> Array:
    """Return matrix @ v for a non-negative matrix, where zero times infinity counts as zero."""
    xp = wiring.xp
    dtype = xp.result_type(matrix, v)
    matrix, v = xp.astype(matrix, dtype), xp.astype(v, dtype)
    if not any_infinite(wiring, v):
        return wiring.matmul(matrix, v)
    y = wiring.matmul(matrix, xp.where(xp.isinf(v), 0.0, v))
    for end in (math.inf, -math.inf):
        reached = wiring.matmul(matrix, xp.astype(v == end, dtype)) > 0
        y = y + xp.where(reached, xp.asarray(end, dtype=dtype, device=v.device), 0.0)
    return y


def distance(
    wiring: Wiring, metric: float | Callable[[Array, Array], Array], a: Array, b: Array
) -> Array:
    """Return d(a, b) for a of shape (..., k, 1) and b of shape (..., 1, n).

    d(a, a) is the constant 0: coincident pairs are kept away from the metric, so that they
    contribute nothing to any derivative, not even a NaN.

    Args:
        wiring: The framework of the arrays.
        metric: A power p for |a - b|^p, or a callable on arrays of one shape.
        a: The sorted scores.
        b: The scores of the items.
    """
    xp = wiring.xp
    # These two have the right derivatives at 0 as they stand.
    if metric == 1.0:
        return xp.abs(a - b)
    if metric == 2.0:
        return xp.square(a - b)
    coincide = a == b
    # Any two different numbers would do; these two are in the domain of log, sqrt and logit too.
    a, b = xp.where(coincide, 0.25, a), xp.where(coincide, 0.75, b)
    if callable(metric):
        d = metric(a, b)
        _checks.check_distance(d, coincide.shape)
    else:
        d = xp.abs(a - b) ** metric
    return xp.where(coincide, 0.0, d)
