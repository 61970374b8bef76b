"""Where a number was computed: the machine, the versions of the packages, the commit."""

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
# Files that a measurement writes do not change the code that is measured.
_RESULTS = (":(top,exclude)records", ":(top,exclude)benchmarks/results")
PACKAGES = ("torch", "numpy", "softorder", "lightning-fabric")


def describe(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Return the origin that every JSON line records; nothing in it identifies this machine."""
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
        # The module tensorflow may have been installed by the package tensorflow-cpu.
        others = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(others[0]) if others else None


def _git(*arguments: str) -> str | None:
    """Return the output of a git command that only reads; None outside softorder's repository."""
    try:
        # In a virtual environment, this file may lie inside a repository of another project.
        for command in (["ls-files", "--error-unmatch", __file__], arguments):
            process = subprocess.run(
                ["git", "--no-optional-locks", *command], capture_output=True, text=True, cwd=_HERE
            )
            if process.returncode:
                return None
    except OSError:
        return None
    return process.stdout.strip()
