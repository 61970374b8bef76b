"""Measures the points that have no record yet, each in a process of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from softorder_experiments import machine
from softorder_experiments.measuring import Answer, Limits, is_disturbed, run_and_watch
from softorder_experiments.record_schema import SCHEMA_VERSION, SPEED
from softorder_experiments.runs import (
    Record,
    append_record,
    finished_runs,
    run_of,
    warn_of_bad_lines,
)
from softorder_experiments.speed.frameworks import is_installed
from softorder_experiments.speed.methods import METHODS
from softorder_experiments.speed.plan import SpeedConfig
from softorder_experiments.speed.tables import describe

TASK = SPEED
_ATTEMPTS = 3


def find_devices(wanted: str) -> tuple[str, ...]:
    """Return the devices to measure on: the one that was asked for, or all that are available."""
    if wanted != "auto":
        return (wanted,)
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ("cpu", *(device for device, found in available.items() if found))


def measure_points(
    points: Sequence[SpeedConfig],
    out: Path,
    limits: Limits,
    console: Console,
    *,
    again: bool = False,
) -> list[Record]:
    """Measure the points that have no final record yet; return the record of every point.

    A point is also measured again if it ran out of time or memory and the limits are now wider, if
    its framework was missing and is now installed, or if the machine was busy.
    """
    warn_of_bad_lines(out, console)
    done = {} if again else finished_runs(out)
    found: list[Record] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(points))
        for point in points:
            progress.update(bar, description=f"{point.method}, n = {point.n:,}")
            name = run_of(TASK, point, out).name
            record = done.get(name)
            if record is None or not _is_final(record, point, limits):
                record = _measure_undisturbed(point, name, limits, progress.console)
                append_record(out / "results.jsonl", record)
                progress.console.print(describe(record), highlight=False, soft_wrap=True)
            found.append(record)
            progress.advance(bar)
    return found


def _is_final(record: Record, point: SpeedConfig, limits: Limits) -> bool:
    """Tell whether a point need not be measured again."""
    if is_disturbed(record):
        return False
    framework = METHODS[point.method].framework
    if record["outcome"] == _not_installed(framework):
        return not is_installed(framework)
    before = record["limits"]
    wider = before["seconds"] < limits.time_limit or before["bytes"] < 0.9 * limits.memory_limit
    return record["outcome"] == "ok" or not wider


def _measure_undisturbed(point: SpeedConfig, name: str, limits: Limits, console: Console) -> Record:
    """Measure a point, a few times while the machine is busy; return the least disturbed record."""
    records: list[Record] = []
    while len(records) < _ATTEMPTS:
        records.append(_measure(point, name, limits))
        if not is_disturbed(records[-1]):
            break
        left = _ATTEMPTS - len(records)
        console.print(
            f"warning: other processes used {records[-1]['other_work']:.0%} of the processors "
            f"while {point.method}, n = {point.n:,} was measured; "
            + ("measuring it again" if left else "its time is unreliable"),
            highlight=False,
            soft_wrap=True,
        )
    best = min(records, key=lambda record: record["other_work"] or 0.0)
    return {**best, "attempts": len(records)}


def _measure(point: SpeedConfig, name: str, limits: Limits) -> Record:
    framework = METHODS[point.method].framework
    origin = machine.describe((*machine.PACKAGES, framework))
    began = time.monotonic()
    answer = _train_in_child(point, framework, dataclasses.replace(limits, threads=point.threads))
    return {
        "schema": SCHEMA_VERSION,
        "run": name,
        "task": TASK,
        "config": dataclasses.asdict(point),
        "seed": point.seed,
        "outcome": answer["outcome"],
        "metrics": answer.get("metrics", {}),
        "curve": answer.get("curve", []),
        "seconds": round(time.monotonic() - began, 3),
        "limits": {"seconds": limits.time_limit, "bytes": limits.memory_limit},
        "device": point.device,
        "threads": point.threads,
        "other_work": answer.get("other_work"),
        **origin,
    }


def _train_in_child(point: SpeedConfig, framework: str, limits: Limits) -> Answer:
    if not is_installed(framework):
        return {"outcome": _not_installed(framework)}
    arguments = {"config": dataclasses.asdict(point)}
    return run_and_watch("softorder_experiments.speed.child", "train", arguments, limits)


def _not_installed(framework: str) -> str:
    return f"{framework} is not installed"
