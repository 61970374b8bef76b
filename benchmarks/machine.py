"""The machine while measuring: its free memory, and what else it does."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def available_memory() -> int:
    """Return the bytes that can be taken without swapping."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return next(
        int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable")
    )


class OtherWork:
    """How much of the processors other processes take while a child of this one runs."""

    def __init__(self) -> None:
        self.start = self._read()

    def share(self) -> float | None:
        """Return the share since the start, 0 to 1; None where the system does not tell."""
        end = self._read()
        if end is None or self.start is None:
            return None
        total, busy, own = (after - before for after, before in zip(end, self.start, strict=True))
        return max(0.0, (busy - own) / total) if total else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Return seconds of all processors: in total, busy, and busy for us."""
        try:
            line = Path("/proc/stat").read_text().splitlines()[0]
        except OSError:
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
        ticks = [int(part) for part in line.split()[1:9]]
        total, idle = sum(ticks), ticks[3] + ticks[4]
        used = os.times()
        own = used.user + used.system + used.children_user + used.children_system
        second = os.sysconf("SC_CLK_TCK")
        return total / second, (total - idle) / second, own
