"""How busy other processes kept the machine during a measurement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softorder_experiments.measuring.processes import TOO_SLOW, Answer, Limits, run_in_child

# The share of the processors that other processes may take. Threads that wait for each other slow
# down by up to a factor of hundreds when another process runs in their place.
DISTURBANCE = 0.1


class OtherWork:
    """Measures the share of the processors that other processes take while a child process runs."""

    def __init__(self) -> None:
        self.start = self._read()

    def share(self) -> float | None:
        """Return the share since the start, 0 to 1; None where the system does not report it."""
        end = self._read()
        if end is None or self.start is None:
            return None
        total, busy, own = (after - before for after, before in zip(end, self.start, strict=True))
        return max(0.0, (busy - own) / total) if total else 0.0

    @staticmethod
    def _read() -> tuple[float, float, float] | None:
        """Return seconds of all processors: in total, busy, and busy for this process."""
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


def run_and_watch(
    module: str, action: str, arguments: Mapping[str, Any], limits: Limits, cwd: Path | None = None
) -> Answer:
    """Do what `run_in_child` does, and add `other_work` to the answer."""
    others = OtherWork()
    answer = run_in_child(module, action, arguments, limits, cwd)
    return {**answer, "other_work": others.share()}


def is_disturbed(record: Mapping[str, Any]) -> bool:
    """Tell whether other processes took so much of the processors that a time is unreliable."""
    was_timed = record["outcome"] in ("ok", TOO_SLOW)
    return was_timed and (record.get("other_work") or 0.0) > DISTURBANCE
