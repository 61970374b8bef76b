"""The sort and the native products as primitives of JAX, with all of their rules. No mathematics.

    product      values; on the CPU in C++, elsewhere in array operations
    tangent      of a product, linear in the tangents of scores, values and scale: array operations
    gradient     the transpose of `tangent`; on the CPU in C++, elsewhere in array operations

The derivative of a product is a tangent, whose transpose is a gradient; that of a tangent or of a
gradient is what JAX makes of the array operations. So every order and mode is right, and the usual
one, a first derivative in reverse mode, is fast. All arrays have rows in front: vmap makes more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax import Array
from jax.core import ShapedArray, Tracer
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from softorder._config import config
from softorder._extension import extension
from softorder._kernels.definitions import define
from softorder._kernels.products import Call
from softorder._kernels.scores import SortedRows, hard_sort
from softorder.jax import _native
from softorder.jax._namespace import xp
from softorder.jax._varying import result_type, vary_alike

# Which of a primitive's arguments may have a tangent: scores, values, scale. Then come positions,
# order and counts.
_MOVING = 3


def _primitive(
    name: str,
    shapes: Callable[..., Any],
    portable: Callable[..., Any],
    native: Callable[..., Any],
) -> Primitive:
    """Return a primitive that can be traced and run.

    Args:
        name: What it is called where a program is shown.
        shapes: The results, given the arguments: anything with shape and dtype.
        portable: What it computes, in array operations.
        native: The same on the CPU.
    """
    primitive = Primitive("softorder_" + name)
    primitive.multiple_results = True

    @functools.cache
    def compiled(**params: Any) -> Any:
        return jax.jit(functools.partial(primitive.bind, **params))

    def run(*arrays: Array, **params: Any) -> Any:
        # `jax.disable_jit` would have `bind` call itself: there is no way but to compile it.
        with jax.disable_jit(False):
            return compiled(**params)(*arrays)

    primitive.def_impl(run)

    def abstract(*arrays: Any, **params: Any) -> list[ShapedArray]:
        return [result_type(shape, dtype, arrays) for shape, dtype in shapes(*arrays, **params)]

    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(portable, multiple_results=True))
    if extension is not None:
        lowering = mlir.lower_fun(native, multiple_results=True)
        mlir.register_lowering(primitive, lowering, platform="cpu")
    return primitive


# ---------------------------------------------------------------- what they compute


def _sort_portable(scores: Array, valid: Array) -> list[Array]:
    from softorder.jax._wiring import JAX

    with config(kernel="portable"):
        order = hard_sort(JAX, scores, None if _native.is_absent(valid) else valid).order
    return [order, jnp.take_along_axis(scores, order, -1)]


def _product_portable(*arrays: Array, call: Call, **_: Any) -> list[Array]:
    from softorder.jax._wiring import JAX

    scores, values, scale, _positions, order, counts = arrays
    number = None if _native.is_absent(counts) else counts
    return [define(JAX, call, order, number, scores, values, scale)]


def _product_native(*arrays: Array, call: Call, **_: Any) -> list[Array]:
    _scores, values, scale, *rows = arrays
    return [_native.forward(call, (*rows, scale), values)]


def _moving(arrays: Sequence[Array], params: Any) -> tuple[Callable[..., Array], list[int]]:
    """Return a product as a function of those arguments that may move, and which they are."""
    wanted = [i for i, moves in enumerate(params["moves"]) if moves]
    product = functools.partial(_product_portable, **params)
    return _of_some(lambda *arrays: product(*arrays)[0], arrays, wanted), wanted


def _of_some(
    function: Callable[..., Any], arrays: Sequence[Any], which: Sequence[int]
) -> Callable[..., Any]:
    """Return a function of some of the arrays, the others being held constant."""

    def of_some(*some: Array) -> Any:
        every = list(arrays)
        for i, x in zip(which, some, strict=True):
            every[i] = x
        return function(*every)

    return of_some


def _tangent_portable(*arrays: Array, **params: Any) -> list[Array]:
    arrays, tangents = arrays[:-_MOVING], arrays[-_MOVING:]
    function, wanted = _moving(arrays, params)
    primals, moves = tuple(arrays[i] for i in wanted), tuple(tangents[i] for i in wanted)
    return [jax.jvp(function, primals, moves)[1]]


def _gradient_portable(*arrays: Array, **params: Any) -> list[Array]:
    *given, g = arrays
    function, wanted = _moving(given, params)
    return list(jax.vjp(function, *(given[i] for i in wanted))[1](g))


def _gradient_native(*arrays: Array, call: Call, moves: Sequence[bool]) -> list[Array]:
    _scores, values, scale, *rows, g = arrays
    return _native.backward(call, (*rows, scale), values, g, moves)


_Shapes = list[tuple[Sequence[int], Any]]


def _shapes_of_sort(scores: Any, _: Any) -> _Shapes:
    return [(scores.shape, numpy.dtype(xp.int64)), (scores.shape, scores.dtype)]


def _shapes_of_product(scores: Any, values: Any, *_: Any, call: Call, **__: Any) -> _Shapes:
    return [(call.result_shape(scores.shape, values.shape), scores.dtype)]


def _shapes_of_gradient(*arrays: Any, moves: Sequence[bool], **_: Any) -> _Shapes:
    return [(x.shape, x.dtype) for x, moved in zip(arrays, moves, strict=False) if moved]


_sort = _primitive("sort", _shapes_of_sort, _sort_portable, _native.sort)
_product = _primitive("product", _shapes_of_product, _product_portable, _product_native)
_tangent = _primitive("tangent", _shapes_of_product, _tangent_portable, _tangent_portable)
_gradient = _primitive("gradient", _shapes_of_gradient, _gradient_portable, _gradient_native)


# ---------------------------------------------------------------- derivatives


def _differentiate_product(primals: Any, tangents: Any, **params: Any) -> Any:
    y = _product.bind(*primals, **params)
    moves = tuple(type(t) is not ad.Zero for t in tangents[:_MOVING])
    zeros = [_native.absent(primals[0].dtype)] * _MOVING
    tangents = [t if moves[i] else zeros[i] for i, t in enumerate(tangents[:_MOVING])]
    arrays = vary_alike([*primals, *tangents])
    return y, _tangent.bind(*arrays, **{**params, "moves": moves})


def _transpose_tangent(g: Any, *arrays: Any, **params: Any) -> list[Any]:
    arrays, tangents = arrays[:-_MOVING], arrays[-_MOVING:]
    moves = tuple(ad.is_undefined_primal(t) for t in tangents)
    to: list[Any] = [None] * (len(arrays) + _MOVING)
    if type(g[0]) is ad.Zero or not any(moves):
        return to
    found = _gradient.bind(*arrays, g[0], **{**params, "moves": moves})
    for i, each in zip((i for i, moved in enumerate(moves) if moved), found, strict=True):
        to[len(arrays) + i] = each
    return to


def _differentiate_operations(portable: Callable[..., Any], primitive: Primitive) -> Any:
    """Return the rule of a primitive whose derivative is that of its array operations."""

    def rule(primals: Any, tangents: Any, **params: Any) -> Any:
        moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
        function = _of_some(functools.partial(portable, **params), primals, moving)
        of = tuple(primals[i] for i in moving), tuple(tangents[i] for i in moving)
        return primitive.bind(*primals, **params), jax.jvp(function, *of)[1]

    return rule


ad.primitive_jvps[_product] = _differentiate_product
ad.primitive_transposes[_tangent] = _transpose_tangent
ad.primitive_jvps[_tangent] = _differentiate_operations(_tangent_portable, _tangent)
ad.primitive_jvps[_gradient] = _differentiate_operations(_gradient_portable, _gradient)


# ---------------------------------------------------------------- vmap


def _batch(primitive: Primitive) -> Any:
    """Return the rule that makes of a batch of rows more rows."""

    def rule(arrays: Any, dims: Any, **params: Any) -> Any:
        size = next(x.shape[d] for x, d in zip(arrays, dims, strict=True) if d is not None)
        shapes = [
            x.shape if d is None else (*x.shape[:d], *x.shape[d + 1 :])
            for x, d in zip(arrays, dims, strict=True)
        ]
        rows = shapes[0][0]
        flat = [
            _more_rows(x, d, shape, size, rows)
            for x, d, shape in zip(arrays, dims, shapes, strict=True)
        ]
        results = primitive.bind(*flat, **params)
        results = [jnp.reshape(y, (size, rows, *y.shape[1:])) for y in results]
        if primitive is _gradient and params["moves"][2] and shapes[2] == (1,) != (rows,):
            # The scale was one for all rows.
            results[-1] = jnp.sum(results[-1], axis=1, keepdims=True)
        return results, [0] * len(results)

    return rule


def _more_rows(x: Array, dim: int | None, shape: Sequence[int], size: int, rows: int) -> Array:
    if tuple(shape) == (0,):
        return x if dim is None else jax.lax.index_in_dim(x, 0, dim, keepdims=False)
    x = x[None] if dim is None else jnp.moveaxis(x, dim, 0)
    x = jnp.broadcast_to(x, (size, rows, *shape[1:]))
    return jnp.reshape(x, (size * rows, *shape[1:]))


for _each in (_sort, _product, _tangent, _gradient):
    batching.primitive_batchers[_each] = _batch(_each)


class NativeProducts:
    """The native kernel for JAX arrays."""

    @staticmethod
    def is_on_cpu(x: Array) -> bool:
        """Tell whether x may be on the CPU."""
        # Where a tracer will be is known when it is compiled: the primitives choose then.
        return isinstance(x, Tracer) or all(device.platform == "cpu" for device in x.devices())

    @staticmethod
    def can_read(*arrays: Any) -> bool:
        """Tell whether the kernel has the dtypes of all arrays."""
        return all(x.dtype in (jnp.float32, jnp.float64) for x in arrays if isinstance(x, Array))

    @staticmethod
    def sort(scores: Array, valid: Array | None) -> tuple[Array, Array]:
        """Return the order of (rows, n) scores, and the sorted scores."""
        valid = _native.absent(bool) if valid is None else valid
        order, positions = _sort.bind(*vary_alike([jax.lax.stop_gradient(scores), valid]))
        return order, positions

    @staticmethod
    def product(
        call: Call, scores: Array, values: Array | None, scale: Array | float, rows: SortedRows
    ) -> Array:
        """Return a product; see `_array.NativeProducts`."""
        if isinstance(scale, float):
            scale = jnp.full((1,), scale, xp.float64)
        arrays: tuple[Any, ...] = (
            scores,
            _native.absent(scores.dtype) if values is None else values,
            scale,
            rows.sorted,
            rows.order,
            _native.absent(xp.int64) if rows.counts is None else rows.counts,
        )
        (y,) = _product.bind(*vary_alike(arrays), call=call)
        return y
