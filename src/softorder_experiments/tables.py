"""Tables for the terminal."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Column, Table

from softorder_experiments.data import DATASETS
from softorder_experiments.metric_labels import metric_label
from softorder_experiments.relaxations import RELAXATIONS
from softorder_experiments.runs import Record, Run, unfinished_runs
from softorder_experiments.speed import METHODS, TASK, show_speed
from softorder_experiments.tasks import TASKS


def show_result(console: Console, run: Run, record: Record) -> None:
    """Show the result of one run and the paths of its files."""
    table = Table("", "validation", "test", title=f"{record['task']}, {record['config']['data']}")
    for metric, test in record["metrics"]["test"].items():
        validation = record["metrics"]["validation"].get(metric)
        table.add_row(metric_label(metric), _number(validation), _number(test))
    console.print(table)
    if record["curve"]:
        text = f"Best validation: epoch {record['best_epoch']} of {len(record['curve'])}. "
        rate = f", {record['images_per_second']:,.0f} images a second."
    else:
        text, rate = "No training. ", "."
    console.print(f"{text}{duration(record['seconds'])}{rate}", highlight=False)
    files = {"record": run.records, "picture": run.picture, "model": run.checkpoint}
    for what, path in files.items():
        if path.exists():
            console.print(f"{what:>8}  {path}", highlight=False, soft_wrap=True)


def show_records(console: Console, records: Sequence[Record], where: Path) -> None:
    """Show a line for each record, and list unfinished runs."""
    for task in sorted({record["task"] for record in records}):
        of_task = [record for record in records if record["task"] == task]
        if task == TASK:
            show_speed(console, of_task)
        else:
            console.print(_table_of(task, of_task))
    if not records:
        console.print(f"no records in {where}", highlight=False, soft_wrap=True)
    for folder in unfinished_runs(where):
        text = f"unfinished, to resume: {shlex.join(['softorder', 'resume', str(folder)])}"
        console.print(text, highlight=False, soft_wrap=True)


def _table_of(task: str, records: Sequence[Record]) -> Table:
    tests = [record["metrics"]["test"] for record in records]
    shares = dict.fromkeys(
        name for test in tests for name, value in test.items() if isinstance(value, float)
    )
    # Headings may wrap, numbers may not.
    columns = [
        Column(metric_label(name).replace(" ", "\n"), no_wrap=True) for name in ("epochs", *shares)
    ]
    run = Column("run", overflow="fold", min_width=16)
    table = Table(
        run, *columns, "time", title=f"{task}, on test", box=box.SIMPLE, padding=(0, 1, 0, 0)
    )
    for record in records:
        table.add_row(
            record["run"],
            str(len(record["curve"])),
            *(_number(record["metrics"]["test"].get(name)) for name in shares),
            duration(record["seconds"]),
        )
    return table


def list_everything(console: Console) -> None:
    """Show tasks with their presets and settings, relaxations, data sets."""
    for name, task in TASKS.items():
        presets = {preset: dataclasses.asdict(make({})) for preset, make in task.presets.items()}
        table = Table("--set", *presets, title=f"task {name}: {task.about}")
        for field in dataclasses.fields(task.config_type):
            values = (json.dumps(fields[field.name]) for fields in presets.values())
            table.add_row(field.name, *values)
        console.print(table)
    table = Table("--method", "", title="speed: the paper's speed experiment (Figures 8 and 9)")
    for name, method in METHODS.items():
        table.add_row(name, f"{method.about}, tau {method.tau:g}")
    console.print(table)
    console.print(f"relaxations: {', '.join(RELAXATIONS)}", highlight=False)
    table = Table("data", "", title="data sets")
    for name, dataset in DATASETS.items():
        table.add_row(name, dataset.about)
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Write a duration in units that suit its length."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
