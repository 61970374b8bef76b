"""How arrays differ from device to device inside `jax.shard_map`, which JAX checks by types.

A primitive takes arguments that vary along the same axes of the mesh, and its results vary along
them. The type of an array has had several forms; what is used here has been in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jax.core import ShapedArray, Tracer
from jax.sharding import NamedSharding, PartitionSpec


def _axes(aval: Any) -> frozenset[Any]:
    """Return along which axes of a mesh an array of this type varies."""
    manual = getattr(aval, "manual_axis_type", None)
    return getattr(aval, "vma", frozenset()) if manual is None else manual.varying


def vary_alike(arrays: Sequence[Array]) -> Sequence[Array]:
    """Return the arrays as varying along every axis that one of them varies along.

    The transpose sums gradients over the devices: a temperature that all of them share has one.
    """
    of_each = [_axes(x.aval) if isinstance(x, Tracer) else frozenset() for x in arrays]
    union = frozenset[Any]().union(*of_each)
    if not union:
        return arrays
    return [_cast(x, tuple(sorted(union - axes))) for x, axes in zip(arrays, of_each, strict=True)]


def _cast(x: Array, axes: tuple[Any, ...]) -> Array:
    if not axes:
        return x
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(x, axes, to="varying")
    return jax.lax.pvary(x, axes)  # before JAX 0.8 # pyright: ignore[reportAttributeAccessIssue]


def result_type(shape: Sequence[int], dtype: Any, arguments: Sequence[Any]) -> ShapedArray:
    """Return the type of a result, which varies as the arguments do, of which types are given."""
    like = max(arguments, key=lambda aval: len(_axes(aval)))
    if not _axes(like):
        return ShapedArray(tuple(shape), dtype)
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*(None for _ in shape)))
    return like.update(shape=tuple(shape), dtype=dtype, weak_type=False, sharding=sharding)
