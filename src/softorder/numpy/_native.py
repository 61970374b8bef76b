"""The products of the native kernel for NumPy arrays, with their first derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from softorder._array import NativeProblem
from softorder._extension import cpu_threads, extension
from softorder._kernels.native import PRODUCTS, given_arrays
from softorder.numpy._rules import jointly
from softorder.numpy._tape import value_of


def _contiguous(x: Any) -> Any:
    return numpy.ascontiguousarray(x) if isinstance(x, numpy.ndarray) else x


def _product(
    recorded: Sequence[bool],
    kind: str,
    scores: numpy.ndarray,
    values: numpy.ndarray | None,
    scale: numpy.ndarray | float,
    problem: NativeProblem,
) -> Any:
    product = PRODUCTS[kind]
    p, values = problem, _contiguous(values)
    arrays = [_contiguous(a) for a in (p.positions, p.order, p.counts, scale)]
    given = given_arrays(*arrays, p.power, cpu_threads())  # pyright: ignore[reportCallIssue]
    shapes = scores.shape, None if values is None else values.shape
    kept = None
    if product.kept is not None and any(recorded):
        kept = numpy.empty(product.kept(*shapes))
    y = numpy.empty(product.shape(*shapes), scores.dtype)
    product.forward(given, values, y, kept)

    def pull(g: numpy.ndarray) -> Any:
        _, of_scores, of_values, of_scale, _ = recorded
        to = (
            numpy.empty(scores.shape, g.dtype) if of_scores else None,
            numpy.empty(values.shape, g.dtype) if of_values and values is not None else None,
            numpy.empty(scores.shape[:1], numpy.float64) if of_scale else None,
        )
        product.backward(given, values, _contiguous(g), *to, kept)
        return None, *to, None

    return y, pull


class NativeProducts:
    """The native kernel."""

    product = staticmethod(jointly(_product))

    @staticmethod
    def sort(scores: Any, valid: numpy.ndarray | None) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Return the order of (rows, n) scores, and the sorted scores."""
        scores, valid = _contiguous(value_of(scores)), _contiguous(valid)
        order, positions = numpy.empty(scores.shape, numpy.int64), numpy.empty_like(scores)
        extension.sort(scores, valid, order, positions, cpu_threads())
        return order, positions
