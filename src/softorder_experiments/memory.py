"""The memory of this process: how much there is, what a call takes, and what is kept."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def available_memory() -> int:
    """Return the bytes that can be taken without swapping."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return next(
        int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable")
    )


def peak_extra_memory(call: Callable[[], object]) -> tuple[dict[str, Any], float]:
    """Run once; return the peak of resident memory above the state before, and the time.

    The call should be the first of its size in this process: what smaller calls freed is given
    back before, so that nothing it needs can hide in memory that was already there.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    before, method = _reset_peak()
    start = time.perf_counter()
    result = call()
    elapsed = time.perf_counter() - start
    after = _status("VmHWM") if method == "VmHWM" else _lifetime_peak()
    del result  # it is part of the peak: held until here
    return {"bytes": max(0, after - before), "method": method}, elapsed


def _reset_peak() -> tuple[int, str]:
    """Reset the high-water mark where the system can; return resident bytes and the method."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Without a reset the difference misses what stays below an earlier peak.
        return _lifetime_peak(), "ru_maxrss"
    return _status("VmRSS"), "VmHWM"


def _status(name: str) -> int:
    """Return an entry of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def _lifetime_peak() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
