"""Where a number was computed: machine, versions, commit, and what else the machine did."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
# What is written by measuring does not change what is measured.
_RESULTS = (":(top,exclude)records", ":(top,exclude)benchmarks/results")
PACKAGES = ("torch", "numpy", "softorder", "lightning-fabric")


def describe(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return what every JSON line says of its origin; nothing that names this machine."""
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "ram_bytes": _ram_bytes(),
            "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in packages},
        },
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", ":/", *_RESULTS)),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


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


def _ram_bytes() -> int | None:
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # What is imported as tensorflow may have been installed as tensorflow-cpu.
        others = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(others[0]) if others else None


def _git(*arguments: str) -> str | None:
    """Return the output of a git command that only reads; None outside softorder's repository."""
    try:
        # Installed into a virtual environment, this file may lie in somebody else's repository.
        for command in (["ls-files", "--error-unmatch", __file__], arguments):
            process = subprocess.run(
                ["git", "--no-optional-locks", *command], capture_output=True, text=True, cwd=_HERE
            )
            if process.returncode:
                return None
    except OSError:
        return None
    return process.stdout.strip()
