"""What a user can mend: shown without a traceback, with an exit code that is not 0."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class UserError(Exception):
    """Something outside the program is not as it must be.

    Args:
        expected: What was expected.
        received: What came.
        fix: How to mend it.
    """

    def __init__(self, expected: str, received: str, fix: str) -> None:
        received = received.rstrip(".")
        self.expected, self.received, self.fix = expected, received, fix
        super().__init__(f"{expected}; got {received}. {fix}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        """Say how it is made again in another process."""
        return type(self), (self.expected, self.received, self.fix)


def look_up(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """Return the choice of that name; for any other, an error with the nearest valid name."""
    if name in choices:
        return choices[name]
    raise UserError(
        f"{kind} must be one of {', '.join(sorted(choices))}", repr(name), nearest(name, choices)
    )


def nearest(name: str, choices: Iterable[str]) -> str:
    """Ask whether the most similar of the choices was meant."""
    found = difflib.get_close_matches(name.lower(), list(choices), n=1, cutoff=0.0)
    return f"Did you mean {found[0]!r}?" if found else ""


@contextlib.contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn what can go wrong when writing a file into an error that names it."""
    try:
        yield
    except OSError as error:
        space = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "Free some space" if space else "Choose another folder with --out"
        raise UserError(
            f"{path} must be writable",
            os.strerror(error.errno or 0),
            f"{fix}. What was written before is whole: `softorder resume` continues from there",
        ) from error


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that its name stands for the old content or the new, never for a part."""
    partial = path.with_suffix(".partial")
    with report_write_errors(path):
        try:
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
