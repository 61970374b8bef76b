"""The recurrences as differentiable functions of TensorFlow. No mathematics.

Inside a custom gradient everything is computed from constants: a tape would otherwise keep every
step, besides what is recorded here. So what a gradient needs of the values is computed once more
if that gradient is itself differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import tensorflow as tf

from softorder.kernels.scan import (
    by_item,
    chunked_scan,
    chunked_sums_beside,
    shift,
    sums_beside,
)
from softorder.tensorflow import _namespace as xp


def scan(gate: Any, v: Any) -> Any:
    """Return F with F_i = v_i + gate_i F_{i-1}: gate (..., n), v (..., c, n)."""
    return _scan(tf.broadcast_to(gate, (*v.shape[:-2], v.shape[-1])), v)


@tf.custom_gradient
def _scan(gate: Any, v: Any) -> tuple[Any, Callable[[Any], Any]]:
    f = chunked_scan(xp, tf.stop_gradient(gate), tf.stop_gradient(v))

    def gradient(g: Any) -> Any:
        return _with_derivative(
            lambda gate, v, g: _scan_gradient(gate, f, g),
            lambda gate, v, g: _scan_gradient(gate, scan(gate, v), g),
        )(gate, v, g)

    return f, gradient


def _scan_gradient(gate: Any, f: Any, g: Any) -> tuple[Any, Any]:
    """Return the gradients of the gate and of v: the same recurrence from the other end."""
    after = xp.concat([gate[..., 1:], xp.zeros_like(gate[..., :1])], axis=-1)
    after = xp.flip(_conjugate(after), axis=-1)
    to_v = xp.flip(scan(after, xp.flip(g, axis=-1)), axis=-1)
    return xp.sum(to_v * _conjugate(shift(xp, f)), axis=-2), to_v


def beside(gate: Any, w: Any) -> Any:
    """Return `kernels.scan.sums_beside`."""
    batch = numpy.broadcast_shapes(tuple(gate.shape[:-1]), tuple(w.shape[:-2]))
    gate = tf.broadcast_to(gate, (*batch, gate.shape[-1]))
    return _beside(gate, tf.broadcast_to(w, (*batch, *w.shape[-2:])))


@tf.custom_gradient
def _beside(gate: Any, w: Any) -> tuple[Any, Callable[[Any], Any]]:
    y, before, beyond = chunked_sums_beside(xp, tf.stop_gradient(gate), tf.stop_gradient(w))

    def to_inputs(gate: Any, w: Any, g: Any) -> tuple[Any, Any]:
        # The weights are symmetric. A gate passes on what is before it to all that is beyond.
        to_w, g_before, g_beyond = chunked_sums_beside(xp, _conjugate(gate), g)
        passed = _conjugate(before) * g_beyond + _conjugate(beyond) * g_before
        return by_item(xp, xp.sum(passed, axis=-2), gate.shape[-1]), to_w

    def to_inputs_by_scans(gate: Any, w: Any, g: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((gate, w))
            again = sums_beside(scan, xp, gate, w)
        return tape.gradient(again, (gate, w), g)

    return y, lambda g: _with_derivative(to_inputs, to_inputs_by_scans)(gate, w, g)


def _with_derivative(values: Callable[..., Any], differentiable: Callable[..., Any]) -> Any:
    """Return a function with the values of one function and the derivatives of another."""

    @tf.custom_gradient
    def function(*arrays: Any) -> tuple[Any, Callable[..., Any]]:
        def gradient(*g: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(arrays)
                results = differentiable(*arrays)
            return tape.gradient(results, arrays, list(g))

        return values(*map(tf.stop_gradient, arrays)), gradient

    return function


def _conjugate(x: Any) -> Any:
    return tf.math.conj(x) if x.dtype.is_complex else x
