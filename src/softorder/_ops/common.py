"""What the operations share: the temperature or relaxation `how`, scores, and a mask."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy

from softorder import _checks, _messages, relaxations
from softorder._array import Array, find_wiring, read, wiring_of
from softorder._permutation import SoftPermutation
from softorder.relaxations import SoftSort
from softorder.relaxations.base import Relaxation, short_lived_permutation

How: TypeAlias = Any
"""A temperature for SoftSort (a number or an array), or a relaxation."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def operation(
    dim_at: int | None = None, *, warn: bool = False
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Let an operation explain the arguments that users of other libraries give it.

    Args:
        dim_at: The place of `how` where torch has `dim`: an integer there is suspect.
        warn: Whether one that can be a temperature is worth a warning.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        names = tuple(inspect.signature(function).parameters)
        name = function.__name__

        @functools.wraps(function)
        def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            for keyword in kwargs:
                if keyword not in names:
                    raise TypeError(
                        _messages.unknown_argument(name, keyword, kwargs[keyword], names)
                    )
            how: Any = args[dim_at] if dim_at is not None and len(args) > dim_at else None
            if isinstance(how, (int, numpy.integer)) and not isinstance(how, bool):
                wiring = find_wiring(args[0])
                # A compiler cannot trace a warning.
                is_silent = wiring is not None and wiring.is_compiling()
                _checks.check_not_dim(int(how), name, warn=warn and not is_silent)
            return function(*args, **kwargs)

        return checked

    return decorate


def as_relaxation(how: How) -> Any:
    """Return `how` as a relaxation: a number or an array is the temperature of a SoftSort.

    Args:
        how: A number, an array, or a `Relaxation`.

    Example:
        >>> import softorder as so
        >>> so.as_relaxation(0.1)
        SoftSort(tau=0.1, metric='abs')
    """
    if isinstance(how, Relaxation):
        return how
    if not isinstance(how, _checks.REAL) and find_wiring(how) is None:
        fix = (
            "Pass for example 0.1, SoftSort(tau=0.1), or an object of a class of your own that "
            "inherits from softorder.Relaxation."
        )
        if isinstance(how, relaxations.Sinkhorn):
            fix = "It takes a matrix: Sinkhorn(tau)(matrix). For scores: OptimalTransportSort."
        raise _messages.type_error(
            "how must be a temperature (a number or an array) or a relaxation",
            f"the class {how.__name__}" if isinstance(how, type) else _messages.describe(how),
            fix,
        )
    return SoftSort(tau=how)


def relaxation_for(how: How, x: Array) -> Any:
    """Return `how` as a relaxation; an array must be of the framework of x."""
    if not isinstance(how, (Relaxation, *_checks.REAL)) and find_wiring(how) is not None:
        wiring_of(x=x, how=how)
    return as_relaxation(how)


def as_scores(x: Array, mask: Array | None, name: str = "x") -> Array:
    """Check scores by the name that they have here; return the array to compute with."""
    x = read(x, name)
    wiring = find_wiring(x)
    if wiring is None or mask is not None:
        wiring = wiring_of(**{name: x, "mask": read(mask, "mask")})
    _checks.check_floating(wiring.xp, x, name)
    return x


def relax(
    relaxation: Any, scores: Array, dim: int, mask: Array | None, needs: str = "permutation"
) -> SoftPermutation:
    """Return the permutation of a relaxation, or say which relaxations have what is needed.

    Args:
        relaxation: The relaxation.
        scores: The scores.
        dim: The dimension that holds the items.
        mask: True where an item takes part.
        needs: Which of its methods, besides `permutation`, serves the operation.
    """
    if hasattr(relaxation, "permutation"):
        return short_lived_permutation(relaxation, scores, dim, mask)
    able = [
        name
        for name in relaxations.__all__
        if any(hasattr(getattr(relaxations, name), method) for method in (needs, "permutation"))
    ]
    hint = f" {relaxation.hint}" if relaxation.hint else ""
    raise _messages.type_error(
        f"this operation needs a relaxation that has {_NEEDS[needs]}",
        f"{type(relaxation).__name__}, which has none",
        f"Use one of these: {', '.join(able)}.{hint}",
    )


_NEEDS = {"permutation": "a permutation matrix", "rank": "ranks", "sort": "sorted values"}
