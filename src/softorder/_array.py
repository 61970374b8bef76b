"""Which framework an array belongs to, and the few things the array API standard does not have.

The mathematics of softorder is written once, on the array API standard. What a framework adds,
stopping a gradient for instance, is its `Wiring`. It lives in that framework's own package and is
imported with its first array, so that `import softorder` imports no framework.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol, TypeAlias

import numpy

from softorder import _messages

Array: TypeAlias = Any
"""An array of any framework. The standard has no common type to name here."""


class NativeProducts(Protocol):
    """The native kernel in one framework: flat arrays of float32 or float64 on the CPU."""

    def is_on_cpu(self, x: Array) -> bool:
        """Tell whether the kernel may serve an array: not if it is known to be elsewhere."""
        ...

    def can_read(self, *arrays: Any) -> bool:
        """Tell whether it can read these arrays, and whether its derivatives suffice.

        They do not in forward mode and in vmap. Arguments that are not arrays are ignored.
        """
        ...

    def sort(self, scores: Array, valid: Array | None) -> tuple[Array, Array]:
        """Return the stable descending order of (rows, n), masked last, and the sorted scores."""
        ...

    def product(self, call: Any, scores: Array, values: Any, scale: Any, rows: Any) -> Array:
        """Return a product, differentiable.

        Args:
            call: A `_kernels.products.Call`.
            scores: (rows, n), for their gradient; the kernel reads the sorted ones.
            values: What the product is applied to, flat; None for the scores themselves.
            scale: A number, or (rows,) of float64, which may receive a gradient.
            rows: A `_kernels.scores.SortedRows`.
        """
        ...


def _fold(step: Callable[[Array, Any], Array], state: Array, xs: Any) -> Array:
    for x in xs:
        state = step(state, x)
    return state


def _cond(predicate: Array, usual: Callable[[], Array], careful: Callable[[], Array]) -> Array:
    return usual() if bool(predicate) else careful()


@dataclass(frozen=True, eq=False)
class Wiring:
    """What one framework adds to the array API standard.

    Attributes:
        name: What the framework is called in messages.
        xp: Its namespace of the array API standard.
        is_compiling: Whether a compiler is tracing the program now.
        trace: What tells the program that is being traced now from every other; what is computed
            in one must not be kept for another. None where arrays are the same everywhere.
        is_concrete: Whether an array's values can be looked at now and cheaply: false while
            tracing and for arrays on another device.
        new_shapes_are_cheap: Whether a shape that was not seen before needs no compilation.
        sizes_may_vary: Whether a program is made for more than one value of these sizes, as an
            exported one is: no choice may depend on them.
        has_float64: Whether there is float64 now; `xp.float64` is float32 if not.
        is_recording: Whether what is computed now can be differentiated later.
        survives_backward: Whether what is computed now can be used again after it was
            differentiated. Not if a backward pass frees what it went through, or belongs to a tape.
        copy: The same values in memory of their own, differentiable; the array itself where none
            can be changed in place.
        read: `(x, name)` returns the array to compute with for an argument: what a variable holds.
            It refuses an array of unknown shape. None where arguments are arrays as they come.
        stop_gradient: The same values, constant for every derivative.
        take_along_axis: `(x, index, axis)` as in the standard, other dimensions broadcast.
        add_along_axis: `(x, index, n)` adds the entries of x (..., k, f) up at the places `index`
            (..., k) of zeros (..., n, f), batch dimensions broadcast.
        matmul: The matrix product, in the precision of its arguments whatever the context.
        checkpoint: `(function, *arrays)` calls it, and calls it again in the backward pass
            instead of keeping what it computed.
        fold: `(step, state, xs)` returns the last of the states step(state, x), x going over the
            first axis of an array, or over a range.
        by_parts: `(function, rows, height, axis)` returns function(rows) of row numbers (n,), at
            most `height` of them at a time, one part after the other along `axis`; each is a
            `checkpoint`.
        cond: `(predicate, usual, careful)` returns usual() where the predicate, a boolean array of
            no dimensions, holds, else careful(). Where a program cannot look at it when it runs,
            careful(), which must be right in either case.
        fuses: Whether a compiler is at work that stores nothing of what is summed right away.
        scan: `(gate, v)` is the recurrence of `_kernels.scan.chunked_scan`, differentiable.
        sums_over_others: `(exponentials, gap, cut, w, offset)` is that of `_kernels.recurrence`
            for the `gates` of these gaps, differentiable. None where it is made of scans.
        native: The `NativeProducts` of the framework. None if it cannot be given them.
        logsumexp: `(x, axis)` gives log(sum(exp(x))); x may hold -inf.
        cumulative_sum: `(x, axis)` as in the standard, in a form that a compiler can trace.
        normal_cdf: The distribution function of the standard normal distribution.
        call_on_cpu: `(function, x)` calls a function of `_kernels.on_cpu`, which maps a NumPy array
            (..., k, n) of float64 to indices (..., n), on whatever array or tracer x is.
        random_source: What the framework's source of random numbers is called, "generator" or
            "key".
        gumbel: `(shape, like, source)` draws standard Gumbel noise, finite, in the dtype
            (float32 or float64) and on the device of `like`; the source is the framework's own
            kind, or None.
        running_maximum: `(x)` gives the largest of x so far along the last axis, or a number that
            is larger by no more than log n; it needs no derivative.
    """

    name: str
    xp: ModuleType
    is_concrete: Callable[[Array], bool]
    stop_gradient: Callable[[Array], Array]
    take_along_axis: Callable[[Array, Array, int], Array]
    add_along_axis: Callable[[Array, Array, int], Array]
    matmul: Callable[[Array, Array], Array]
    logsumexp: Callable[[Array, int], Array]
    cumulative_sum: Callable[[Array, int], Array]
    normal_cdf: Callable[[Array], Array]
    call_on_cpu: Callable[[Callable[[numpy.ndarray], numpy.ndarray], Array], Array]
    gumbel: Callable[[tuple[int, ...], Array, Any], Array]
    running_maximum: Callable[[Array], Array]
    scan: Callable[[Array, Array], Array]
    by_parts: Callable[[Callable[[Array], Array], Array, int, int], Array]
    fold: Callable[[Callable[[Array, Any], Array], Array, Any], Array] = _fold
    cond: Callable[[Array, Callable[[], Array], Callable[[], Array]], Array] = _cond
    is_compiling: Callable[[], bool] = lambda: False
    is_recording: Callable[[], bool] = lambda: True
    checkpoint: Callable[..., Array] = lambda function, *arrays: function(*arrays)
    fuses: Callable[[], bool] = lambda: False
    trace: Callable[[], object] = lambda: None
    new_shapes_are_cheap: bool = True
    sizes_may_vary: Callable[[Sequence[int]], bool] = lambda sizes: False
    has_float64: Callable[[], bool] = lambda: True
    survives_backward: Callable[[], bool] = lambda: True
    copy: Callable[[Array], Array] = lambda x: x
    read: Callable[[Array, str], Array] | None = None
    random_source: str = "generator"
    sums_over_others: Callable[[Any, Array, Array, Array, Array | None], Array] | None = None
    native: NativeProducts | None = None


def joined_parts(concatenate: Callable[..., Array], checkpoint: Callable[..., Array]) -> Any:
    """Return a `Wiring.by_parts` that computes one part after the other."""
    return lambda function, rows, height, axis: concatenate(
        [checkpoint(function, part) for part in slices(rows, height)], axis
    )


def _numpy_wiring() -> Wiring:
    from softorder.numpy._wiring import NUMPY

    return NUMPY


def _torch_wiring() -> Wiring:
    # An import statement, not importlib: torch.compile can follow it while it traces.
    from softorder.torch._wiring import TORCH

    return TORCH


def _jax_wiring() -> Wiring:
    from softorder.jax._wiring import JAX

    return JAX


def _tensorflow_wiring() -> Wiring:
    from softorder.tensorflow._wiring import TENSORFLOW

    return TENSORFLOW


# Framework's module -> its array classes, and what gives its wiring.
_FRAMEWORKS: dict[str, tuple[tuple[str, ...], Callable[[], Wiring]]] = {
    "torch": (("Tensor",), _torch_wiring),
    "jax": (("Array",), _jax_wiring),
    "tensorflow": (("Tensor", "Variable"), _tensorflow_wiring),
}


_NO_ARRAYS = (type(None), float, int, str)
# By the type of array: to look again would cost as much as a small sort.
_found: dict[type, Wiring] = {}


def find_wiring(x: object) -> Wiring | None:
    """Return the wiring of the framework that x is an array of; None if it belongs to none."""
    wiring = _found.get(type(x))
    if wiring is None and not isinstance(x, _NO_ARRAYS):
        wiring = _look_for_wiring(x)
        if wiring is not None:
            _found[type(x)] = wiring
    return wiring


def register(array_type: type, wiring: Wiring) -> None:
    """Let a wiring serve arrays of a further type."""
    _found[array_type] = wiring


def _look_for_wiring(x: object) -> Wiring | None:
    if isinstance(x, numpy.ndarray):
        # These two redefine what operators mean.
        return None if isinstance(x, (numpy.matrix, numpy.ma.MaskedArray)) else _numpy_wiring()
    for framework, (array_types, wiring) in _FRAMEWORKS.items():
        module = sys.modules.get(framework)
        # While another thread is importing the framework, its classes may not be there yet.
        if module is not None and isinstance(
            x, tuple(getattr(module, name, ()) for name in array_types)
        ):
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
            raise TypeError(_messages.not_an_array(name, array, ["numpy", *_FRAMEWORKS]))
        found[name] = wiring
    (first, wiring), *others = found.items()
    for name, other in others:
        if other is not wiring:
            raise TypeError(_messages.mixed_frameworks(first, wiring.name, name, other.name))
    return wiring


def read(x: Array, name: str) -> Array:
    """Return x as the array to compute with: of a variable, what it holds now."""
    wiring = find_wiring(x)
    return x if wiring is None or wiring.read is None else wiring.read(x, name)


def own_copy(x: Any) -> Any:
    """Return a copy of an array that someone could change in place; anything else as it is."""
    wiring = find_wiring(x)
    return x if wiring is None else wiring.copy(x)


def slices(rows: Array, height: int) -> list[Array]:
    """Return rows (n, ...), cut into parts of at most `height`."""
    return [rows[start : start + height] for start in range(0, rows.shape[0], height)]


def broadcast_shapes(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that two shapes which fit each other broadcast to.

    numpy.broadcast_shapes would fix a size that a compiler keeps open.
    """
    missing = len(b) - len(a)
    a, b = (1,) * missing + tuple(a), (1,) * -missing + tuple(b)
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def as_rows(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Return x, broadcast to a shape (..., n), as (rows, n)."""
    if tuple(x.shape) != shape:
        x = xp.broadcast_to(x, shape)
    return x if x.ndim == 2 else xp.reshape(x, (math.prod(shape[:-1]), shape[-1]))


def device_of(x: Array) -> Any:
    """Return the device of x; None for a tracer, which has none yet."""
    return getattr(x, "device", None)


def wide_dtype(xp: Any, dtype: Any) -> Any:
    """Return the dtype to compute in: float32 for half precision, others as they are."""
    # TensorFlow has another name for it.
    size = dtype.itemsize if hasattr(dtype, "itemsize") else dtype.size
    return xp.float32 if size < 4 else dtype


def widen(xp: Any, x: Array) -> Array:
    """Return half-precision arrays as float32, others as they are."""
    return cast(xp, x, wide_dtype(xp, x.dtype))


def promote(xp: Any, one: Any, other: Any) -> Any:
    """Return the floating dtype that holds the numbers of both.

    The compiler of torch cannot trace the `result_type` of half precision.
    """
    if one == other:
        return one
    wide = wide_dtype(xp, one), wide_dtype(xp, other)
    # float16 and bfloat16 do not hold each other; beside another type a half adds nothing.
    return wide[0] if wide[0] == wide[1] else xp.result_type(*wide)


def cast(xp: Any, x: Array, dtype: Any) -> Array:
    """Return x in a dtype; x itself if it has it (xp.astype would cost more than a small sort)."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def any_infinite(wiring: Wiring, x: Array) -> bool:
    """Tell whether x may hold an infinity; True when its values cannot be looked at."""
    return not wiring.is_concrete(x) or bool(wiring.xp.any(wiring.xp.isinf(x)))


def arange_like(xp: Any, n: int, like: Array) -> Array:
    """Return 0..n-1 as int64 on the device of `like`."""
    return xp.arange(n, dtype=xp.int64, device=device_of(like))


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
