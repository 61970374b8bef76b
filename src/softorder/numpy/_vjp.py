"""Gradients of NumPy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy

from softorder import _checks, _messages
from softorder._array import find_wiring
from softorder.numpy._tape import Node, Recorded, now, pull_back, value_of


class _Running(threading.local):
    # An inner vjp would silently return a constant for the outer one: hence an error.
    vjp: Callable[..., Any] | None = None


_running = _Running()


def vjp(
    function: Callable[..., Any], x: numpy.ndarray, *more: Any, **keywords: Any
) -> tuple[numpy.ndarray, Callable[[Any], Any]]:
    """Return y = function(x, *more, **keywords), and what maps a gradient of y to that of x.

    The function may use every operation of softorder, arithmetic, indexing and the usual functions
    of NumPy (`numpy.exp`, `numpy.sum`, `numpy.where`, ...); one that cannot be followed is an
    error. As in `jax.vjp`, but x is any NumPy array, and nothing is traced: the function runs once,
    on values that can be looked at. First derivatives only.

    Args:
        function: Takes the arguments below and returns one array of any shape.
        x: What is differentiated: an array of a floating dtype, any shape.
        more: Further positional arguments. Those that are arrays of a floating dtype are
            differentiated too, a temperature for example; all others are passed on as they are.
        keywords: Passed on as they are, and constant.

    Returns:
        y, a plain array, and `pullback(g)`. For g of the shape of y (a number if y has no
        dimensions) it gives the gradient of sum(g * y): an array of the shape and dtype of x, or a
        tuple with one for each array that is differentiated, if there are several. It can be called
        any number of times; zeros where y does not depend on an argument.

    Raises:
        TypeError: If x is no NumPy array of a floating dtype, if the function returns something
            that is no array, or if it uses something that has no derivative here.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> x = np.array([2.0, 5.0, 4.0])
        >>> y, pullback = so.vjp(so.sort, x, np.array(0.5))
        >>> y.round(3)
        array([2.043, 4.086, 4.875])
        >>> of_x, of_tau = pullback(np.array([0.0, 0.0, 1.0]))
        >>> of_x.round(3)
        array([-0.01 ,  1.099, -0.089])
        >>> loss, pullback = so.vjp(lambda x: np.sum((so.rank(x, 0.5) - [1, 2, 3]) ** 2), x)
        >>> pullback(1.0).shape
        (3,)
    """
    if _running.vjp is not None:
        raise TypeError(_messages.second_derivative(_running.vjp))
    if not _is_differentiated(x):
        wiring = find_wiring(x)
        raise TypeError(_messages.not_differentiable(x, None if wiring is None else wiring.name))
    # Copies: what the caller does to x and y later must not change what was recorded.
    arguments = [Recorded(numpy.array(a)) if _is_differentiated(a) else a for a in (x, *more)]
    since = now()
    _running.vjp = function
    try:
        result = function(*arguments, **keywords)
    finally:
        _running.vjp = None
    if not isinstance(result, (Recorded, numpy.ndarray, numpy.generic)):
        raise TypeError(_messages.not_one_array(result))
    leaves = [a.node for a in arguments if isinstance(a, Recorded)]
    return _with_pullback(result, leaves, since)


def _with_pullback(result: Any, leaves: list[Node], since: int) -> tuple[numpy.ndarray, Any]:
    """Return the value of a result, and what maps a gradient of it to those of the leaves."""
    y = numpy.array(value_of(result))

    def pullback(g: Any) -> Any:
        """Return the gradient of sum(g * y)."""
        _checks.check_cotangent(g, isinstance(g, numpy.ndarray), y.shape)
        found: dict[Any, numpy.ndarray] = {}
        if isinstance(result, Recorded):
            # What is masked out may be infinite or NaN on the way.
            with numpy.errstate(all="ignore"):
                found = dict(pull_back(result, numpy.array(g, dtype=y.dtype), since))
        gradients = [
            numpy.array(found[leaf]) if leaf in found else numpy.zeros(leaf.shape, leaf.dtype)
            for leaf in leaves
        ]
        return gradients[0] if len(gradients) == 1 else tuple(gradients)

    return y, pullback


def _is_differentiated(x: Any) -> bool:
    is_array = isinstance(x, numpy.ndarray) and find_wiring(x) is not None
    return is_array and x.dtype.kind == "f"
