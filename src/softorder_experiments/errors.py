"""Errors that the user can fix: shown without a traceback, with a nonzero exit code."""

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
    """Input, a file or the machine is not as the program needs it.

    Args:
        expected: What was expected.
        received: What was found.
        fix: How to fix it.
    """

    def __init__(self, expected: str, received: str, fix: str) -> None:
        received = received.rstrip(".")
        self.expected, self.received, self.fix = expected, received, fix
        super().__init__(f"{expected}; got {received}. {fix}")

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        """Pickle the three parts, to travel between processes."""
        return type(self), (self.expected, self.received, self.fix)


def look_up(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """Return the choice with that name; an unknown name is an error with the nearest valid one."""
    if name in choices:
        return choices[name]
    raise UserError(
        f"{kind} must be one of {', '.join(sorted(choices))}", repr(name), nearest(name, choices)
    )


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the question whether the most similar choice was meant."""
    found = difflib.get_close_matches(name.lower(), list(choices), n=1, cutoff=0.0)
    return f"Did you mean {found[0]!r}?" if found else ""


@contextlib.contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError while writing a file into an error that names the file."""
    try:
        yield
    except OSError as error:
        space = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fix = "Free some space" if space else "Choose another folder with --out"
        raise UserError(
            f"{path} must be writable",
            os.strerror(error.errno or 0),
            f"{fix}. Earlier files are intact: `softorder resume` continues from the checkpoint",
        ) from error


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that it always holds either the old content or all of the new."""
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
