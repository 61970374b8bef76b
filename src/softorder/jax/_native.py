"""The native kernel as targets of XLA's foreign function interface: JAX arrays on the CPU.

Everything here is an array of rows, in the layout of native/xla.cpp; `absent` stands for what is
left out. Without the extension there are no targets, and nobody calls this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax import Array

from softorder._extension import cpu_threads, extension
from softorder._kernels.products import Call
from softorder.jax._namespace import xp

if extension is not None:
    for _name, _handler in extension.xla_targets().items():
        jax.ffi.register_ffi_target(_name, _handler, platform="cpu")


def absent(dtype: Any) -> Array:
    """Return what stands for an argument that is left out."""
    return jnp.zeros((0,), dtype)


def is_absent(x: Any) -> bool:
    """Tell whether an argument is left out."""
    return tuple(x.shape) == (0,)


def _result(shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _run(
    target: str, results: Sequence[jax.ShapeDtypeStruct], *arrays: Array, **attributes: Any
) -> Any:
    call = jax.ffi.ffi_call("softorder_" + target, list(results), vmap_method="broadcast_all")
    return call(*arrays, **attributes)


def sort(scores: Array, valid: Array) -> Sequence[Array]:
    """Return the order of (rows, n) scores, and the sorted scores."""
    results = [_result(scores.shape, xp.int64), _result(scores.shape, scores.dtype)]
    return _run("sort", results, scores, valid, threads=numpy.int32(cpu_threads()))


def pool(kind: str, x: Array) -> Array:
    """Return what `_kernels.isotonic` finds: (..., 3, n) to (..., n)."""
    result = _result((*x.shape[:-2], x.shape[-1]), xp.int64)
    return _run(kind, [result], x, threads=numpy.int32(cpu_threads()))[0]


def forward(call: Call, rows: Sequence[Array], values: Array) -> Array:
    """Return a product; rows are positions, order, counts and scale."""
    shape = call.result_shape(rows[0].shape, values.shape)
    return _product("forward", [_result(shape, rows[0].dtype)], call, rows, values)[0]


def backward(
    call: Call, rows: Sequence[Array], values: Array, g: Array, wanted: Sequence[bool]
) -> list[Array]:
    """Return the gradients of scores, values and scale that are wanted."""
    positions, scale = rows[0], rows[3]
    shapes = (positions.shape, values.shape, positions.shape[:1])
    results = [
        _result(shape if want else (0,), positions.dtype)
        for shape, want in zip(shapes, wanted, strict=True)
    ]
    found = _product("backward", results, call, rows, values, g)
    to = [x for x, want in zip(found, wanted, strict=True) if want]
    if wanted[2]:
        total = to[-1] if scale.shape == to[-1].shape else jnp.sum(to[-1], keepdims=True)
        to[-1] = total.astype(scale.dtype)
    return to


def _product(
    target: str, results: Any, call: Call, rows: Sequence[Array], values: Array, *g: Array
) -> Any:
    floats, items = values, absent(xp.int64)
    if call.takes_items:
        floats, items = absent(rows[0].dtype), values
    numbers = {name: numpy.int32(x) for name, x in call.arguments(cpu_threads()).items()}
    table = call.formula.table.reshape(-1)
    return _run(target, results, *rows, floats, items, *g, **numbers, table=table)
