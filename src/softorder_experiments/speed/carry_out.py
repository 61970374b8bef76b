"""Measures the points that have no record yet, each in a process of its own."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from softorder_experiments import machine
from softorder_experiments.isolation import Answer, Limits, ask
from softorder_experiments.record_forms import SCHEMA_VERSION, SPEED
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
from softorder_experiments.speed.show import describe, is_disturbed

TASK = SPEED
_ATTEMPTS = 3


def find_devices(wanted: str) -> tuple[str, ...]:
    """Return the devices to measure on: the CPU and any other found, or the one that is wanted."""
    if wanted != "auto":
        return (wanted,)
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return ("cpu", *(device for device, found in there.items() if found))


def carry_out(
    points: Sequence[SpeedConfig],
    out: Path,
    limits: Limits,
    console: Console,
    *,
    again: bool = False,
) -> list[Record]:
    """Measure what was not measured before; return the record of every point.

    What ran out of time or memory is tried again if it may take more than it could then, what had
    no framework when there is one, and what was measured on a busy machine always.
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
    less = before["seconds"] < limits.time_limit or before["bytes"] < 0.9 * limits.memory_limit
    return record["outcome"] == "ok" or not less


def _measure_undisturbed(point: SpeedConfig, name: str, limits: Limits, console: Console) -> Record:
    """Measure a point, a few times while the machine is busy; return the least disturbed record."""
    records: list[Record] = []
    while len(records) < _ATTEMPTS:
        records.append(_measure(point, name, limits))
        if not is_disturbed(records[-1]):
            break
        left = _ATTEMPTS - len(records)
        console.print(
            f"warning: other processes took {records[-1]['other_work']:.0%} of the processors "
            f"while {point.method}, n = {point.n:,} was measured; "
            + ("measuring it again" if left else "its time is not to be trusted"),
            highlight=False,
            soft_wrap=True,
        )
    best = min(records, key=lambda record: record["other_work"] or 0.0)
    return {**best, "attempts": len(records)}


def _measure(point: SpeedConfig, name: str, limits: Limits) -> Record:
    framework = METHODS[point.method].framework
    origin = machine.describe((*machine.PACKAGES, framework))
    others, began = machine.OtherWork(), time.monotonic()
    config = dataclasses.asdict(point)
    answer = _ask(config, framework, dataclasses.replace(limits, threads=point.threads))
    return {
        "schema": SCHEMA_VERSION,
        "run": name,
        "task": TASK,
        "config": config,
        "seed": point.seed,
        "outcome": answer["outcome"],
        "metrics": answer.get("metrics", {}),
        "curve": answer.get("curve", []),
        "seconds": round(time.monotonic() - began, 3),
        "limits": {"seconds": limits.time_limit, "bytes": limits.memory_limit},
        "device": point.device,
        "threads": point.threads,
        "other_work": others.share(),
        **origin,
    }


def _ask(config: dict[str, Any], framework: str, limits: Limits) -> Answer:
    if not is_installed(framework):
        return {"outcome": _not_installed(framework)}
    return ask("softorder_experiments.speed.child", "train", {"config": config}, limits)


def _not_installed(framework: str) -> str:
    return f"{framework} is not installed"
