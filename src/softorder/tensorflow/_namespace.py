"""The array API standard on TensorFlow: as much of it as softorder uses, and no more.

Names and meanings are those of the standard. `device` is accepted and has no effect: TensorFlow
places arrays by itself.
"""

from __future__ import annotations

import builtins
import math
from types import SimpleNamespace
from typing import Any

import ml_dtypes  # pyright: ignore[reportMissingImports]
import numpy
import tensorflow as tf

float32, float64 = tf.float32, tf.float64
int8, int64 = tf.int8, tf.int64
complex128 = tf.complex128

abs = tf.abs  # noqa: A001
exp = tf.exp
expm1 = tf.math.expm1
floor = tf.floor
isfinite = tf.math.is_finite
isinf = tf.math.is_inf
isnan = tf.math.is_nan
log = tf.math.log
matrix_transpose = tf.linalg.matrix_transpose
real = tf.math.real
reshape = tf.reshape
broadcast_to = tf.broadcast_to
sqrt = tf.sqrt
square = tf.square
tanh = tf.tanh
zeros_like = tf.zeros_like
ones_like = tf.ones_like
sort = tf.sort
stack = tf.stack
unstack = tf.unstack
concat = tf.concat
expand_dims = tf.expand_dims
squeeze = tf.squeeze
permute_dims = tf.transpose
all = tf.reduce_all  # noqa: A001
any = tf.reduce_any  # noqa: A001
max = tf.reduce_max  # noqa: A001
mean = tf.reduce_mean
min = tf.reduce_min  # noqa: A001
sum = tf.reduce_sum  # noqa: A001
linalg = SimpleNamespace(solve=tf.linalg.solve)

_KINDS = {
    "bool": lambda dtype: dtype.is_bool,
    "integral": lambda dtype: dtype.is_integer,
    "real floating": lambda dtype: dtype.is_floating,
}


def isdtype(dtype: Any, kind: str | tuple[str, ...]) -> bool:
    kinds = (kind,) if isinstance(kind, str) else kind
    return builtins.any(_KINDS[each](dtype) for each in kinds)


def finfo(dtype: Any) -> Any:
    return ml_dtypes.finfo(dtype.as_numpy_dtype)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """Return the floating dtype that holds all values of the others."""
    dtypes = [getattr(each, "dtype", each) for each in arrays_and_dtypes]
    size = builtins.max(dtype.size for dtype in dtypes)
    widest = {dtype for dtype in dtypes if dtype.size == size}
    # float16 and bfloat16 are of one size, and neither holds the other.
    return widest.pop() if len(widest) == 1 else float32


def astype(x: Any, dtype: Any, *, copy: bool = True) -> Any:
    if dtype.is_complex and not x.dtype.is_complex:
        # The gradient of tf.cast would warn that it takes a real part.
        return tf.cast(tf.complex(x, tf.zeros_like(x)), dtype)
    return tf.cast(x, dtype)


def asarray(x: Any, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Any:
    # A tensor cannot be changed, so that a copy would be the same.
    if tf.is_tensor(x):
        return x if dtype is None else tf.cast(x, dtype)
    return tf.constant(numpy.asarray(x, dtype=None if dtype is None else dtype.as_numpy_dtype))


def where(condition: Any, x: Any, y: Any) -> Any:
    """Choose element by element; a number takes the dtype of the array beside it."""
    if not tf.is_tensor(x):
        x = tf.constant(x, dtype=y.dtype if tf.is_tensor(y) else None)
    if not tf.is_tensor(y):
        y = tf.constant(y, dtype=x.dtype)
    return tf.where(condition, x, y)


def argsort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Return the stable order; a NaN counts as the largest, tied with +inf."""
    if x.dtype.is_floating:
        # TensorFlow compares numbers alone: with a NaN its sort has no defined result.
        x = where(isnan(x), math.inf, x)
    direction = "DESCENDING" if descending else "ASCENDING"
    # Always stable: of equal entries, TensorFlow's top_k takes the one of lower index first.
    return tf.cast(tf.argsort(x, axis=axis, direction=direction), int64)


def flip(x: Any, *, axis: int) -> Any:
    return tf.reverse(x, axis=[axis])


def roll(x: Any, shift: int, *, axis: int) -> Any:
    # Counted from the front: tf.vectorized_map takes the last axis for that of its rows.
    return tf.roll(x, shift, axis % x.ndim)


def arange(
    start: int, stop: int | None = None, step: int = 1, *, dtype: Any, device: Any = None
) -> Any:
    if stop is None:
        start, stop = 0, start
    return tf.range(start, stop, step, dtype=dtype)


def _without_device(create: Any) -> Any:
    return lambda *args, device=None, **keywords: create(*args, **keywords)


eye, ones, zeros = map(_without_device, (tf.eye, tf.ones, tf.zeros))


def full(shape: Any, value: float, *, dtype: Any, device: Any = None) -> Any:
    return tf.fill(shape, tf.constant(value, dtype=dtype))


def full_like(x: Any, value: float) -> Any:
    return full(x.shape, value, dtype=x.dtype)
