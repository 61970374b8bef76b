"""The native kernel, if it was built."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from typing import Any

import numpy

extension: Any
"""The module softorder._native, or None."""
try:
    extension = importlib.import_module("softorder._native")
except ModuleNotFoundError:
    # Installed with SOFTORDER_NATIVE=0, or without a compiler. Any other failure is an error: a
    # kernel that was built must not be skipped silently.
    extension = None

# pip caches a wheel that was built without a compiler, and would install it again.
_REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir softorder"


def is_built() -> bool:
    """Tell whether there is a native kernel."""
    return extension is not None


def make_call(
    call: Any,
    rows: tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray | None],
    scale: numpy.ndarray | float,
    values: numpy.ndarray | None,
    saved: numpy.ndarray | None,
    threads: int,
) -> Any:
    """Return a call of the extension that holds its NumPy arrays: it has forward and backward.

    Args:
        call: A `_kernels.products.Call`.
        rows: The fields of `_kernels.scores.SortedRows`.
        scale: A number, or (rows,) of float64.
        values: See `_kernels.products.DEFINITIONS`.
        saved: Room for the sums that forward saves, or None.
        threads: The greatest number of threads.
    """
    if isinstance(scale, float):
        scale = numpy.array([scale])
    floats, items = (None, values) if call.takes_items else (values, None)
    formula = call.formula
    return extension.call(
        int(call.product), formula.native, call.own_scores, call.flip, threads, formula.table,
        *rows, scale, floats, items, saved,
    )  # fmt: skip


def why_missing() -> str:
    """Say why there is no native kernel, and how to get it."""
    if importlib.util.find_spec("softorder._build_failed") is None:
        return f"left out on purpose (SOFTORDER_NATIVE=0); to build it: {_REINSTALL}"
    return (
        "its build failed when softorder was installed. Everything works, but more slowly. Install "
        f"a C++ compiler (GCC or Clang), then run `{_REINSTALL}` (or name the folder that you "
        f"installed from); `{_REINSTALL} -v` shows why it fails. To do without it, and without "
        "this message, set SOFTORDER_NATIVE=0 for that command"
    )


if extension is None and importlib.util.find_spec("softorder._build_failed") is not None:
    warnings.warn(f"softorder has no native kernel: {why_missing()}.", stacklevel=2)


def cpu_threads() -> int:
    """Return how many threads this process may run at once."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
