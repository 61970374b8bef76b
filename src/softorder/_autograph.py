"""A mark that keeps TensorFlow from rewriting our source; it needs no TensorFlow."""

from __future__ import annotations

import types
from collections.abc import Iterable


def leave_as_written(things: Iterable[object]) -> None:
    """Mark functions, and the methods of classes, so that `tf.function` calls them as they are.

    Its AutoGraph would rewrite every function that is called, to make graphs of Python's `if` and
    `for`. There is nothing to gain here, and it takes seconds.
    """
    for thing in things:
        for function in _functions(thing):
            # What tf.autograph.experimental.do_not_convert sets.
            function.autograph_info__ = {}  # pyright: ignore[reportFunctionMemberAccess]


def _functions(thing: object) -> list[types.FunctionType]:
    if not isinstance(thing, type):
        return [thing] if isinstance(thing, types.FunctionType) else []
    ours = [kind for kind in thing.__mro__ if kind.__module__.startswith("softorder")]
    members = [member for kind in ours for member in vars(kind).values()]
    return [member for member in members if isinstance(member, types.FunctionType)]
