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

from softorder._kernels.profiles import Exponentials
from softorder._kernels.recurrence import gates
from softorder._kernels.recurrence import sums_over_others as sums_by_scans
from softorder._kernels.scan import chunked_scan, scan_gradient
from softorder.tensorflow import _namespace as xp
from softorder.tensorflow._flows import (
    chunked_sums_over_others,
    gap_gradient,
    gates_by_step,
    offset_gradient,
)


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
    return scan_gradient(xp, scan, gate, f, g, _conjugate)


def sums_over_others(profile: Exponentials, gap: Any, cut: Any, w: Any, offset: Any) -> Any:
    """Return that of `_kernels.recurrence` for the gates of gaps (..., n), and w (..., c, n)."""
    batch = numpy.broadcast_shapes(tuple(gap.shape[:-1]), tuple(w.shape[:-2]))
    rows = [gap, cut] if offset is None else [gap, cut, offset]
    gap, cut, *moved = (tf.broadcast_to(x, (*batch, x.shape[-1])) for x in rows)
    w = tf.broadcast_to(w, (*batch, *w.shape[-2:]))

    @tf.custom_gradient
    def sums(*arrays: Any) -> tuple[Any, Callable[[Any], Any]]:
        gap, w = (tf.stop_gradient(x) for x in arrays[:2])
        steps = gates_by_step(xp, profile, gap, cut)
        y, of_w = chunked_sums_over_others(xp, profile, steps, w)

        def to_inputs(*arrays: Any) -> list[Any]:
            # The weights are symmetric.
            to_w, of_g = chunked_sums_over_others(xp, profile, steps, arrays[-1])
            to = [gap_gradient(xp, profile, steps, of_w, of_g, gap.shape[-1]), to_w]
            return [*to, offset_gradient(xp, profile, of_w, arrays[-1])] if moved else to

        def to_inputs_by_scans(*arrays: Any) -> Any:
            *inputs, g = arrays
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                gate = gates(xp, profile, inputs[0], cut)
                y = sums_by_scans(scan, xp, profile, gate, *inputs[1:])
            return tape.gradient(y, inputs, g)

        return y, lambda g: _with_derivative(to_inputs, to_inputs_by_scans)(*arrays, g)

    return sums(gap, w, *moved)


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
