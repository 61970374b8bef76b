"""What carries a gradient back through each function of NumPy that softorder or arithmetic needs.

The gradient of a real number by a complex array is that by its real part plus i times that by its
imaginary part, as in torch. Of a function that is the conjugate of what a rule for real numbers
gives for the conjugate: rules need not know of complex numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.numpy as xp
import numpy as np
import scipy.special

from softorder._array import broadcast_shapes
from softorder._kernels.scan import chunked_scan, scan_gradient
from softorder.numpy._tape import RULES, Recorded, fit, value_of, values_of


def by_argument(function: Callable[..., Any], *rules: Callable[..., Any] | None) -> Any:
    """Return the same function for arrays of which some are recorded.

    Args:
        function: Of plain arrays.
        rules: For each of the first arguments, `(y, *args, **kwargs)` gives what maps the gradient
            of y to that of the argument. It may return it broadcast; None for no derivative.
    """

    @functools.wraps(function)
    def with_pull(recorded: Sequence[bool], *args: Any, **kwargs: Any) -> Any:
        y = function(*args, **kwargs)
        pulls = [
            rule(y, *args, **kwargs) if rule is not None and is_recorded else None
            for rule, is_recorded in zip(rules, recorded, strict=False)
        ]
        return y, lambda g: [None if pull is None else pull(g) for pull in pulls]

    return jointly(with_pull)


def jointly(function: Callable[..., tuple[Any, Callable[[Any], Any]]]) -> Any:
    """Return the same, of a function that gives its value and what maps g to all gradients.

    Its first argument is which of the others are recorded; the gradients of those are asked for.
    A gradient of None is zero.
    """

    @functools.wraps(function)
    def recording(*args: Any, **kwargs: Any) -> Any:
        nodes = [x.node if isinstance(x, Recorded) else None for x in args]
        y, pull = function([node is not None for node in nodes], *map(value_of, args), **kwargs)
        if not any(nodes) or y.dtype.kind not in "fc":
            return y

        def pull_nodes(g: np.ndarray) -> Any:
            pairs = [
                (node, to)
                for node, to in zip(nodes, pull(g.conj()), strict=False)
                if node is not None and to is not None
            ]
            return [(node, fit(to.conj(), node)) for node, to in pairs]

        return Recorded(y, pull_nodes)

    return recording


def _same(*args: Any, **kwargs: Any) -> Any:
    return lambda g: g


def _restore_shape(y: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return functools.partial(np.reshape, shape=x.shape)


def _linear(of: Callable[..., Any]) -> Any:
    """Return the rule of a function whose transpose `of(g, *args)` needs no values."""
    return lambda y, x, *args, **kwargs: lambda g: of(g, *args, **kwargs)


def _larger(which: int) -> Any:
    def rule(y: Any, *pair: Any) -> Any:
        return lambda g: g * np.where(pair[0] == pair[1], 0.5, pair[which] == y)

    return rule


def _expanded(g: Any, axis: Any, keepdims: bool) -> Any:
    """Return g with the dimensions that a reduction has dropped."""
    return g if keepdims or axis is None else np.expand_dims(g, axis)


def _sum(y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    shape = x.shape
    return lambda g: np.broadcast_to(_expanded(g, axis, keepdims), shape)


def _extreme(y: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    def pull(g: Any) -> Any:
        there = x == _expanded(y, axis, keepdims)
        return there * (_expanded(g, axis, keepdims) / np.sum(there, axis=axis, keepdims=True))

    return pull


def _mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    total = np.sum(x, axis=axis, keepdims=keepdims)
    return total / (x.size / max(total.size, 1))


def _transpose(y: Any, x: Any, axes: Any = None) -> Any:
    return lambda g: np.transpose(g, None if axes is None else np.argsort(axes))


def _item(y: Any, x: Any, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    repeated = any(isinstance(part, (np.ndarray, list)) for part in parts)
    shape = x.shape

    def pull(g: Any) -> Any:
        to = np.zeros(shape, g.dtype)
        if repeated:
            np.add.at(to, index, g)
        else:
            to[index] = g
        return to

    return pull


def _concatenate(arrays: Any, axis: int = 0) -> Any:
    values = values_of(arrays)
    ends = np.cumsum([x.shape[axis] for x in values])[:-1]
    nodes = [x.node if isinstance(x, Recorded) else None for x in arrays]

    def pull(g: Any) -> Any:
        parts = zip(nodes, np.split(g, ends, axis), strict=True)
        return [(node, fit(part, node)) for node, part in parts if node is not None]

    return Recorded(np.concatenate(values, axis), pull)


def _stack(arrays: Any, axis: int = 0) -> Any:
    return np.concatenate([np.expand_dims(x, axis) for x in arrays], axis)


def _constant(function: Callable[..., Any]) -> Any:
    return lambda *args, **kwargs: function(*values_of(args), **kwargs)


def _take_along_axis(y: Any, x: Any, index: Any, axis: int) -> Any:
    n = x.shape[axis]

    def pull(g: Any) -> Any:
        g, places = np.moveaxis(g, axis, -1)[..., None], np.moveaxis(index, axis, -1)
        return np.moveaxis(_scatter(g, places, n)[..., 0], -1, axis)

    return pull


# One rule for each argument.
_BY_ARGUMENT: dict[Any, tuple[Any, ...]] = {
    np.positive: (_same,),
    np.negative: (_linear(np.negative),),
    np.add: (_same, _same),
    np.subtract: (_same, lambda y, a, b: np.negative),
    np.multiply: (lambda y, a, b: lambda g: g * b, lambda y, a, b: lambda g: g * a),
    np.divide: (lambda y, a, b: lambda g: g / b, lambda y, a, b: lambda g: -g * y / b),
    np.power: (
        # x^0 has the derivative 0, at 0 too.
        lambda y, x, p: lambda g: g * p * x ** np.where(p == 0, 1.0, p - 1.0),
        lambda y, x, p: lambda g: g * y * np.log(np.where(x == 0, 1.0, x)),
    ),
    np.absolute: (lambda y, x: lambda g: g * np.sign(x).conj(),),
    np.exp: (lambda y, x: lambda g: g * y,),
    np.expm1: (lambda y, x: lambda g: g * (y + 1),),
    np.log: (lambda y, x: lambda g: g / x,),
    np.log1p: (lambda y, x: lambda g: g / (1 + x),),
    np.sqrt: (lambda y, x: lambda g: 0.5 * g / y,),
    np.square: (lambda y, x: lambda g: 2 * g * x,),
    np.tanh: (lambda y, x: lambda g: g * (1 - y * y),),
    np.maximum: (_larger(0), _larger(1)),
    np.minimum: (_larger(0), _larger(1)),
    np.where: (
        None,
        lambda y, here, a, b: lambda g: np.where(here, g, 0),
        lambda y, here, a, b: lambda g: np.where(here, 0, g),
    ),
    np.sum: (_sum,),
    np.max: (_extreme,),
    np.min: (_extreme,),
    np.cumsum: (_linear(lambda g, axis: np.flip(np.cumsum(np.flip(g, axis), axis), axis)),),
    np.real: (_same,),
    np.broadcast_to: (_same,),
    np.reshape: (_restore_shape,),
    np.expand_dims: (_restore_shape,),
    np.squeeze: (_restore_shape,),
    np.transpose: (_transpose,),
    np.swapaxes: (_linear(np.swapaxes),),
    np.flip: (_linear(np.flip),),
    np.roll: (_linear(lambda g, step, axis=None: np.roll(g, -step, axis)),),
    np.take_along_axis: (_take_along_axis,),
    np.ndarray.__getitem__: (_item,),
    np.ndarray.astype: (_same,),
}
RULES.update({function: by_argument(function, *rules) for function, rules in _BY_ARGUMENT.items()})
RULES.update({np.mean: _mean, np.concatenate: _concatenate, np.stack: _stack})
# Of no derivative, or of none but 0.
_FLAT = (np.floor, np.sign, np.zeros_like, np.ones_like, np.full_like, np.result_type)
RULES.update({function: _constant(function) for function in _FLAT})


def _matmul(recorded: Any, a: Any, b: Any) -> Any:
    def pull(g: Any) -> Any:
        # A vector is a row on the left, a column on the right.
        g = g if b.ndim > 1 else g[..., None]
        g = g if a.ndim > 1 else g[..., None, :]
        left, right = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
        to_a = g @ np.swapaxes(right, -1, -2) if recorded[0] else None
        to_b = np.swapaxes(left, -1, -2) @ g if recorded[1] else None
        return to_a, to_b if b.ndim > 1 or to_b is None else to_b[..., 0]

    return np.matmul(a, b), pull


RULES[np.matmul] = jointly(_matmul)


def _scatter(x: np.ndarray, index: np.ndarray, n: int) -> np.ndarray:
    """Return `Wiring.add_along_axis` of plain arrays."""
    batch = broadcast_shapes(x.shape[:-2], index.shape[:-1])
    total = np.zeros((math.prod(batch), n, x.shape[-1]), dtype=x.dtype)
    index = np.broadcast_to(index, (*batch, index.shape[-1]))
    index = index.reshape(len(total), index.shape[-1])
    x = np.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(*index.shape, x.shape[-1])
    np.add.at(total, (np.arange(len(total))[:, None], index), x)
    return total.reshape(*batch, n, x.shape[-1])


def _add_along_axis(y: Any, x: Any, index: Any, n: int) -> Any:
    places = np.broadcast_to(index, (*y.shape[:-2], index.shape[-1]))[..., None]
    return lambda g: np.take_along_axis(g, places, axis=-2)


def _logsumexp(y: Any, x: Any, axis: int) -> Any:
    return lambda g: np.expand_dims(g, axis) * np.exp(x - np.expand_dims(y, axis))


def _scan(recorded: Any, gate: Any, v: Any) -> Any:
    plain_scan = functools.partial(chunked_scan, xp)
    f = plain_scan(gate, v)
    return f, functools.partial(scan_gradient, xp, plain_scan, gate, f)


def _solve(recorded: Any, matrix: Any, b: Any) -> Any:
    y = np.linalg.solve(matrix, b)

    def pull(g: Any) -> Any:
        to_b = np.linalg.solve(np.swapaxes(matrix, -1, -2), g)
        return -to_b @ np.swapaxes(y, -1, -2), to_b

    return y, pull


add_along_axis = by_argument(_scatter, _add_along_axis)
logsumexp = by_argument(scipy.special.logsumexp, _logsumexp)
normal_cdf = by_argument(
    scipy.special.ndtr, lambda y, x: lambda g: g * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
)
scan = jointly(_scan)
solve = jointly(_solve)
