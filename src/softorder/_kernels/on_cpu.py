"""Decisions that are taken one row after the other, on the CPU, whatever the framework.

Each maps float64 (..., k, n) to indices (..., n). Indices have no derivative; what is computed
with them has.
"""

from __future__ import annotations

import numpy
from scipy.optimize import linear_sum_assignment

from softorder._kernels.isotonic import pool_kl, pool_l2


def assign(weights: numpy.ndarray) -> numpy.ndarray:
    """Return the permutation of greatest total weight: for each row of (..., n, n), its column."""
    weights = numpy.nan_to_num(weights, nan=0.0, posinf=numpy.inf, neginf=-numpy.inf)
    finite = numpy.where(numpy.isfinite(weights), weights, 0.0)
    # Beyond any sum of finite ones, so that a forbidden pair is taken only where it must be.
    beyond = weights.shape[-1] * (numpy.ptp(finite, axis=(-2, -1), keepdims=True) + 1.0)
    weights = numpy.where(numpy.isfinite(weights), weights, numpy.sign(weights) * beyond)
    columns = numpy.empty(weights.shape[:-1], dtype=numpy.int64)
    for row in numpy.ndindex(*weights.shape[:-2]):
        columns[row] = linear_sum_assignment(weights[row], maximize=True)[1]
    return columns


FUNCTIONS = {function.__name__: function for function in (assign, pool_kl, pool_l2)}
