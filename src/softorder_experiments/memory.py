"""How the C library deals with memory that is freed."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep the memory it frees; tell whether the C library understood.

    glibc gives every large block back to the system at once, so each step of a training would
    fetch all its activations page by page again: on the CPU, a fifth of its time. Other libraries
    have no such setting, and Windows no such habit.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another library; Windows
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))
