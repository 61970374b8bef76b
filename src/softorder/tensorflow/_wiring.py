"""What TensorFlow adds to the array API standard: gradients, graphs, variables. No mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import tensorflow as tf

from softorder import _checks, _messages
from softorder._array import Wiring, slices
from softorder.tensorflow import _namespace as xp
from softorder.tensorflow._scan import scan, sums_over_others


def _read(x: Any, name: str) -> Any:
    """Return a tensor of known shape: that which a variable holds now, or x itself."""
    if isinstance(x, tf.Variable):
        x = tf.convert_to_tensor(x)
    if not x.shape.is_fully_defined():
        raise ValueError(_messages.unknown_shape(name, x.shape))
    return x


def _is_concrete(x: Any) -> bool:
    # In a graph, what is computed of a known value is not known.
    return tf.executing_eagerly() and "CPU" in x.device


def _take_along_axis(x: Any, index: Any, axis: int) -> Any:
    axis %= len(x.shape)
    if any(size != 1 for size in index.shape[axis + 1 :]):
        x, index = (tf.experimental.numpy.moveaxis(a, axis, -1) for a in (x, index))
        return tf.experimental.numpy.moveaxis(_take_along_axis(x, index, -1), -1, axis)
    tail = tuple(x.shape[axis + 1 :])
    index = tf.reshape(index, index.shape[: axis + 1])
    batch = numpy.broadcast_shapes(tuple(x.shape[:axis]), tuple(index.shape[:-1]))
    x = tf.broadcast_to(x, (*batch, *x.shape[axis:]))
    index = tf.broadcast_to(index, (*batch, index.shape[-1]))
    rows, n = math.prod(batch), x.shape[axis]
    y = tf.gather(tf.reshape(x, (rows * n, *tail)), _flat(index, rows, n))
    return tf.reshape(y, (*index.shape, *tail))


def _add_along_axis(x: Any, index: Any, n: int) -> Any:
    batch = numpy.broadcast_shapes(tuple(x.shape[:-2]), tuple(index.shape[:-1]))
    x = tf.broadcast_to(x, (*batch, *x.shape[-2:]))
    index = tf.broadcast_to(index, (*batch, index.shape[-1]))
    rows = math.prod(batch)
    x = tf.reshape(x, (rows * index.shape[-1], x.shape[-1]))
    total = tf.math.unsorted_segment_sum(x, _flat(index, rows, n), rows * n)
    return tf.reshape(total, (*batch, n, x.shape[-1]))


def _flat(index: Any, rows: int, n: int) -> Any:
    """Return an index into each of some rows of length n as one into all of them."""
    first = n * tf.range(rows, dtype=index.dtype)
    return tf.reshape(tf.reshape(index, (rows, index.shape[-1])) + first[:, None], (-1,))


def _by_parts(function: Callable[[Any], Any], rows: Any, height: int, axis: int) -> Any:
    parts = slices(rows, height)
    if tf.executing_eagerly() or len(parts) < 3:
        return tf.concat([function(part) for part in parts], axis)
    # A graph has one copy of the function for all parts that are alike, and two at the ends.
    first, *alike, last = parts
    first, last = function(first), function(last)
    middle = tf.map_fn(function, tf.stack(alike), fn_output_signature=first.dtype)
    middle = tf.concat(tf.unstack(middle), axis)
    return tf.concat([first, middle, last], axis)


def _fold(step: Callable[[Any, Any], Any], state: Any, xs: Any) -> Any:
    return tf.foldl(step, tf.range(len(xs)) if isinstance(xs, range) else xs, state)


def _host(function: Callable[[numpy.ndarray], numpy.ndarray], x: Any) -> Any:
    if not tf.executing_eagerly():
        raise TypeError(_messages.needs_values("this relaxation"))
    return tf.constant(function(x.numpy()))


def _gumbel(shape: tuple[int, ...], like: Any, generator: Any) -> Any:
    _checks.check_generator(generator, tf.random.Generator, "tf.random.Generator.from_seed(0)")
    draw = tf.random.uniform if generator is None else generator.uniform
    uniform = draw(shape, dtype=like.dtype)
    # Below 1 always, but 0 now and then.
    return -tf.math.log(-tf.math.log(tf.maximum(uniform, float(xp.finfo(like.dtype).tiny))))


TENSORFLOW = Wiring(
    name="tensorflow",
    xp=xp,
    is_compiling=lambda: not tf.executing_eagerly(),
    trace=lambda: None if tf.executing_eagerly() else tf.compat.v1.get_default_graph(),
    is_concrete=_is_concrete,
    survives_backward=lambda: False,
    copy=lambda x: tf.convert_to_tensor(x) if isinstance(x, tf.Variable) else x,
    read=_read,
    stop_gradient=tf.stop_gradient,
    take_along_axis=_take_along_axis,
    add_along_axis=_add_along_axis,
    matmul=tf.linalg.matmul,
    # No checkpoint by tf.recompute_grad: what a function holds would lose its gradient.
    logsumexp=lambda x, axis: tf.reduce_logsumexp(x, axis=axis),
    cumulative_sum=lambda x, axis: tf.cumsum(x, axis=axis),
    normal_cdf=lambda x: 0.5 * tf.math.erfc(-math.sqrt(0.5) * x),
    call_on_cpu=_host,
    gumbel=_gumbel,
    # TensorFlow has no running maximum.
    running_maximum=lambda x: tf.math.cumulative_logsumexp(x, axis=-1),
    by_parts=_by_parts,
    fold=_fold,
    cond=tf.cond,
    scan=scan,
    sums_over_others=sums_over_others,
)
