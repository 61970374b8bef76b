"""Blocks of decreasing isotonic regression, by pooling adjacent violators: O(n).

Given sequences a and b, the solution v_1 >= v_2 >= ... is constant on blocks of neighbours and
falls from each block to the next. Its value on a block B is

    least squares ("l2")       mean of a_i - b_i over B
    Kullback-Leibler ("kl")    log sum exp a_i - log sum exp b_i, both over B

Only the blocks are found here. Everything else about v, its derivatives included, follows from
them by sums over blocks, which any framework can do. NumPy arrays in and out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from softorder._extension import cpu_threads, extension
from softorder._messages import describe, message


def pool_l2(x: numpy.ndarray) -> numpy.ndarray:
    """Return for each position where its block of least squares begins.

    Args:
        x: (..., 3, n), float64: a, b and the marks. Where a mark is not 0 a new segment begins, and
            no block reaches over its beginning. The first position always begins one. A NaN in a
            or b makes the blocks of its segment meaningless, but blocks they are.

    Returns:
        (..., n), int64: the index of the first position of each position's block.
    """
    return _pool(x, L2)


def pool_kl(x: numpy.ndarray) -> numpy.ndarray:
    """Return the same for Kullback-Leibler; numbers of any size are fine."""
    return _pool(x, KL)


def pool_portable(x: numpy.ndarray, kind: Kind) -> numpy.ndarray:
    """Return the same for L2 or KL without the native kernel."""
    rows = _rows(x)
    first = numpy.empty((rows.shape[0], rows.shape[2]), numpy.int64)
    for row, (a, b, begins) in enumerate(rows):
        first[row] = _pool_row(a.tolist(), b.tolist(), begins.tolist(), kind)
    return first.reshape(*x.shape[:-2], x.shape[-1])


@dataclass(frozen=True)
class Kind:
    """What isotonic regression minimises, as sums over the items of a block.

    Attributes:
        native: Name of the function of the native kernel.
        sums: Of a single item, `(a, b)`.
        add: Those of two neighbouring blocks, `(left, right)`.
        value: The solution on a block, `(sums, count)`.
    """

    native: str
    sums: Callable[[float, float], Any]
    add: Callable[[Any, Any], Any]
    value: Callable[[Any, int], float]


def _add_logs(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    """Return (top, sum), which stands for top + log(sum), of two such, top being the largest."""
    if left[0] < right[0]:
        left, right = right, left
    return left[0], left[1] + right[1] * math.exp(right[0] - left[0])


def _log_ratio(sums: Any, count: int) -> float:
    (top_a, sum_a), (top_b, sum_b) = sums
    return top_a - top_b + math.log(sum_a / sum_b)


L2 = Kind("pool_l2", operator.sub, operator.add, operator.truediv)
KL = Kind(
    "pool_kl",
    lambda a, b: ((a, 1.0), (b, 1.0)),
    lambda left, right: (_add_logs(left[0], right[0]), _add_logs(left[1], right[1])),
    _log_ratio,
)


def _pool_row(a: list[float], b: list[float], begins: list[float], kind: Kind) -> numpy.ndarray:
    """Return where the block of each position begins.

    Step by step what native/isotonic.hpp does, and the same to the last bit.
    """
    blocks: list[tuple[int, float, Any]] = []
    of_earlier_segments = 0
    for i, mark in enumerate(begins):
        if mark != 0:
            of_earlier_segments = len(blocks)
        sums = kind.sums(a[i], b[i])
        first, value = i, kind.value(sums, 1)
        while len(blocks) > of_earlier_segments and blocks[-1][1] <= value:
            first, left_value, left_sums = blocks.pop()
            sums = kind.add(left_sums, sums)
            # Two equal values stay as they are: a sum would round them, and split a long tie.
            if left_value != value:
                value = kind.value(sums, i + 1 - first)
        blocks.append((first, value, sums))
    firsts = numpy.array([first for first, _, _ in blocks], dtype=numpy.int64)
    return numpy.repeat(firsts, numpy.diff(firsts, append=len(a)))


def _pool(x: numpy.ndarray, kind: Kind) -> numpy.ndarray:
    if extension is None:
        return pool_portable(x, kind)
    rows = _rows(x)
    first = numpy.empty((rows.shape[0], rows.shape[2]), numpy.int64)
    getattr(extension, kind.native)(rows, first, cpu_threads())
    return first.reshape(*x.shape[:-2], x.shape[-1])


def _rows(x: numpy.ndarray) -> numpy.ndarray:
    """Return x as contiguous (rows, 3, n)."""
    if not isinstance(x, numpy.ndarray) or x.dtype != numpy.float64:
        raise TypeError(
            message(
                "x must be a NumPy array of float64",
                describe(x),
                "Convert first: x.astype(numpy.float64).",
            )
        )
    if x.ndim < 2 or x.shape[-2] != 3:
        raise ValueError(
            message(
                "x must have shape (..., 3, n)",
                f"shape {x.shape}",
                "Stack a, b and the marks: numpy.stack([a, b, begins], axis=-2).",
            )
        )
    return numpy.ascontiguousarray(x).reshape(math.prod(x.shape[:-2]), *x.shape[-2:])
