"""`sums_over_others` for array operations that are not fused, with its first derivatives.

All chunks take a step at once, in both directions, in the order of steps from beginning to end:
only what is real and has no terms is brought into that order, and back.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from softorder._array import Array, cast, move_axis
from softorder._kernels.profiles import Exponentials
from softorder._kernels.recurrence import gates, real_sum, term_column
from softorder._kernels.scan import CHUNK, chunked_scan, cut_into_chunks, shift


@dataclass(frozen=True, eq=False)
class Flows:
    """What all items send past each position, by step (`_by_step`): (..., m, c, chunks).

    Attributes:
        left: The sum over the items up to here, this one included, as much as arrives of it.
        right: That over the items from here on.
    """

    left: Sequence[Array]
    right: Sequence[Array]


def gates_by_step(xp: Any, profile: Exponentials, gap: Array, cut: Array) -> list[Array]:
    """Return `gates` by step, each (..., m, 1, chunks)."""
    steps = zip(_by_step(xp, gap), _by_step(xp, cut), strict=True)
    return [gates(xp, profile, *step)[..., None, :] for step in steps]


def chunked_sums_over_others(
    xp: Any, profile: Exponentials, steps: Sequence[Array], w: Array
) -> tuple[Array, Flows]:
    """Return what `sums_over_others` does, and the flows that its derivative is made of.

    In the order of steps from beginning to end: only what is real and has no terms is brought
    into that order, and back.

    Args:
        xp: The array namespace.
        profile: The sum of exponentials.
        steps: `gates_by_step`.
        w: (..., c, n), real, of the same batch.
    """
    weights = term_column(xp, profile, profile.weights, w)[..., None]
    items = [weights * cast(xp, x[..., None, :, :], weights.dtype) for x in _by_step(xp, w)]
    # The gate to the next position: that of the last step is the first of the next chunk.
    first = steps[0]
    onward = [*steps[1:], xp.concat([first[..., 1:], xp.zeros_like(first[..., :1])], axis=-1)]

    def carry(gate: Array, leaving: Array) -> Array:
        return shift(xp, chunked_scan(xp, gate[..., 0, :], leaving))

    def carry_back(gate: Array, leaving: Array) -> Array:
        gate, leaving = xp.flip(gate, axis=-1), xp.flip(leaving, axis=-1)
        return xp.flip(carry(gate, leaving), axis=-1)

    left = _flow(steps, items, carry)
    right = _flow(onward[::-1], items[::-1], carry_back)[::-1]
    sums = [real_sum(xp, profile, a + b, axis=-3) for a, b in zip(left, right, strict=True)]
    # Both sides have the item itself.
    own = 2 * sum(weight.real for weight in profile.weights)
    return _by_item(xp, sums, w.shape[-1]) - own * w, Flows(left, right)


def gap_gradient(
    xp: Any, profile: Exponentials, steps: Sequence[Array], of_w: Flows, of_g: Flows, n: int
) -> Array:
    """Return the gradient of sum(g * sums) in the gaps, (..., n).

    A gap stands between all that is before it and all from there on, in both directions.
    """
    # Both flows have the weights, which count once.
    ratios = [-d / w for d, w in zip(profile.decays, profile.weights, strict=True)]
    factor = term_column(xp, profile, ratios, steps[0])[..., None]

    def before(left: Sequence[Array]) -> list[Array]:
        return [shift(xp, left[-1]), *left[:-1]]

    sides = zip(steps, before(of_w.left), of_g.right, before(of_g.left), of_w.right, strict=True)
    passed = [
        real_sum(xp, profile, factor * gate * xp.sum(a * b + c * d, axis=-2, keepdims=True), -3)
        for gate, a, b, c, d in sides
    ]
    return _by_item(xp, passed, n)[..., 0, :]


def offset_gradient(xp: Any, profile: Exponentials, of_w: Flows, g: Array) -> Array:
    """Return the gradient of sum(g * sums) in the offsets, (..., n), at offsets of 0."""
    decays = term_column(xp, profile, profile.decays, g)[..., None]
    slopes = [
        real_sum(xp, profile, decays * (left - right), axis=-3)
        for left, right in zip(of_w.left, of_w.right, strict=True)
    ]
    return xp.sum(g * _by_item(xp, slopes, g.shape[-1]), axis=-2)


def _flow(
    steps: Sequence[Array], items: Sequence[Array], carry: Callable[[Array, Array], Array]
) -> list[Array]:
    """Return F with F_i = x_i + a_i F_{i-1} by step; all chunks take a step at once.

    Args:
        steps: The gates a.
        items: The items x.
        carry: Given the product of each chunk's gates and what leaves it, what enters the chunks.
    """
    states = [items[0]]
    for a, x in zip(steps[1:], items[1:], strict=True):
        states.append(x + a * states[-1])
    products = list(itertools.accumulate(steps, operator.mul))
    entering = carry(products[-1], states[-1])
    return [state + product * entering for state, product in zip(states, products, strict=True)]


def _by_step(xp: Any, x: Array) -> Sequence[Array]:
    """Return x (..., n), cut into chunks, as one array (..., chunks) for each place in them."""
    n = x.shape[-1]
    length = max(1, min(n, CHUNK))
    return xp.unstack(cut_into_chunks(xp, x, -(-n // length), length))


def _by_item(xp: Any, steps: Sequence[Array], n: int) -> Array:
    """Return what is given by step as (..., n) again."""
    x = move_axis(xp, xp.stack(steps), 0, -1)
    x = xp.reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))
    return x if x.shape[-1] == n else x[..., :n]
