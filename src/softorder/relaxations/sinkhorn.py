"""Learning latent permutations with Gumbel-Sinkhorn networks (Mena et al., ICLR 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softorder import _checks, _messages
from softorder._array import Array, Wiring, device_of, own_copy, read, widen, wiring_of
from softorder._kernels.dense import RowOperator, pick_rows
from softorder._kernels.doubly_stochastic import Balance
from softorder._kernels.on_cpu import assign
from softorder._permutation import Recipe, SoftPermutation
from softorder.relaxations.base import batch_temperature, check_temperature, snapshot


@dataclass(frozen=True, eq=False)
class Sinkhorn:
    r"""The matching of greatest total weight, relaxed: exp(X / tau), its rows and columns balanced.

    .. math:: S(X / \tau) = \lim_k (T_r \circ T_c)^k(\exp(X / \tau))

    Entry (i, j) of the square matrix X is how well item j suits position i. There are no scores, so
    this is not a `Relaxation`, and the operations do not take it. As tau goes to 0 the result goes
    to the permutation that `scipy.optimize.linear_sum_assignment` finds, which `hard()` gives. Each
    iteration costs O(n^2). `P.marginal_error()` tells how far the sums are from 1: the rows are
    right, the columns nearly.

    Args:
        tau: The temperature, in the units of X: a positive number, or an array with one value per
            batch row, which receives its gradient.
        iterations: How many iterations are done, if `tolerance` is None.
        tolerance: Come so close to the limit that each sum is 1 within this, instead of a fixed
            number of iterations (by Newton's method, O(n^3) a step). It looks at values, and cannot
            be compiled.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> P = so.Sinkhorn(tau=1.0)(np.array([[1.0, 3.0], [2.0, 1.0]]))
        >>> P.matrix().round(3)
        array([[0.182, 0.818],
               [0.818, 0.182]])
        >>> bool(P.marginal_error() < 1e-6)
        True
    """

    tau: float | Array = 1.0
    iterations: int = 20
    tolerance: float | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without a matrix."""
        check_temperature(self.tau)
        _checks.check_iterations(self.iterations)
        _checks.check_tolerance(self.tolerance)

    def __call__(self, matrix: Array) -> SoftPermutation:
        """Balance a batch of matrices.

        Args:
            matrix: (..., n, n), a floating dtype. -inf forbids a pair.

        Returns:
            A `SoftPermutation`; it has no scores, so that `sorted` and `sort_scores` are errors.
        """
        matrix = own_copy(read(matrix, "matrix"))
        wiring = wiring_of(matrix=matrix)
        _checks.check_floating(wiring.xp, matrix, "matrix")
        _checks.check_square(matrix.shape)
        if wiring.is_concrete(matrix):
            _checks.check_not_certain(wiring.xp, matrix)
        how = snapshot(self)
        return SoftPermutation(
            how._match(wiring, matrix),
            lambda: how._match(wiring, matrix),
            dim=-1,
            scores=matrix,
            recipe=Recipe(how),
        )

    def _match(self, wiring: Wiring, matrix: Array) -> _Matching:
        xp = wiring.xp
        tau: Any = self.tau
        if not isinstance(tau, _checks.REAL):
            tau = batch_temperature(tau, "tau", {"matrix": matrix}, matrix.shape[:-2], xp.float64)
        logits = xp.astype(matrix, xp.float64) / tau
        # A NaN makes its own matrix NaN, all of it.
        with_nan = xp.any(xp.isnan(logits), axis=(-2, -1), keepdims=True)
        logits = xp.where(with_nan, math.nan, logits)
        sums = xp.ones(matrix.shape[:-1], dtype=xp.float64, device=device_of(matrix))
        balance = Balance(wiring, logits, sums)
        log_p = balance.solve(xp.zeros_like(sums), self.iterations, self.tolerance)
        dtype = widen(xp, matrix).dtype
        return _Matching(wiring, logits, xp.astype(log_p, dtype))


def gumbel_sinkhorn(
    matrix: Array,
    how: Sinkhorn | float = 1.0,
    *,
    shape: Sequence[int] = (),
    noise: float = 1.0,
    generator: Any = None,
    key: Any = None,
) -> SoftPermutation:
    """Sample soft permutations: `Sinkhorn` of a matrix with Gumbel noise added to each entry.

    Args:
        matrix: (..., n, n), a floating dtype.
        how: A `Sinkhorn`, or its temperature.
        shape: Of the samples; it comes first in the result.
        noise: What the noise is multiplied by.
        generator: The framework's own source of random numbers; None for its default.
        key: In JAX, a key of jax.random instead.

    Returns:
        A `SoftPermutation` of shape (*shape, ..., n, n), differentiable in the matrix.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> P = so.gumbel_sinkhorn(np.eye(3), 0.5, shape=(7,), generator=np.random.default_rng(0))
        >>> P.shape
        (7, 3, 3)
    """
    wiring = wiring_of(matrix=matrix)
    xp = wiring.xp
    _checks.check_floating(xp, matrix, "matrix")
    _checks.check_square(matrix.shape)
    wide = widen(xp, matrix)
    samples = _checks.check_sample_shape(shape)
    source = _checks.random_source(wiring.random_source, generator, key)
    draws = wiring.gumbel((*samples, *matrix.shape), wide, source)
    sinkhorn = how if isinstance(how, Sinkhorn) else Sinkhorn(tau=how)
    return sinkhorn(xp.astype(wide + noise * draws, matrix.dtype))


class _Matching(RowOperator):
    """The balanced matrix. It has an order, but no scores."""

    def __init__(self, wiring: Wiring, logits: Array, log_matrix: Array) -> None:
        self.wiring = wiring
        self.valid = None
        self.shape = tuple(logits.shape[:-1])
        self.logits = logits
        self.log_matrix = log_matrix

    @property
    def order(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.wiring.call_on_cpu(assign, self.logits)

    def log_rows(self, rows: Array | None = None) -> Array:
        return pick_rows(self.wiring, self.log_matrix, rows)

    def sorted(self) -> Array:
        raise TypeError(_NO_SCORES)

    def sort_scores(self, *, flip: bool = False) -> Array:
        raise TypeError(_NO_SCORES)


_NO_SCORES = _messages.message(
    "sorted and sort_scores need a soft permutation that was made of scores",
    "one that was made of a matrix",
    "Apply it to what is to be moved: P @ v, or P.apply(x, dim).",
)
