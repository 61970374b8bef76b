"""Products with P by the native kernel: native/ in C++, float32 and float64 on the CPU.

What is here is the part that every framework and every relaxation shares. The sums and the first
derivatives are in native/ (softsort.hpp, neuralsort.hpp, likelihood.hpp); derivatives of higher
order, forward mode and vmap are those of an operator that is the same mathematics in array
operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from softorder._array import (
    Array,
    NativeProblem,
    Wiring,
    arange_like,
    broadcast_shapes,
    cast,
    count_valid,
)
from softorder._extension import extension
from softorder._kernels.dense import OfScores, RowSoftmax, distance
from softorder._kernels.operator import Operator
from softorder._kernels.profiles import BY_POWER, TABLES, Exponentials
from softorder._kernels.scan import Scan
from softorder._kernels.scores import SortedScores
from softorder._kernels.tiled import Tiled, log_own


def is_built() -> bool:
    """Tell whether the native kernel was built."""
    return extension is not None


def serves(wiring: Wiring) -> bool:
    """Tell whether it was, and can read the arrays of a framework."""
    return extension is not None and _native(wiring) is not None


def _native(wiring: Wiring) -> Any:
    # For those who know that it serves.
    return wiring.native


class Native(OfScores):
    """What an operator with products in C++ is made of.

    Attributes:
        scale: What scores are divided by: a number, or an array that broadcasts against (..., n).
    """

    scale: Any

    def _start(
        self, prefix: str, power: float, rebuild: Callable[[SortedScores, Any], Operator]
    ) -> None:
        """Sort the scores, if the native kernel can read them.

        Args:
            prefix: What the names of its products in PRODUCTS begin with.
            power: As in `NativeProblem`.
            rebuild: As in `NativeProblem`. It holds no arrays.
        """
        self._prefix, self._power, self._rebuild = prefix, power, rebuild
        self._problem: NativeProblem | None = None
        self._trace = self.wiring.trace()
        is_sorted = self.scores.plain_positions is not None
        if not is_sorted and self.wiring.is_plain(self.scores.scores):
            self._sort(self.scores.scores)

    def _sort(self, x: Array) -> None:
        scores, xp = self.scores, self.wiring.xp
        shape = scores.shape
        flat = _rows(xp, x, shape)
        valid = None if scores.valid is None else _rows(xp, scores.valid, shape)
        order, positions = _native(self.wiring).sort(flat, valid)
        if len(shape) != 2:
            order, positions = xp.reshape(order, shape), xp.reshape(positions, shape)
        scores.set_order(order, positions)

    def sort_scores(self, *, flip: bool = False) -> Array | None:
        return self._product("sort_scores_flipped" if flip else "sort_scores", None)

    def _product(self, kind: str, values: Array | None) -> Array | None:
        """Return a product of PRODUCTS, or None where the native kernel cannot serve."""
        scores, wiring = self.scores, self.wiring
        plain = scores.plain_positions
        if plain is None or not wiring.is_plain(x := scores.scores, values, self.scale):
            return None
        xp, dtype, shape = wiring.xp, plain.dtype, tuple(plain.shape)
        if values is not None:
            shape = (*broadcast_shapes(values.shape[:-2], shape[:-1]), shape[-1])
            dtype = values.dtype
        problem = self._prepare(shape, dtype)
        flat, scale = _rows(xp, cast(xp, x, dtype), shape), self._flat_scale(shape)
        if values is not None and (values.ndim != 3 or tuple(values.shape[:-1]) != shape):
            features = values.shape[-1]
            values = xp.broadcast_to(values, (*shape, features))
            values = xp.reshape(values, (*flat.shape, features))
        y = _native(wiring).product(self._prefix + kind, flat, values, scale, problem)
        return y if len(shape) == 2 else xp.reshape(y, (*shape, *y.shape[2:]))

    def _log_prob(self, permutation: Array) -> Array | None:
        """Return `log_prob` where the native kernel can serve."""
        scores, wiring = self.scores, self.wiring
        # A compiler would want the gradient of the items too.
        if scores.plain_positions is None or wiring.is_compiling():
            return None
        if not wiring.is_plain(x := scores.scores, self.scale):
            return None
        xp, shape = wiring.xp, scores.shape
        if permutation.ndim == 1:
            items = permutation[None, :]
        else:
            shape = (*broadcast_shapes(permutation.shape[:-1], shape[:-1]), shape[-1])
            items = _rows(xp, permutation, shape)
        problem, flat = self._prepare(shape, scores.dtype), _rows(xp, x, shape)
        product = _native(wiring).product
        y = product(self._prefix + "log_prob", flat, items, self._flat_scale(shape), problem)
        return xp.reshape(y, shape[:-1])

    def _prepare(self, shape: tuple[int, ...], dtype: Any) -> NativeProblem:
        """Return the problem for scores broadcast to `shape`, in a dtype; kept for the next."""
        problem = self._problem
        if problem is None or problem.positions.dtype != dtype or problem.shape != shape:
            problem = self._flatten(shape, dtype)
            # As in `Cache`: what an inner program computes is unknown to the one outside.
            if self.wiring.trace() == self._trace:
                self._problem = problem
        return problem

    def _flat_scale(self, shape: tuple[int, ...]) -> Any:
        """Return the scale: a number, or one for each row."""
        if isinstance(self.scale, float):
            return self.scale
        xp = self.wiring.xp
        rows = xp.reshape(xp.broadcast_to(self.scale, (*shape[:-1], 1)), (-1,))
        return cast(xp, rows, xp.float64)

    def _log_normalizers(self) -> Array | None:
        """Return log Z by position where the native kernel can serve."""
        none = self.wiring.stop_gradient(self.scores.scores)[..., None][..., :0]
        return self._product("log_z", none)

    def _flatten(self, shape: tuple[int, ...], dtype: Any) -> NativeProblem:
        """Return the problem for scores broadcast to `shape`, as rows."""
        xp, scores = self.wiring.xp, self.scores
        order = _rows(xp, scores.order, shape)
        counts = None
        if scores.valid is not None:
            counts = xp.broadcast_to(count_valid(xp, scores.valid)[..., 0], shape[:-1])
            counts = xp.reshape(counts, (-1,))
        return NativeProblem(
            shape=shape,
            positions=_rows(xp, cast(xp, scores.plain_positions, dtype), shape),
            order=order,
            counts=counts,
            prefix=self._prefix,
            power=self._power,
            rebuild=self._rebuild,
            recompute=functools.partial(recompute, self.wiring, self._rebuild, order, counts),
        )


class NativeScan(Native, Scan):
    """`Scan` with its products in C++."""

    def __init__(
        self, scores: SortedScores, scale: Any, kernel: Exponentials, dense: RowSoftmax
    ) -> None:
        """Sort the scores; see `Scan`."""
        super().__init__(scores, scale, kernel, dense)
        self._start("", kernel.power, _ScanAgain(kernel.power))

    def _mean(self, v: Array) -> Array:
        y = self._product("apply", v)
        return super()._mean(v) if y is None else y

    def _spread(self, u: Array) -> Array:
        w = self._product("apply_transposed", u)
        return super()._spread(u) if w is None else w

    def _log_z(self) -> Array:
        log_z = self._log_normalizers()
        return super()._log_z() if log_z is None else log_z

    def log_prob(self, permutation: Array) -> Array:
        log_p = self._log_prob(permutation)
        return super().log_prob(permutation) if log_p is None else log_p


@dataclass(frozen=True)
class _ScanAgain:
    """Gives the operator of exp(-u^p) in array operations."""

    power: float

    def __call__(self, scores: SortedScores, scale: Any) -> Operator:
        kernel, tau = BY_POWER[self.power], scale**self.power

        def logits(scores: SortedScores, rows: Array | None) -> Array:
            here = tau if isinstance(tau, float) else tau[..., None]
            return -distance(scores, rows, self.power) / here

        dense = RowSoftmax(scores, logits)
        # The complex terms cancel: in float32 nothing would be left.
        if kernel.is_real or scores.wiring.has_float64():
            return Scan(scores, scale, kernel, dense)
        return Tiled(dense)


def recompute(
    wiring: Wiring,
    rebuild: Callable[[SortedScores, Any], Operator],
    order: Array,
    counts: Array | None,
    kind: str,
    scores: Array,
    values: Any,
    scale: Any,
) -> Array:
    """Return a product of flat arrays in array operations; see `NativeProblem`."""
    valid = None
    if counts is not None:
        n = order.shape[-1]
        place = arange_like(wiring.xp, n, order)[:, None]
        valid = wiring.add_along_axis(place, order, n)[..., 0] < counts[..., None]
    again = SortedScores(wiring, scores, valid)
    again.set_order(order, None)
    scale = scale if isinstance(scale, float) else scale[..., None]
    return PRODUCTS[kind].portable(rebuild(again, scale), scores, values)


def _rows(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x, broadcast to `shape`, as (rows, n)."""
    if tuple(x.shape) != shape:
        x = xp.broadcast_to(x, shape)
    return x if x.ndim == 2 else xp.reshape(x, (math.prod(shape[:-1]), shape[-1]))


