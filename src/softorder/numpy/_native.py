"""The products of the native kernel for NumPy arrays, with their first derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from softorder._extension import cpu_threads, extension, make_call
from softorder._kernels.products import Call
from softorder._kernels.scores import SortedRows
from softorder.numpy._rules import jointly
from softorder.numpy._tape import value_of

# Not other byte orders, and not longdouble.
_DTYPES = (numpy.dtype(numpy.float32), numpy.dtype(numpy.float64))


def _contiguous(x: Any) -> Any:
    return numpy.ascontiguousarray(x) if isinstance(x, numpy.ndarray) else x


def _product(
    recorded: Sequence[bool],
    call: Call,
    scores: numpy.ndarray,
    values: numpy.ndarray | None,
    scale: numpy.ndarray | float,
    rows: SortedRows,
) -> Any:
    shapes = scores.shape, None if values is None else values.shape
    size = call.saved_size(*shapes) if any(recorded) else 0
    saved = numpy.empty(size) if size else None
    sorted_rows = tuple(map(_contiguous, (rows.sorted, rows.order, rows.counts)))
    held = make_call(
        call, sorted_rows, _contiguous(scale), _contiguous(values), saved, cpu_threads()
    )
    y = numpy.empty(call.result_shape(*shapes), scores.dtype)
    held.forward(y)

    def pull(g: numpy.ndarray) -> Any:
        _, of_scores, of_values, of_scale, _ = recorded
        to = (
            numpy.empty(scores.shape, g.dtype) if of_scores else None,
            numpy.empty(values.shape, g.dtype) if of_values and values is not None else None,
            numpy.empty(scores.shape[:1], numpy.float64) if of_scale else None,
        )
        held.backward(_contiguous(g), *to)
        return None, *to, None

    return y, pull


class NativeProducts:
    """The native kernel."""

    product = staticmethod(jointly(_product))

    @staticmethod
    def is_on_cpu(x: Any) -> bool:
        """Tell whether x is on the CPU."""
        return True

    @staticmethod
    def can_read(*arrays: Any) -> bool:
        """Tell whether the kernel has the dtypes of all arrays."""
        return all(
            x.dtype in _DTYPES for x in map(value_of, arrays) if isinstance(x, numpy.ndarray)
        )

    @staticmethod
    def sort(scores: Any, valid: numpy.ndarray | None) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the order of (rows, n) scores, and the sorted scores."""
        scores, valid = _contiguous(value_of(scores)), _contiguous(valid)
        order, positions = numpy.empty(scores.shape, numpy.int64), numpy.empty_like(scores)
        extension.sort(scores, valid, order, positions, cpu_threads())
        return order, positions
