"""Products with P by the native kernel: native/ in C++, float32 and float64 on the CPU.

What is here is the part that every framework shares. The recurrences and the first derivatives
are in native/softsort.hpp; derivatives of higher order, forward mode and vmap are those of the
portable kernel (scan.py), which is the same mathematics in array operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from softorder._array import Array, NativeProblem, cast, count_valid
from softorder._extension import cpu_threads, extension
from softorder.kernels.dense import RowSoftmax
from softorder.kernels.exponentials import TABLES, Exponentials
from softorder.kernels.scan import Scan
from softorder.kernels.scores import SortedScores


def is_built() -> bool:
    """Tell whether the native kernel was built."""
    return extension is not None


class NativeScan(Scan):
    """`Scan` with its products in C++."""

    def __init__(
        self, scores: SortedScores, scale: Any, kernel: Exponentials, dense: RowSoftmax
    ) -> None:
        """Sort the scores; see `Scan`."""
        super().__init__(scores, scale, kernel, dense)
        self._problem: NativeProblem | None = None
        x = scores.scores
        if self.wiring.is_plain(x):
            self._sort(x)

    def _sort(self, x: Array) -> None:
        scores, xp = self.scores, self.wiring.xp
        shape = scores.shape
        flat = _rows(xp, x, shape)
        valid = None if scores.valid is None else _rows(xp, scores.valid, shape)
        order, positions = (self.wiring.native or NUMPY).sort(flat, valid)
        if len(shape) != 2:
            order, positions = xp.reshape(order, shape), xp.reshape(positions, shape)
        scores.set_order(order, positions)

    def sort_scores(self, *, flip: bool = False) -> Array | None:
        return self._product("sort_scores_flipped" if flip else "sort_scores", None)

    def _mean(self, v: Array) -> Array:
        y = self._product("apply", v)
        return super()._mean(v) if y is None else y

    def _spread(self, u: Array) -> Array:
        w = self._product("apply_transposed", u)
        return super()._spread(u) if w is None else w

    def _log_z(self) -> Array:
        none = self.wiring.stop_gradient(self.scores.scores)[..., None][..., :0]
        log_z = self._product("log_z", none)
        return super()._log_z() if log_z is None else log_z

    def _product(self, kind: str, values: Array | None) -> Array | None:
        """Return a product of PRODUCTS, or None where the native kernel cannot serve."""
        scores, wiring = self.scores, self.wiring
        plain = scores.plain_positions
        if plain is None or not wiring.is_plain(x := scores.scores, values, self.scale):
            return None
        xp, dtype, shape = wiring.xp, plain.dtype, tuple(plain.shape)
        if values is not None:
            shape = (*_broadcast(values.shape[:-2], shape[:-1]), shape[-1])
            dtype = values.dtype
        problem = self._problem
        if problem is None or problem.positions.dtype != dtype or problem.shape != shape:
            problem = self._problem = self._flatten(shape, dtype)
        flat = _rows(xp, cast(xp, x, dtype), shape)
        scale = self.scale
        if not isinstance(scale, float):
            scale = xp.reshape(xp.broadcast_to(scale, (*shape[:-1], 1)), (-1,))
            scale = cast(xp, scale, xp.float64)
        if values is not None and (values.ndim != 3 or tuple(values.shape[:-1]) != shape):
            features = values.shape[-1]
            values = xp.broadcast_to(values, (*shape, features))
            values = xp.reshape(values, (*flat.shape, features))
        y = (wiring.native or NUMPY).product(kind, flat, values, scale, problem)
        return y if len(shape) == 2 else xp.reshape(y, (*shape, *y.shape[2:]))

    def _flatten(self, shape: tuple[int, ...], dtype: Any) -> NativeProblem:
        """Return the problem for scores broadcast to `shape`, as rows."""
        xp, scores = self.wiring.xp, self.scores
        counts = None
        if scores.valid is not None:
            counts = xp.broadcast_to(count_valid(xp, scores.valid)[..., 0], shape[:-1])
            counts = xp.reshape(counts, (-1,))
        return NativeProblem(
            shape=shape,
            positions=_rows(xp, cast(xp, scores.plain_positions, dtype), shape),
            order=_rows(xp, scores.order, shape),
            counts=counts,
            power=self.kernel.power,
            # Not a method: an operator that held itself would outlive its last use.
            recompute=functools.partial(_recompute, scores, self.kernel, self.dense, shape),
        )


def _recompute(
    scores: SortedScores,
    kernel: Exponentials,
    dense: RowSoftmax,
    shape: tuple[int, ...],
    kind: str,
    *arrays: Array,
) -> Array:
    """Return a product of flat arrays by the portable kernel."""
    flat, values, scale = arrays
    xp, valid = scores.wiring.xp, scores.valid
    again = SortedScores(scores.wiring, flat, None if valid is None else _rows(xp, valid, shape))
    again.set_order(_rows(xp, scores.order, shape), flat)
    scale = scale if isinstance(scale, float) else scale[..., None]
    return PRODUCTS[kind].portable(Scan(again, scale, kernel, dense), values)


def _rows(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x, broadcast to `shape`, as (rows, n)."""
    if tuple(x.shape) != shape:
        x = xp.broadcast_to(x, shape)
    return x if x.ndim == 2 else xp.reshape(x, (math.prod(shape[:-1]), shape[-1]))


