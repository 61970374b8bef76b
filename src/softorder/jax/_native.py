"""The native kernel as targets of XLA's foreign function interface: JAX arrays on the CPU.

Everything here is an array of rows, in the layout of native/xla.cpp; `ABSENT` stands for what is
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
from softorder._kernels.profiles import TABLES
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


def _call(
    target: str, results: Sequence[jax.ShapeDtypeStruct], *arrays: Array, **attributes: Any
) -> Any:
    call = jax.ffi.ffi_call("softorder_" + target, list(results), vmap_method="broadcast_all")
    return call(*arrays, threads=numpy.int32(cpu_threads()), **attributes)


def sort(scores: Array, valid: Array) -> Sequence[Array]:
    """Return the order of (rows, n) scores, and the sorted scores."""
    results = [_result(scores.shape, xp.int64), _result(scores.shape, scores.dtype)]
    return _call("sort", results, scores, valid)


def pool(kind: str, x: Array) -> Array:
    """Return what `_kernels.isotonic` finds: (..., 3, n) to (..., n)."""
    shape = (*x.shape[:-2], x.shape[-1])
    return _call(kind, [_result(shape, xp.int64)], x)[0]


Given = Sequence[Array]
"""Positions, order, counts and scale."""


class Rows:
    """The products of one relaxation; `_kernels.native.PRODUCTS` has the same under these names."""

    def __init__(self, prefix: str, power: float) -> None:
        """Hold what the names of its targets begin with, and which exponentials it adds up."""
        self.prefix = prefix
        self.terms = TABLES[power].reshape(-1)

    def forward(self, kind: str, given: Given, values: Array) -> Array:
        """Return a product."""
        return getattr(self, "_" + kind.removeprefix(self.prefix))(given, values)

    def backward(
        self, kind: str, given: Given, values: Array, g: Array, wanted: Sequence[bool]
    ) -> list[Array]:
        """Return the gradients of scores, values and scale that are wanted."""
        positions, scale = given[0], given[3]
        shapes = (positions.shape, values.shape, positions.shape[:1])
        results = [
            _result(shape if want else (0,), positions.dtype)
            for shape, want in zip(shapes, wanted, strict=True)
        ]
        name = "_" + kind.removeprefix(self.prefix) + "_backward"
        found = getattr(self, name)(results, given, values, g)
        to = [x for x, want in zip(found, wanted, strict=True) if want]
        if wanted[2]:
            total = to[-1] if scale.shape == to[-1].shape else jnp.sum(to[-1], keepdims=True)
            to[-1] = total.astype(scale.dtype)
        return to

    def _target(self, name: str, results: Any, given: Given, *arrays: Array) -> Any:
        return _call(self.prefix + name, results, *given, *arrays, terms=self.terms)

    def _means(self, given: Given, v: Array, shape: Sequence[int], log_z: bool = False) -> Any:
        dtype = given[0].dtype
        z_shape = given[0].shape if log_z else (0,)
        return self._target("apply", [_result(shape, dtype), _result(z_shape, dtype)], given, v)

    def _apply(self, given: Given, v: Array) -> Array:
        return self._means(given, v, v.shape)[0]

    def _apply_backward(self, results: Any, given: Given, v: Array, g: Array) -> Any:
        return self._target("apply_backward", results, given, v, g, absent(g.dtype))

    def _sort_scores(self, given: Given, _: Array) -> Array:
        shape = (*given[0].shape, 1)
        return self._means(given, absent(given[0].dtype), shape)[0][..., 0]

    def _sort_scores_backward(self, results: Any, given: Given, _: Array, g: Array) -> Any:
        return self._apply_backward(results, given, absent(g.dtype), g[..., None])

    def _sort_scores_flipped(self, given: Given, _: Array) -> Array:
        return jnp.flip(self._sort_scores(given, _), -1)

    def _sort_scores_flipped_backward(self, results: Any, given: Given, _: Array, g: Array) -> Any:
        return self._sort_scores_backward(results, given, _, jnp.flip(g, -1))

    def _log_z(self, given: Given, none: Array) -> Array:
        return self._means(given, none, none.shape, log_z=True)[1]

    def _log_z_backward(self, results: Any, given: Given, none: Array, g: Array) -> Any:
        return self._target("apply_backward", results, given, none, absent(g.dtype), g)

    def _apply_transposed(self, given: Given, u: Array) -> Array:
        return self._target("apply_transposed", [_result(u.shape, u.dtype)], given, u)[0]

    def _apply_transposed_backward(self, results: Any, given: Given, u: Array, g: Array) -> Any:
        return self._target("apply_transposed_backward", results, given, u, g)

    def _log_prob(self, given: Given, items: Array) -> Array:
        result = _result(given[0].shape[:1], given[0].dtype)
        return self._target("log_prob", [result], given, items)[0]

    def _log_prob_backward(self, results: Any, given: Given, items: Array, g: Array) -> Any:
        return self._target("log_prob_backward", results, given, items, g)
