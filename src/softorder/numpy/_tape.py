"""A recorded array: a NumPy array that remembers what it was made of.

NumPy asks such an array whenever it is handed to one of its functions; `_rules.py` then answers
with the value and with what carries a gradient back.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy
from numpy.lib.mixins import NDArrayOperatorsMixin

from softorder import _messages

Gradients: TypeAlias = "Iterable[tuple[Node, numpy.ndarray]]"

# Numbers grow as nodes are made, so that going down the numbers is going back in time.
_numbers = itertools.count()


class Node:
    """Where a recorded array stands in the graph. It does not hold the array's values.

    Attributes:
        number: Greater than those of all nodes it was made of.
        pull: Maps the gradient of this node to those of the nodes it was made of. None for an
            argument of the function that is differentiated.
        shape: Of the array.
        dtype: Of the array.
    """

    __slots__ = ("dtype", "number", "pull", "shape")

    def __init__(
        self, value: numpy.ndarray, pull: Callable[[numpy.ndarray], Gradients] | None
    ) -> None:
        self.number = next(_numbers)
        self.pull = pull
        self.shape, self.dtype = value.shape, value.dtype


class Recorded(NDArrayOperatorsMixin):
    """A NumPy array of a floating or complex dtype, with its node. It is never changed in place."""

    __slots__ = ("node", "value")

    def __init__(
        self, value: Any, pull: Callable[[numpy.ndarray], Gradients] | None = None
    ) -> None:
        """Hold a value, and what carries its gradient back."""
        self.value = numpy.asarray(value)
        self.node = Node(self.value, pull)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        # `a += b` asks for a + b in place of a; the name a is given the result either way.
        if kwargs.get("out", (None,))[0] is args[0] and isinstance(args[0], Recorded):
            del kwargs["out"]
        if method != "__call__" or kwargs:
            detail = "" if method == "__call__" else f".{method}"
            raise _not_followed(f"numpy.{ufunc.__name__}{detail}", *kwargs)
        return self.__array_function__(ufunc, (), args, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        by_name = any(isinstance(x, Recorded) for x in kwargs.values())
        if function in RULES and not by_name:
            return RULES[function](*args, **kwargs)
        # Comparisons and indices have no derivative.
        result = function(*values_of(args), **{k: value_of(x) for k, x in kwargs.items()})
        if numpy.asarray(result).dtype.kind not in "biu":
            raise _not_followed(f"numpy.{function.__name__}", *kwargs)
        return result

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to become an array without a word: it would lose its gradient."""
        raise _not_followed("a conversion to a NumPy array")

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "ndim", "size", "dtype", "device"):
            return getattr(self.value, name)
        function = getattr(numpy, name, None) if hasattr(numpy.ndarray, name) else None
        if function in RULES:
            return functools.partial(RULES[function], self)
        raise AttributeError(str(_not_followed(f"the attribute {name}")))

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        return RULES[numpy.ndarray.astype](self, dtype)

    def reshape(self, *shape: Any) -> Any:
        return RULES[numpy.reshape](self, shape[0] if len(shape) == 1 else shape)

    @property
    def T(self) -> Any:
        return RULES[numpy.transpose](self)

    def __getitem__(self, index: Any) -> Any:
        return RULES[numpy.ndarray.__getitem__](self, index)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        # Without it, an array of no dimensions would pass for an empty one.
        return (self[i] for i in range(len(self)))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"Recorded({self.value!r})"


def _not_followed(what: str, *keywords: str) -> TypeError:
    """Return an error that says what `vjp` cannot follow, and which functions it can."""
    names = sorted(name for f in RULES if not (name := f.__name__).startswith("_"))
    return _messages.type_error(
        "vjp follows softorder's operations, arithmetic, indexing and some functions of NumPy",
        what + "".join(f", {name}=" for name in keywords),
        f"Write it with operators (never in place) and with these: {', '.join(names)}.",
    )


# Function of NumPy -> the same for arrays of which some are recorded; `_rules.py` fills it.
RULES: dict[Any, Callable[..., Any]] = {}


def value_of(x: Any) -> Any:
    """Return the values of a recorded array; anything else as it is."""
    return x.value if isinstance(x, Recorded) else x


def values_of(arguments: Iterable[Any]) -> list[Any]:
    """Return arguments without records, also where they stand in a list."""
    return [values_of(x) if isinstance(x, (list, tuple)) else value_of(x) for x in arguments]


def fit(g: Any, node: Node) -> numpy.ndarray:
    """Return a gradient in the shape and dtype of its node: what was broadcast is summed."""
    if g.shape != node.shape:
        g = g.sum(axis=tuple(range(g.ndim - len(node.shape))))
        widened = [i for i, size in enumerate(node.shape) if size != g.shape[i]]
        g = g.sum(axis=tuple(widened), keepdims=True)
    # A real array that became complex has no imaginary part that could move.
    g = g.real if g.dtype.kind == "c" and node.dtype.kind != "c" else g
    return numpy.asarray(g, dtype=node.dtype)


def now() -> int:
    """Return a number that is less than those of all nodes to come."""
    return next(_numbers)


def pull_back(y: Recorded, g: numpy.ndarray, since: int) -> Gradients:
    """Carry the gradient g of y back to the nodes that are older than `since`."""
    found = {y.node.number: (y.node, g)}
    newest = [-y.node.number]
    while newest and -newest[0] > since:
        node, g = found.pop(-heapq.heappop(newest))
        assert node.pull is not None
        for source, to in node.pull(g):
            if source.number in found:
                found[source.number] = (source, found[source.number][1] + to)
            else:
                found[source.number] = (source, to)
                heapq.heappush(newest, -source.number)
    return list(found.values())


def checkpoint(function: Callable[..., Any], *arrays: Any) -> Any:
    """Return function(*arrays), which is called again to go back instead of being remembered.

    The function may use recorded arrays that are not among its arguments: whatever is older than
    this call is what its gradient goes to.
    """
    since = now()
    y = function(*arrays)
    if not isinstance(y, Recorded):
        return y
    return Recorded(y.value, lambda g: pull_back(function(*arrays), g, since))
