"""Matrices made doubly stochastic, in the log domain, in float64 where there is one.

Sinkhorn's iterations give the columns their sums, then the rows, so that the rows are right at the
end and what is left of the error is in the columns. A fixed number of them can be differentiated as
it is. A tolerance is reached by Newton's method, of which the last two steps are differentiated:
that gives the derivatives of the limit (_kernels/README.md).
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from softorder import _messages
from softorder._array import Array, Wiring, device_of
from softorder._kernels.dense import log_softmax

# A matrix of more entries is recomputed in the backward pass instead of being stored.
_STORED_ENTRIES = 1 << 14
_MOST_STEPS = 500
# While the temperature still falls, the sums need not be exact.
_ROUGH = 0.05
# In units of rounding. Newton's matrix is singular, for potentials are known up to a constant.
_RIDGE = 450
# In units of rounding: how much worse the dual may look once it has converged.
_NO_LOSS = 4500


class Balance:
    """The problem: find f and g such that exp(logits + f + g) has the sums that are asked for."""

    def __init__(self, wiring: Wiring, logits: Array, row_sums: Array) -> None:
        """Hold the problem.

        Args:
            wiring: The framework of the arrays.
            logits: (..., m, n), in float64 where there is one; -inf for a pair that must have no
                weight. A row or a column that has none but these takes no part.
            row_sums: (..., m) in the same dtype. The columns sum to 1.
        """
        self.wiring = wiring
        self.logits = logits
        self.row_sums = row_sums
        if self._is_empty():
            return
        xp = wiring.xp
        self._rounding = float(xp.finfo(logits.dtype).eps)
        none = logits == -math.inf
        self._no_row, self._no_column = xp.all(none, axis=-1), xp.all(none, axis=-2)
        # Rows and columns that take no part get finite logits, not used: -inf would give NaN.
        self._for_rows = xp.where(self._no_row[..., :, None], 0.0, logits)
        self._for_columns = xp.where(self._no_column[..., None, :], 0.0, logits)
        self._log_row_sums = xp.log(xp.where(self._no_row, 1.0, row_sums))

    def solve(self, g: Array, iterations: int, tolerance: float | None) -> Array:
        """Return the logarithm of the matrix, from g (..., m): `converge` if given a tolerance."""
        return self.iterate(g, iterations) if tolerance is None else self.converge(g, tolerance)

    def iterate(self, g: Array, iterations: int) -> Array:
        """Return the logarithm of the matrix after some iterations from g (..., m)."""
        if self._is_empty():
            return self.logits
        f = self.wiring.fold(
            lambda f, _: self._columns(self._rows(f)), self._columns(g), range(iterations - 1)
        )
        return self._log_matrix(f)

    def converge(self, g: Array, tolerance: float) -> Array:
        """Return the logarithm of the matrix whose columns sum to 1 within the tolerance.

        From a high temperature, each half the one before, to the one that is asked for.

        Args:
            g: (..., m) to begin with.
            tolerance: The largest error of a sum.
        """
        if self._is_empty():
            return self.logits
        constant = self._at(0, self.wiring.stop_gradient)
        constant._check_concrete()
        halvings = constant._halvings()
        g = self.wiring.stop_gradient(g) * 2.0**-halvings
        for halving in range(halvings, 0, -1):
            g = 2 * constant._at(halving)._approach(g, max(_ROUGH, tolerance))[0]
        g, error = constant._approach(g, tolerance)
        if error > tolerance:
            warnings.warn(
                _messages.message(
                    f"the sums of the matrix were to reach the tolerance {tolerance:g}",
                    f"an error of {error:.3g} after {_MOST_STEPS} steps",
                    "Raise the temperature or the tolerance, or give iterations= instead.",
                ),
                RuntimeWarning,
                stacklevel=2,
            )
        for _ in range(2):
            g = g + self._newton(g)[0]
        return self._log_matrix(self._columns(g))

    def _at(self, halving: int, change: Any = lambda x: x) -> Balance:
        """Return the same problem at a higher temperature."""
        return Balance(self.wiring, change(self.logits) * 2.0**-halving, change(self.row_sums))

    def _approach(self, g: Array, tolerance: float) -> tuple[Array, float]:
        """Step until the columns are right; return g and the error that is left."""
        error = math.inf
        for _ in range(_MOST_STEPS):
            f = self._columns(g)
            g = self._rows(f)
            error = self._error(f, self._columns(g))
            if error <= tolerance:
                break
            g = g + self._damped(g, *self._newton(g))
        return g, error

    def _newton(self, g: Array) -> tuple[Array, Array]:
        """Return Newton's step for g, and how fast the dual falls along it.

        With the columns right, the sums of the rows of K have the derivative diag(K 1) - K K^T.
        """
        wiring = self.wiring
        xp = wiring.xp
        K = xp.exp(self.logits + self._columns(g)[..., None, :] + g[..., :, None])
        sums = xp.sum(K, axis=-1)
        residual = xp.where(self._no_row, 0.0, self.row_sums - sums)
        eye = xp.eye(K.shape[-2], dtype=K.dtype, device=device_of(K))
        ridge = xp.where(self._no_row, 1.0, _RIDGE * self._rounding * self.row_sums)
        matrix = eye * (sums + ridge)[..., :, None] - wiring.matmul(K, xp.matrix_transpose(K))
        # A row with a NaN has no step; the solver would refuse it.
        with_nan = xp.any(xp.isnan(residual), axis=-1)
        matrix = xp.where(with_nan[..., None, None], eye, matrix)
        step = xp.linalg.solve(matrix, residual[..., None])[..., 0]
        return step, xp.sum(residual * step, axis=-1)

    def _damped(self, g: Array, step: Array, slope: Array) -> Array:
        """Return so much of a step that the dual, which is convex, falls enough."""
        xp = self.wiring.xp
        before, size = self._dual(g), xp.ones_like(slope)
        for _ in range(40):
            worse = self._dual(g + size[..., None] * step) > before - 1e-4 * size * slope
            # Once it has converged, rounding must not look like a loss.
            worse = worse & (slope > _NO_LOSS * self._rounding)
            if not bool(xp.any(worse)):
                break
            size = xp.where(worse, 0.5 * size, size)
        return size[..., None] * step

    def _dual(self, g: Array) -> Array:
        xp = self.wiring.xp
        gain = xp.sum(xp.where(self._no_row, 0.0, self.row_sums * g), axis=-1)
        return -xp.sum(self._columns(g), axis=-1) - gain

    def _columns(self, g: Array) -> Array:
        """Return f such that the columns sum to 1."""
        sums = self._log_sum_exp(self._for_columns, g[..., :, None], axis=-2)
        return self.wiring.xp.where(self._no_column, 0.0, -sums)

    def _rows(self, f: Array) -> Array:
        """Return g such that the rows have their sums."""
        sums = self._log_sum_exp(self._for_rows, f[..., None, :], axis=-1)
        return self.wiring.xp.where(self._no_row, 0.0, self._log_row_sums - sums)

    def _log_sum_exp(self, logits: Array, potential: Array, axis: int) -> Array:
        def reduce(potential: Array) -> Array:
            return self.wiring.logsumexp(logits + potential, axis)

        if self.wiring.sizes_may_vary(logits.shape) or math.prod(logits.shape) <= _STORED_ENTRIES:
            return reduce(potential)
        return self.wiring.checkpoint(reduce, potential)

    def _log_matrix(self, f: Array) -> Array:
        """Return the logarithm of the rows as distributions, which sum to 1 whatever f is."""
        padding = self._no_row[..., :, None]
        return log_softmax(self.wiring, self.logits + f[..., None, :], padding)

    def _error(self, f: Array, following: Array) -> float:
        """Return the largest error of a column sum, for f and what it would be after it."""
        xp = self.wiring.xp
        error = self.wiring.stop_gradient(xp.abs(xp.expm1(f - following)))
        error = xp.where(xp.isnan(error), math.inf, error)
        # A matrix that came with a NaN must not stop the others.
        with_nan = xp.any(xp.isnan(self.logits), axis=-1) | xp.isnan(self.row_sums)
        with_nan = xp.any(with_nan, axis=-1, keepdims=True)
        return float(xp.max(xp.where(with_nan, 0.0, error)))

    def _halvings(self) -> int:
        """Return how often the temperature must be doubled for the matrix to be smooth."""
        xp = self.wiring.xp
        logits = self.wiring.stop_gradient(self.logits)
        finite = xp.where(xp.isfinite(logits), logits, 0.0)
        spread = float(xp.max(finite)) - float(xp.min(finite))
        # Bounded, for an infinite spread has no logarithm.
        return max(0, math.ceil(math.log2(min(max(spread, 1.0), 1e300) / 8)))

    def _is_empty(self) -> bool:
        return math.prod(self.logits.shape) == 0

    def _check_concrete(self) -> None:
        if not self.wiring.is_concrete(self.logits):
            raise _messages.value_error(
                "tolerance= looks at values after each iteration",
                "values that cannot be looked at (compiled, vmap, torch.func, another device)",
                "Give the number of iterations instead, and leave tolerance=None.",
            )
