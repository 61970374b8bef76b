"""What P and its transpose have in common: they stand on the left of `@`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from softorder import _messages
from softorder._array import Array, wiring_of


class MatrixLike(ABC):
    """`@` from the left, and a clear error from the right."""

    # NumPy then leaves `array @ P` to __rmatmul__ instead of looking for elements in P.
    __array_ufunc__ = None

    @abstractmethod
    def _matmul(self, v: Array) -> Array:
        """Return this times v, under the rules of matmul."""

    def __matmul__(self, v: Array) -> Array:
        return self._matmul(v)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse to become an array without a word: it has n^2 entries."""
        raise _messages.type_error(
            "an array is asked for",
            type(self).__name__,
            "Call .matrix() to build the matrix; for a row vector v times P write P.T @ v.",
        )

    def __getitem__(self, index: Any) -> Any:
        """Refuse to be indexed: entries are computed when they are asked for, rows at a time."""
        raise _messages.type_error(
            "a soft permutation has no entries to index",
            f"{type(self).__name__}[{index!r}]",
            "For rows write P.rows(0), with an int, a slice or a list; for all, P.matrix().",
        )

    def __rmatmul__(self, v: Array) -> Array:
        raise _messages.type_error(
            "a soft permutation stands on the left of @",
            f"{_messages.describe(v)} @ {type(self).__name__}",
            "For a row vector v times P write P.T @ v.",
        )

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Serve torch.matmul(P, v), and `P @ v` inside torch.compile.

        The compiler does not look for `__matmul__` when the other side is a tensor; it asks here,
        and with the two sides exchanged (seen with torch 2.13), so that `v @ P` looks the same.
        Hence `v @ P` is an error everywhere else: it must not have a meaning that changes.
        """
        if func.__name__ != "matmul" or len(args) != 2:
            return NotImplemented
        left, right = args
        if isinstance(left, cls):
            return left._matmul(right)
        if wiring_of(v=left).is_compiling():
            return right._matmul(left)
        return right.__rmatmul__(left)
