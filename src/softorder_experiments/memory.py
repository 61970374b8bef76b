"""The memory of this process: how much is available, and whether freed memory is kept."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Make this process keep the memory it frees; return whether the C library supports that.

    By default glibc returns every large block to the system at once, so that each training step
    has to fetch the pages of all its activations again: a fifth of the step's time on the CPU.
    Other C libraries do not have this setting, and Windows does not have this behaviour.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another library; Windows
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


def available_memory() -> int:
    """Return the bytes that can be allocated without swapping."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return next(
        int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable")
    )
