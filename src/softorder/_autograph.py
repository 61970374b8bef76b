"""A mark that keeps TensorFlow from rewriting our source; it needs no TensorFlow."""

from __future__ import annotations

import types
from collections.abc import Iterable


def skip_autograph(things: Iterable[object]) -> None:
    """Mark functions, and the methods of classes, so that `tf.function` calls them as they are.

    AutoGraph rewrites every function that is called, to turn Python's `if` and `for` into graphs.
    Nothing here needs that, and it takes seconds.
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
