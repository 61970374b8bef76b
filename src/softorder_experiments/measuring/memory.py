"""The peak memory of one call."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softorder_experiments.measuring.timing import time_call


def peak_memory(call: Callable[[], object], device: str = "cpu") -> tuple[dict[str, Any], float]:
    """Run a call once; return the peak of memory above the state before, and the time.

    The call should be the first of its size in this process. On the CPU, memory that smaller calls
    freed is returned to the system first, so that the call cannot reuse it unseen.
    """
    if device == "cuda":
        return _peak_cuda_memory(call)
    gc.collect()
    with contextlib.suppress(AttributeError, TypeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
    before, method = _reset_peak()
    result: list[object] = []  # the result is part of the peak, so keep it until the peak is read
    seconds = time_call(lambda: result.append(call()))
    after = _status("VmHWM") if method == "VmHWM" else _lifetime_peak()
    return {"bytes": max(0, after - before), "method": method}, seconds


def _peak_cuda_memory(call: Callable[[], object]) -> tuple[dict[str, Any], float]:
    import torch

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    seconds = time_call(call)
    return {"bytes": torch.cuda.max_memory_allocated() - before, "method": "cuda"}, seconds


def _reset_peak() -> tuple[int, str]:
    """Reset the high-water mark where the system can; return resident bytes and the method."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Without a reset, a call that stays below an earlier peak shows no growth.
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
