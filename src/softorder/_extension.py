"""The native kernel, if it was built."""

from __future__ import annotations

import importlib
import os
from typing import Any

extension: Any
"""The module softorder._native, or None."""
try:
    extension = importlib.import_module("softorder._native")
except ModuleNotFoundError:
    # Installed with SOFTORDER_NATIVE=0, or without a compiler. Anything else that goes wrong here
    # is an error: a kernel that was built must not go missing without a word.
    extension = None


def cpu_threads() -> int:
    """Return how many threads this process may run at once."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
