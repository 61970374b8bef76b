"""The reference: the paper's formula, with the matrix built in full. O(n^2) time and memory.

Every other engine is compared with this one, and this one with the oracle in tests/.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

from softorder import _checks
from softorder._array import (
    Array,
    Wiring,
    any_infinite,
    arange_like,
    count_valid,
    device_of,
    take_along,
)
from softorder._kernels.cache import Cache
from softorder._kernels.operator import Operator, ScoresOperator
from softorder._kernels.scores import MASKED, SortedScores, pick
from softorder._kernels.spec import RowSoftmax


class RowOperator(Operator):
    """P that can give its rows: everything else follows from them."""

    @abstractmethod
    def log_rows(self, rows: Array | None = None) -> Array: ...

    def rows(self, rows: Array | None = None) -> Array:
        return self.wiring.xp.exp(self.log_rows(rows))

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        return multiply(self.wiring, self.rows(rows), v)

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        return multiply(self.wiring, self.wiring.xp.matrix_transpose(self.rows(rows)), u)

    def log_prob(self, permutation: Array) -> Array:
        xp, log_p = self.wiring.xp, self.log_entries(permutation)
        if self.valid is not None:
            position = arange_like(xp, log_p.shape[-1], log_p)
            log_p = xp.where(position < count_valid(xp, self.valid), log_p, 0.0)
        return xp.sum(log_p, axis=-1)

    def log_entries(self, permutation: Array) -> Array:
        """Return log P[i, permutation_i] at each position i, (..., n)."""
        return take_along(self.wiring, self.log_rows(), permutation[..., :, None], axis=-1)[..., 0]

    def entropy(self, rows: Array | None = None) -> Array:
        xp = self.wiring.xp
        log_p = self.log_rows(rows)
        # Where p underflows to 0, so does p log p; where log p is -inf the product would be NaN.
        p = xp.exp(log_p)
        return 0.0 - xp.sum(p * xp.where(p == 0, 0.0, log_p), axis=-1)


class Dense(ScoresOperator, RowOperator):
    """P whose rows are softmaxes: P[i] = softmax(logits_i), within the blocks of the scores."""

    def __init__(self, softmax: RowSoftmax, scores: SortedScores) -> None:
        """Hold what the rows are made of; nothing is computed yet."""
        super().__init__(scores)
        self.softmax = softmax

    def log_rows(self, rows: Array | None = None) -> Array:
        scores = self.scores
        other, logits = scores.in_other_blocks(rows), self.softmax.logits(scores, rows)
        _checks.check_logits(logits, other.shape)
        logits = self.wiring.xp.where(other, -math.inf, logits)
        padding = pick(self.wiring, scores.position_block, rows)[..., :, None] == MASKED
        return log_softmax(self.wiring, logits, padding)


class ExplicitMatrix(ScoresOperator, RowOperator):
    """P that is only known as a whole: its logarithm is computed once, when it is asked for."""

    def __init__(self, scores: SortedScores, log_matrix: Callable[[], Array]) -> None:
        """Hold the matrix.

        Args:
            scores: The sorted scores.
            log_matrix: Gives log P, (..., n, n), in any dtype.
        """
        super().__init__(scores)
        self._make = log_matrix
        self._cache = Cache(scores.wiring)

    def log_rows(self, rows: Array | None = None) -> Array:
        return pick_rows(self.wiring, self.log_matrix, rows)

    @property
    def log_matrix(self) -> Array:
        return self._cache.get("log_matrix", self._make)


class GroupedMatrix(ExplicitMatrix):
    """P with neighbouring positions in groups: all rows of a group are the same."""

    def __init__(self, scores: SortedScores, group: Array, log_matrix: Callable[[], Array]) -> None:
        """Hold the rows of the groups.

        Args:
            scores: The sorted scores.
            group: (..., n) the number of each position's group.
            log_matrix: Gives the logarithm of the rows, (..., groups, n).
        """
        super().__init__(scores, log_matrix)
        self.group = group

    def log_rows(self, rows: Array | None = None) -> Array:
        return super().log_rows(pick(self.wiring, self.group, rows))

    def apply(self, v: Array, rows: Array | None = None) -> Array:
        y = multiply(self.wiring, self.wiring.xp.exp(self.log_matrix), v)
        return take_along(
            self.wiring, y, pick(self.wiring, self.group, rows)[..., :, None], axis=-2
        )

    def apply_transposed(self, u: Array, rows: Array | None = None) -> Array:
        xp = self.wiring.xp
        group = pick(self.wiring, self.group, rows)
        u = self.wiring.add_along_axis(u, group, self.log_matrix.shape[-2])
        return multiply(self.wiring, xp.matrix_transpose(xp.exp(self.log_matrix)), u)


def pick_rows(wiring: Wiring, matrix: Array, rows: Array | None) -> Array:
    """Return some rows of a cached matrix, or a copy of all of them, which may be written to."""
    if rows is None:
        return wiring.copy(matrix)
    return take_along(wiring, matrix, rows[..., :, None], axis=-2)


def log_softmax(wiring: Wiring, logits: Array, padding: Array) -> Array:
    """Return log softmax over the last axis.

    Rows of `padding` (..., k, 1) have no item: they stay -inf. Any other row whose logits have
    all overflowed becomes NaN; it must not pass for one of them.
    """
    xp = wiring.xp
    if logits.shape[-1] == 0:
        return logits
    largest = wiring.stop_gradient(xp.max(logits, axis=-1, keepdims=True))
    shifted = logits - xp.where(padding, 0.0, largest)
    total = xp.sum(xp.exp(shifted), axis=-1, keepdims=True)
    log_p = shifted - xp.log(xp.where(padding, 1.0, total))
    # What cannot be is a constant: the sum of its row has no part in it.
    return xp.where(log_p == -math.inf, -math.inf, log_p)


def multiply(wiring: Wiring, matrix: Array, v: Array) -> Array:
    """Return matrix @ v for a matrix of weights, where zero times infinity counts as zero."""
    xp = wiring.xp
    dtype = xp.result_type(matrix, v)
    matrix, v = xp.astype(matrix, dtype), xp.astype(v, dtype)

    def product(x: Array) -> Array:
        return wiring.matmul(matrix, x)

    return extended_product(wiring, product, lambda ends: product(ends) > 0, v)


def extended_product(
    wiring: Wiring,
    product: Callable[[Array], Array],
    reached: Callable[[Array], Array],
    v: Array,
) -> Array:
    """Return product(v), where zero times infinity counts as zero.

    Args:
        wiring: The framework of the arrays.
        product: Linear in v, with weights of at least zero.
        reached: Where the product of an indicator (0 or 1) is more than zero.
        v: May hold infinities.
    """
    if not any_infinite(wiring, v):
        return product(v)
    xp = wiring.xp
    y = product(xp.where(xp.isinf(v), 0.0, v))
    for end in (math.inf, -math.inf):
        here = reached(xp.astype(v == end, v.dtype))
        y = y + xp.where(here, xp.asarray(end, dtype=y.dtype, device=device_of(v)), 0.0)
    return y