def _broadcast(a: Any, b: Any) -> tuple[int, ...]:
    a, b = tuple(a), tuple(b)
    return a if a == b else tuple(numpy.broadcast_shapes(a, b))


@dataclass(frozen=True)
class Product:
    """One product of the native kernel: NumPy arrays in, results written to NumPy arrays.

    Attributes:
        shape: Of the output; given the shape of the scores, and that of the values or None.
        forward: `(given, values, out)`.
        backward: `(given, values, g, to_scores, to_values, to_scale)`; what is None is not asked
            for.
        portable: The same, by a `Scan`: `(scan, values)`.
    """

    shape: Callable[[Sequence[int], Any], Sequence[int]]
    forward: Callable[..., None]
    backward: Callable[..., None]
    portable: Callable[[Scan, Any], Array]


def _products(ext: Any) -> dict[str, Product]:
    def sort_scores(given: Any, values: None, out: numpy.ndarray) -> None:
        ext.apply(*given, None, out[..., None], None)

    def sort_scores_backward(given: Any, values: None, g: numpy.ndarray, *to: Any) -> None:
        ext.apply_backward(*given, None, g[..., None], None, *to)

    # Not the framework's flip: that would start its threads, which hang in a forked child.
    def sort_scores_flipped(given: Any, values: None, out: numpy.ndarray) -> None:
        sort_scores(given, values, out)
        out[...] = out[..., ::-1].copy()

    def sort_scores_flipped_backward(given: Any, values: None, g: numpy.ndarray, *to: Any) -> None:
        sort_scores_backward(given, values, numpy.ascontiguousarray(g[..., ::-1]), *to)

    def own(scan: Scan) -> Array:
        return scan._mean(scan.scores.scores[..., None])[..., 0]

    def log_z(given: Any, values: numpy.ndarray, out: numpy.ndarray) -> None:
        ext.apply(*given, values, numpy.empty_like(values), out)

    def log_z_backward(given: Any, values: numpy.ndarray, g: numpy.ndarray, *to: Any) -> None:
        ext.apply_backward(*given, values, None, g, *to)

    return {
        "sort_scores": Product(
            lambda scores, values: scores,
            sort_scores,
            sort_scores_backward,
            lambda scan, values: own(scan),
        ),
        "sort_scores_flipped": Product(
            lambda scores, values: scores,
            sort_scores_flipped,
            sort_scores_flipped_backward,
            lambda scan, values: scan.wiring.xp.flip(own(scan), axis=-1),
        ),
        "apply": Product(
            lambda scores, values: values,
            lambda given, v, y: ext.apply(*given, v, y, None),
            lambda given, v, g, *to: ext.apply_backward(*given, v, g, None, *to),
            lambda scan, v: scan._mean(v),
        ),
        "apply_transposed": Product(
            lambda scores, values: values,
            lambda given, u, w: ext.apply_transposed(*given, u, w),
            lambda given, u, g, *to: ext.apply_transposed_backward(*given, u, g, *to),
            lambda scan, u: scan._spread(u),
        ),
        "log_z": Product(
            lambda scores, values: scores,
            log_z,
            log_z_backward,
            lambda scan, values: scan._log_z(),
        ),
    }


PRODUCTS = _products(extension)


def given_arrays(
    positions: numpy.ndarray,
    order: numpy.ndarray,
    counts: numpy.ndarray | None,
    scale: numpy.ndarray | float,
    power: float,
    threads: int,
) -> tuple[Any, ...]:
    """Return what every function of the extension is given first."""
    if isinstance(scale, float):
        scale = numpy.array([scale])
    return positions, order, counts, scale, TABLES[power], threads


class _Numpy:
    """The native products of NumPy arrays: values only."""

    def sort(
        self, scores: numpy.ndarray, valid: numpy.ndarray | None
    ) -> tuple[numpy.ndarray, numpy.ndarray]:
        scores = numpy.ascontiguousarray(scores)
        valid = None if valid is None else numpy.ascontiguousarray(valid)
        order, positions = numpy.empty(scores.shape, numpy.int64), numpy.empty_like(scores)
        extension.sort(scores, valid, order, positions, cpu_threads())
        return order, positions

    def product(
        self, kind: str, scores: Array, values: Array, scale: Any, problem: NativeProblem
    ) -> numpy.ndarray:
        product = PRODUCTS[kind]
        shape = product.shape(scores.shape, None if values is None else values.shape)
        out = numpy.empty(shape, scores.dtype)
        arrays = (problem.positions, problem.order, problem.counts, scale, values)
        *arrays, values = (
            numpy.ascontiguousarray(a) if isinstance(a, numpy.ndarray) else a for a in arrays
        )
        product.forward(given_arrays(*arrays, problem.power, cpu_threads()), values, out)
        return out


NUMPY = _Numpy()