@dataclass(frozen=True)
class Product:
    """One product of the native kernel: NumPy arrays in, results written to NumPy arrays.

    Attributes:
        shape: Of the output; given the shape of the scores, and that of the values or None.
        forward: `(given, values, out, kept)`.
        backward: `(given, values, g, to_scores, to_values, to_scale, kept)`; what is None is not
            asked for.
        portable: The same in array operations: `(operator, scores, values)`.
        kept: Given the same as `shape`, how many numbers forward can keep for backward, which
            would have to compute them again; None for nothing.
    """

    shape: Callable[[Sequence[int], Any], Sequence[int]]
    forward: Callable[..., None]
    backward: Callable[..., None]
    portable: Callable[[Any, Array, Any], Array]
    kept: Callable[[Sequence[int], Any], int] | None


def _sums_of_features(scores: Sequence[int], values: Any) -> int:
    """Return how many numbers two sums have, each for 1 and for every feature."""
    return 2 * math.prod(scores) * (1 + (1 if values is None else values[-1]))


def _products(
    prefix: str, portable_log_z: Callable[[Any], Array], *, keeps: bool
) -> dict[str, Product]:
    """Return the products whose functions in the extension have names with this prefix."""
    kept = _sums_of_features if keeps else None

    def function(name: str) -> Any:
        return getattr(extension, prefix + name, None)

    apply, apply_backward = function("apply"), function("apply_backward")
    spread, spread_backward = function("apply_transposed"), function("apply_transposed_backward")

    def sort_scores(given: Any, values: None, out: numpy.ndarray, kept: Any = None) -> None:
        apply(*given, None, out[..., None], None, kept)

    def sort_scores_backward(given: Any, values: None, g: numpy.ndarray, *to: Any) -> None:
        apply_backward(*given, None, g[..., None], None, *to)

    # Not the framework's flip: that would start its threads, which hang in a forked child.
    def sort_scores_flipped(given: Any, values: None, out: numpy.ndarray, kept: Any = None) -> None:
        sort_scores(given, values, out, kept)
        out[...] = out[..., ::-1].copy()

    def sort_scores_flipped_backward(given: Any, values: None, g: numpy.ndarray, *to: Any) -> None:
        sort_scores_backward(given, values, numpy.ascontiguousarray(g[..., ::-1]), *to)

    def own(operator: Operator, scores: Array) -> Array:
        if operator.valid is not None:
            scores = operator.wiring.xp.where(operator.valid, scores, 0.0)
        return operator.apply(scores[..., None])[..., 0]

    def log_z(given: Any, values: numpy.ndarray, out: numpy.ndarray, kept: Any = None) -> None:
        apply(*given, values, numpy.empty_like(values), out, kept)

    def log_z_backward(given: Any, values: numpy.ndarray, g: numpy.ndarray, *to: Any) -> None:
        apply_backward(*given, values, None, g, *to)

    cost, cost_backward = function("cost"), function("cost_backward")

    def no_values(given: Any) -> numpy.ndarray:
        return numpy.empty((*given[0].shape, 0), given[0].dtype)

    def log_prob(given: Any, items: numpy.ndarray, out: numpy.ndarray, kept: Any = None) -> None:
        log_zs = numpy.empty_like(given[0])
        log_z(given, no_values(given), log_zs, kept)
        costs = numpy.empty_like(given[0])
        cost(*given, items, costs)
        out[...] = -(costs.sum(-1, dtype=numpy.float64) + log_zs.sum(-1, dtype=numpy.float64))

    def log_prob_backward(
        given: Any,
        items: numpy.ndarray,
        g: numpy.ndarray,
        to_scores: Any,
        to_values: None,
        to_scale: Any,
        kept: Any = None,
    ) -> None:
        g_z = numpy.empty_like(given[0])
        g_z[...] = -g[..., None]
        log_z_backward(given, no_values(given), g_z, to_scores, None, to_scale, kept)
        cost_backward(*given, items, g_z, to_scores, to_scale)

    products = {
        "sort_scores": Product(
            lambda scores, values: scores,
            sort_scores,
            sort_scores_backward,
            lambda operator, scores, values: own(operator, scores),
            kept,
        ),
        "sort_scores_flipped": Product(
            lambda scores, values: scores,
            sort_scores_flipped,
            sort_scores_flipped_backward,
            lambda operator, scores, values: operator.wiring.xp.flip(
                own(operator, scores), axis=-1
            ),
            kept,
        ),
        "apply": Product(
            lambda scores, values: values,
            lambda given, v, y, kept=None: apply(*given, v, y, None, kept),
            lambda given, v, g, *to: apply_backward(*given, v, g, None, *to),
            lambda operator, scores, v: operator.apply(v),
            kept,
        ),
        "apply_transposed": Product(
            lambda scores, values: values,
            lambda given, u, w, kept=None: spread(*given, u, w),
            lambda given, u, g, *to: spread_backward(*given, u, g, *to[:3]),
            lambda operator, scores, u: operator.apply_transposed(u),
            None,
        ),
        "log_z": Product(
            lambda scores, values: scores,
            log_z,
            log_z_backward,
            lambda operator, scores, values: portable_log_z(operator),
            kept,
        ),
        # The values are the items of a permutation.
        "log_prob": Product(
            lambda scores, items: scores[:1],
            log_prob,
            log_prob_backward,
            lambda operator, scores, items: operator.log_prob(items),
            (lambda scores, items: 2 * math.prod(scores)) if keeps else None,
        ),
    }
    return {prefix + name: product for name, product in products.items()}


PRODUCTS = {
    **_products("", lambda scan: scan._log_z(), keeps=False),
    # The logit of an item at its own position is 0.
    **_products("neuralsort_", lambda rows: 0.0 - log_own(rows), keeps=True),
}


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
