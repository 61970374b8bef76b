"""Which framework an array belongs to, and the few things the array API standard does not have.

The mathematics of softorder is written once, on the array API standard. What a framework adds,
stopping a gradient for instance, is its `Wiring`. NumPy's is here; the wiring of a framework that
differentiates lives in that framework's own package and is imported with its first array, so
that `import softorder` imports no framework.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import array_api_compat.numpy
import numpy
import scipy.special

from softorder import _checks

Array: TypeAlias = Any
"""An array of any framework. The standard has no common type to name here."""


class NativeProducts(Protocol):
    """The native kernel in one framework: flat arrays of float32 or float64 on the CPU."""

    def sort(self, scores: Array, valid: Array | None) -> tuple[Array, Array]:
        """Return the stable descending order of (rows, n), masked last, and the sorted scores."""
        ...

    def product(
        self, kind: str, scores: Array, values: Any, scale: Any, problem: NativeProblem
    ) -> Array:
        """Return a product of `kernels.native.PRODUCTS`.

        Args:
            kind: Its name.
            scores: (rows, n), for their gradient; the kernel reads those of the problem.
            values: (rows, n, f), or None for a product that has none.
            scale: A number, or (rows,) of float64, which may receive a gradient.
            problem: The rest.
        """
        ...


@dataclass(slots=True, eq=False)
class NativeProblem:
    """What a native product is given besides the arrays that receive gradients.

    Attributes:
        shape: (..., n), whose batch became the rows.
        positions: (rows, n) sorted scores, infinities in place, 0 where masked.
        order: (rows, n) item at each position.
        counts: (rows,) number of valid items; None if all are.
        power: Which of `kernels.exponentials` the weights are.
        recompute: `(kind, scores, values, scale)` gives a product in operations that can be
            differentiated any number of times.
        views: What a framework keeps here from one product to the next.
    """

    shape: tuple[int, ...]
    positions: Array
    order: Array
    counts: Array | None
    power: float
    recompute: Callable[..., Array]
    views: Any = None


@dataclass(frozen=True, eq=False)
class Wiring:
    """What one framework adds to the array API standard.

    Attributes:
        name: What the framework is called in messages.
        xp: Its namespace of the array API standard.
        is_compiling: Whether a compiler is tracing the program now.
        is_concrete: Whether an array's values can be looked at now and cheaply: false while
            tracing and for arrays on another device.
        is_recording: Whether what is computed now can be differentiated later.
        stop_gradient: The same values, constant for every derivative.
        average_gradient: `(x, begins)` gives the same values as x; derivatives are averaged over
            each run of the last axis, a run ending before the next place that `begins` marks.
        take_along_axis: `(x, index, axis)` as in the standard, other dimensions broadcast.
        add_along_axis: `(x, index, n)` adds the entries of x (..., k, f) up at the places `index`
            (..., k) of zeros (..., n, f), batch dimensions broadcast.
        matmul: The matrix product, in the precision of its arguments whatever the context.
        checkpoint: `(function, *arrays)` calls it, and calls it again in the backward pass
            instead of keeping what it computed.
        scan: `(gate, v)` is the recurrence of `kernels.scan.chunked_scan`, differentiable. None
            for a framework that does not differentiate.
        native: The products of the native kernel, differentiable. None likewise.
        is_plain: Whether the native kernel can read these arrays and its derivatives will do
            (no forward mode, no vmap).
        version: How often an array was changed in place; None where that is not counted.
        logsumexp: `(x, axis)` gives log(sum(exp(x))); x may hold -inf.
        cumulative_sum: `(x, axis)` as in the standard, in a form that a compiler can trace.
        normal_cdf: The distribution function of the standard normal distribution.
        host: `(function, x)` calls a function of `kernels.host`, which maps a NumPy array
            (..., k, n) of float64 to indices (..., n), on whatever array or tracer x is.
        gumbel: `(shape, like, generator)` draws standard Gumbel noise, finite, in the dtype
            (float32 or float64) and on the device of `like`; the generator is the framework's own
            kind, or None.
        cumulative_logsumexp: `(x, axis)` gives log(exp(x_0) + ... + exp(x_i)) at i, for x that may
            hold -inf; differentiable any number of times.
    """

    name: str
    xp: ModuleType
    is_compiling: Callable[[], bool]
    is_concrete: Callable[[Array], bool]
    is_recording: Callable[[], bool]
    stop_gradient: Callable[[Array], Array]
    average_gradient: Callable[[Array, Array], Array]
    take_along_axis: Callable[[Array, Array, int], Array]
    add_along_axis: Callable[[Array, Array, int], Array]
    matmul: Callable[[Array, Array], Array]
    checkpoint: Callable[..., Array]
    is_plain: Callable[..., bool]
    version: Callable[[Array], int | None]
    logsumexp: Callable[[Array, int], Array]
    cumulative_sum: Callable[[Array, int], Array]
    normal_cdf: Callable[[Array], Array]
    host: Callable[[Callable[[numpy.ndarray], numpy.ndarray], Array], Array]
    gumbel: Callable[[tuple[int, ...], Array, Any], Array]
    cumulative_logsumexp: Callable[[Array, int], Array]
    scan: Callable[[Array, Array], Array] | None = None
    native: NativeProducts | None = None


def _numpy_add_along_axis(x: numpy.ndarray, index: numpy.ndarray, n: int) -> numpy.ndarray:
    batch = numpy.broadcast_shapes(x.shape[:-2], index.shape[:-1])
    total = numpy.zeros((math.prod(batch), n, x.shape[-1]), dtype=x.dtype)
    index = numpy.broadcast_to(index, (*batch, index.shape[-1]))
    index = index.reshape(len(total), index.shape[-1])
    x = numpy.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(*index.shape, x.shape[-1])
    numpy.add.at(total, (numpy.arange(len(total))[:, None], index), x)
    return total.reshape(*batch, n, x.shape[-1])


def _numpy_is_plain(*arrays: Any) -> bool:
    # Not other byte orders, and not longdouble.
    plain = (numpy.dtype(numpy.float32), numpy.dtype(numpy.float64))
    return all(x.dtype in plain for x in arrays if isinstance(x, numpy.ndarray))


def _numpy_gumbel(shape: tuple[int, ...], like: numpy.ndarray, generator: Any) -> numpy.ndarray:
    _checks.check_generator(generator, numpy.random.Generator, "numpy.random.default_rng(0)")
    source = numpy.random.default_rng() if generator is None else generator
    # NumPy draws again where the logarithm of 0 would be taken.
    return numpy.asarray(source.gumbel(size=shape), dtype=like.dtype)


def _numpy_cumulative_logsumexp(x: numpy.ndarray, axis: int) -> numpy.ndarray:
    # It warns of a NaN, which is as it should be.
    with numpy.errstate(invalid="ignore"):
        return numpy.logaddexp.accumulate(x, axis=axis)


NUMPY = Wiring(
    name="numpy",
    xp=array_api_compat.numpy,
    is_compiling=lambda: False,
    is_concrete=lambda x: True,
    is_recording=lambda: False,
    stop_gradient=lambda x: x,
    average_gradient=lambda x, begins: x,
    take_along_axis=numpy.take_along_axis,
    add_along_axis=_numpy_add_along_axis,
    matmul=numpy.matmul,
    checkpoint=lambda function, *arrays: function(*arrays),
    is_plain=_numpy_is_plain,
    version=lambda x: None,
    logsumexp=scipy.special.logsumexp,
    cumulative_sum=numpy.cumsum,
    normal_cdf=scipy.special.ndtr,
    host=lambda function, x: function(x),
    gumbel=_numpy_gumbel,
    cumulative_logsumexp=_numpy_cumulative_logsumexp,
)


def _torch_wiring() -> Wiring:
    # An import statement, not importlib: torch.compile can follow it while it traces.
    from softorder.torch._wiring import TORCH

    return TORCH


# Framework's module -> its array class, and what gives its wiring.
_FRAMEWORKS: dict[str, tuple[str, Callable[[], Wiring]]] = {"torch": ("Tensor", _torch_wiring)}


# By the type of array: to look again would cost as much as a small sort.
_found: dict[type, Wiring] = {}


def find_wiring(x: object) -> Wiring | None:
    """Return the wiring of the framework that x is an array of; None if it is none's."""
    wiring = _found.get(type(x))
    if wiring is None and (wiring := _look_for_wiring(x)) is not None:
        _found[type(x)] = wiring
    return wiring


def _look_for_wiring(x: object) -> Wiring | None:
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
    return cast(xp, x, wide_dtype(xp, x.dtype))


def cast(xp: Any, x: Array, dtype: Any) -> Array:
    """Return x in a dtype; x itself if it has it (xp.astype would cost more than a small sort)."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


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
    if source % x.ndim == destination % x.ndim:
        return x
    axes = list(range(x.ndim))
    axes.insert(destination % x.ndim, axes.pop(source))
    return xp.permute_dims(x, tuple(axes))
