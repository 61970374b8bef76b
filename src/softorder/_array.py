"""Which framework an array belongs to, and the few things the array API standard does not have.

The mathematics of softorder is written once, on the array API standard. What a framework adds,
stopping a gradient for instance, is its `Wiring`. NumPy's is here; the wiring of a framework that
differentiates lives in that framework's own package and is imported with its first array, so
that `import softorder` imports no framework.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import array_api_compat.numpy
import numpy

from softorder import _checks

Array: TypeAlias = Any
"""An array of any framework. The standard has no common type to name here."""


@dataclass(frozen=True, eq=False)
class Wiring:
    """What one framework adds to the array API standard.

    Attributes:
        name: What the framework is called in messages.
        xp: Its namespace of the array API standard.
        is_compiling: Whether a compiler is tracing the program now.
        is_concrete: Whether an array's values can be looked at now and cheaply: false while
            tracing and for arrays on another device.
        stop_gradient: The same values, constant for every derivative.
        average_gradient: `(x, begins)` gives the same values as x; derivatives are averaged over
            each run of the last axis, a run ending before the next place that `begins` marks.
        take_along_axis: `(x, index, axis)` as in the standard, other dimensions broadcast.
        matmul: The matrix product, in the precision of its arguments whatever the context.
    """

    name: str
    xp: ModuleType
    is_compiling: Callable[[], bool]
    is_concrete: Callable[[Array], bool]
    stop_gradient: Callable[[Array], Array]
    average_gradient: Callable[[Array, Array], Array]
    take_along_axis: Callable[[Array, Array, int], Array]
    matmul: Callable[[Array, Array], Array]


NUMPY = Wiring(
    name="numpy",
    xp=array_api_compat.numpy,
    is_compiling=lambda: False,
    is_concrete=lambda x: True,
    stop_gradient=lambda x: x,
    average_gradient=lambda x, begins: x,
    take_along_axis=numpy.take_along_axis,
    matmul=numpy.matmul,
)


def _torch_wiring() -> Wiring:
    # An import statement, not importlib: torch.compile can follow it while it traces.
    from softorder.torch._wiring import TORCH

    return TORCH


# Framework's module -> its array class, and what gives its wiring.
_FRAMEWORKS: dict[str, tuple[str, Callable[[], Wiring]]] = {"torch": ("Tensor", _torch_wiring)}


def find_wiring(x: object) -> Wiring | None:
    """Return the wiring of the framework that x is an array of; None if it is none's."""
    if isinstance(x, numpy.ndarray):
        # These two redefine what operators mean.
        return None if isinstance(x, (numpy.matrix, numpy.ma.MaskedArray)) else NUMPY
    for framework, (array_type, wiring) in _FRAMEWORKS.items():
        module = sys.modules.get(framework)
        # While another thread is importing the framework, its class may not be there yet.
        if module is not None and isinstance(x, getattr(module, array_type, ())):
            return wiring()
    return None


def wiring_of(**arrays: Array | None) -> Wiring:
    """Return the one framework that all the named arrays belong to (None is passed over).

    Raises:
        TypeError: For something that is no array, or arrays of several frameworks.
    """
    found: dict[str, Wiring] = {}
    for name, array in arrays.items():
        if array is None:
            continue
        wiring = find_wiring(array)
        if wiring is None:
            raise TypeError(_checks.not_an_array(name, array, ["numpy", *_FRAMEWORKS]))
        found[name] = wiring
    (first, wiring), *others = found.items()
    for name, other in others:
        if other is not wiring:
            raise TypeError(_checks.mixed_frameworks(first, wiring.name, name, other.name))
    return wiring


def wide_dtype(xp: Any, dtype: Any) -> Any:
    """Return the dtype to compute in: float32 for half precision, others as they are."""
    return xp.float32 if dtype.itemsize < 4 else dtype


def widen(xp: Any, x: Array) -> Array:
    """Return half-precision arrays as float32, others as they are."""
    return xp.astype(x, wide_dtype(xp, x.dtype), copy=False)


def any_infinite(wiring: Wiring, x: Array) -> bool:
    """Tell whether x may hold an infinity; True when its values cannot be looked at."""
    return not wiring.is_concrete(x) or bool(wiring.xp.any(wiring.xp.isinf(x)))


def arange_like(xp: Any, n: int, like: Array) -> Array:
    """Return 0..n-1 as int64 on the device of `like`."""
    return xp.arange(n, dtype=xp.int64, device=like.device)


def count_valid(xp: Any, valid: Array) -> Array:
    """Return how many items take part along the last dimension, which is kept with length 1."""
    return xp.sum(xp.astype(valid, xp.int64), axis=-1, keepdims=True)


def take_along(wiring: Wiring, x: Array, index: Array, axis: int) -> Array:
    """Return take_along_axis(x, index), batch dimensions broadcast; axis counts from the end."""
    ndim = max(x.ndim, index.ndim)
    x = x[(None,) * (ndim - x.ndim) + (...,)]
    index = index[(None,) * (ndim - index.ndim) + (...,)]
    return wiring.take_along_axis(x, index, axis)


def move_axis(xp: Any, x: Array, source: int, destination: int) -> Array:
    """Return x with one dimension moved; xp.moveaxis has no batching rule in torch.func.vmap."""
    axes = list(range(x.ndim))
    axes.insert(destination % x.ndim, axes.pop(source))
    return xp.permute_dims(x, tuple(axes))
