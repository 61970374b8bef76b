"""The recurrence F_i = v_i + gate_i F_{i-1} in array operations. Its derivatives are scans too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softorder._array import Array, Wiring, move_axis

# Short chunks: few operations on long arrays. Longer ones were slower at every n.
CHUNK = 16


def chunked_scan(xp: Any, gate: Array, v: Array) -> Array:
    """Return F with F_i = v_i + gate_i F_{i-1} along the last axis.

    The row is cut into chunks. All chunks take a step at once; then what leaves each chunk is
    carried into the next by the same function. So n items need about log(n) array operations.

    Args:
        xp: The array namespace.
        gate: (..., n); the first does not matter.
        v: (..., c, n).
    """
    n = v.shape[-1]
    if n == 0:
        return xp.zeros_like(v)
    length = min(n, CHUNK)
    chunks = -(-n // length)
    states, products = _steps(
        xp,
        _steps_first(xp, v, chunks, length),
        _steps_first(xp, gate[..., None, :], chunks, length),
    )
    if chunks > 1:
        leaving = chunked_scan(xp, products[-1, ..., 0, :], states[-1, ...])
        states = states + products * shift(xp, leaving)
    whole = move_axis(xp, states, 0, -1)
    whole = xp.reshape(whole, (*whole.shape[:-2], chunks * length))
    return whole if chunks * length == n else whole[..., :n]


def shift(xp: Any, x: Array, first: Array | None = None) -> Array:
    """Return x moved on by one along the last axis, with `first` (or 0) in front."""
    front = xp.zeros_like(x[..., :1]) if first is None else first
    return xp.concat([front, x[..., :-1]], axis=-1)


def scan_gradient(
    xp: Any,
    scan: Callable[[Array, Array], Array],
    gate: Array,
    f: Array,
    g: Array,
    conjugate: Callable[[Array], Array] = lambda x: x,
) -> tuple[Array, Array]:
    """Return the gradients of the gate and of v: the same recurrence from the other end.

    Args:
        xp: The array namespace.
        scan: The recurrence, differentiable.
        gate: (..., n).
        f: Its result (..., c, n).
        g: The gradient of the result.
        conjugate: The complex conjugate, where gradients are those of torch and TensorFlow.
    """
    back = conjugate(shift(xp, xp.flip(gate, axis=-1)))
    to_v = xp.flip(scan(back, xp.flip(g, axis=-1)), axis=-1)
    return xp.sum(to_v * conjugate(shift(xp, f)), axis=-2), to_v


def cumulative_logsumexp(wiring: Wiring, x: Array) -> Array:
    """Return log(exp(x_0) + ... + exp(x_i)) at i, along the last axis; x may hold -inf.

    Frameworks have this too, but their derivatives are NaN where the sum is still empty.
    """
    xp = wiring.xp
    largest = wiring.running_maximum(wiring.stop_gradient(x))
    empty = largest == -math.inf
    level = xp.where(empty, 0.0, largest)
    before = shift(xp, largest, xp.full_like(largest[..., :1], -math.inf))
    # Sums of exp(x - level): at least 1, for the largest counts 1.
    gate, term = xp.exp(before - level), xp.exp(x - level)[..., None, :]
    sums = wiring.scan(gate, term)[..., 0, :]
    return xp.where(empty, -math.inf, level + xp.log(xp.where(empty, 1.0, sums)))


def _steps_first(xp: Any, x: Array, chunks: int, length: int) -> Array:
    """Return x (..., n) as (length, ..., chunks): what all chunks do at once lies together."""
    # So that torch puts it into this order in memory: twice as fast.
    return xp.stack([cut_into_chunks(xp, x, chunks, length)])[0, ...]


def cut_into_chunks(xp: Any, x: Array, chunks: int, length: int) -> Array:
    padding = chunks * length - x.shape[-1]
    if padding:
        x = xp.concat([x, xp.zeros_like(x[..., :padding])], axis=-1)
    return move_axis(xp, xp.reshape(x, (*x.shape[:-1], chunks, length)), -1, 0)


def _steps(xp: Any, v: Array, gate: Array) -> tuple[Array, Array]:
    """Scan along the first axis, step by step; return the scan, and the products of the gates."""
    state, product = v[0, ...], gate[0, ...]
    states, products = [state], [product]
    for i in range(1, v.shape[0]):
        step = gate[i, ...]
        state = v[i, ...] + step * state
        product = step * product
        states.append(state)
        products.append(product)
    return xp.stack(states), xp.stack(products)
