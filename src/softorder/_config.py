"""Settings that hold in one thread, for as long as a `with` block lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from softorder import _checks

KERNELS = ("native", "portable", "tiled", "dense")


class _Settings(threading.local):
    # Thread-local, not a ContextVar: torch.compile cannot trace one.
    kernel: str | None = None


_settings = _Settings()


@contextmanager
def config(*, kernel: str | None = None) -> Iterator[None]:
    """Choose, in this thread and inside the `with` block, which kernel computes products with P.

    By default softorder chooses by shape, device and metric; `python -m softorder info` tells what.
    It is an error, when the relaxation is applied, if a kernel is asked for that cannot serve.

    Args:
        kernel: "native" (C++, on the CPU; NeuralSort, and SoftSort with metric "abs" or "square"),
            "portable" (SoftSort with these in array operations, on any device), "tiled" (any
            metric; O(n^2) time, O(n) memory), "dense" (any metric; builds the matrix), or None
            for the automatic choice.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> with so.config(kernel="portable"):
        ...     so.sort(np.array([2.0, 5.0, 4.0]), 0.1)
        array([2.        , 4.00004539, 4.9999546 ])
    """
    if kernel is not None:
        known = {name: name for name in KERNELS}
        _checks.check_choice(kernel, known, "kernel", "Pass one of these, or None to leave it.")
    before, _settings.kernel = _settings.kernel, kernel
    try:
        yield
    finally:
        _settings.kernel = before


def chosen_kernel() -> str | None:
    """Return the kernel that was asked for in this thread, or None."""
    return _settings.kernel
