"""The paper's tables beside ours: each printed cell with the runs that answer it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softorder_experiments.runs import Record

NOT_RUN = "not run"


@dataclass(frozen=True)
class Line:
    """A line of a table: one printed cell, and one group of our runs, if there is any.

    Attributes:
        method: The printed row.
        column: The printed column: an n, or a data set.
        theirs: What is printed.
        source: Where it was looked up: a key of the sources in the data file.
        ours: Mean and deviation over seeds, or that it was not run.
        setting: Preset and epochs.
        tested: On how much.
        hardware: Processor and cores.
        runs: The records behind it.
    """

    method: str
    column: str
    theirs: str
    source: str
    ours: str = NOT_RUN
    setting: str = ""
    tested: str = ""
    hardware: str = ""
    runs: tuple[Record, ...] = ()


def mark(line: Line) -> str:
    """Return the mark of a printed number that was quoted without the paper at hand."""
    return " †" if line.source == "quoted" else ""


def lines_of(table: Mapping[str, Any], records: Sequence[Record]) -> list[Line]:
    """Return the lines of one printed table."""
    lines = []
    for row in table["rows"]:
        for column, theirs in zip(table["columns"], row["values"], strict=True):
            line = Line(row["row"], column, theirs, row["source"])
            groups = _groups([r for r in records if _answers(r, row, column)])
            lines += [_fill(line, group) for group in groups] or [line]
    return lines


def _answers(record: Record, row: Mapping[str, Any], column: str) -> bool:
    """Tell whether a run is one of the method and the problem of a cell."""
    config = record["config"]
    if record["task"] != row["task"]:
        return False
    if any(config[key] != row[key] for key in ("relaxation", "stochastic") if key in row):
        return False
    if record["task"] in ("sort", "median"):
        return config["data"] == "mnist" and config["n"] == int(column)
    return config["data"] == column


def _groups(records: Sequence[Record]) -> list[tuple[Record, ...]]:
    """Return the runs that differ in their seed alone: of each preset, those of its newest run."""
    groups: dict[str, tuple[str, dict[int, Record]]] = {}
    for record in sorted(records, key=lambda record: record["date"]):
        key = _without_seed(record)
        preset = record["config"]["preset"]
        same = groups[preset][1] if groups.get(preset, ("", {}))[0] == key else {}
        groups[preset] = key, {**same, record["seed"]: record}
    return [tuple(seeds[seed] for seed in sorted(seeds)) for _, seeds in groups.values()]


def _without_seed(record: Record) -> str:
    return json.dumps({**record["config"], "seed": None}, sort_keys=True)


def _fill(line: Line, runs: tuple[Record, ...]) -> Line:
    first = runs[0]
    tests = [run["metrics"]["test"] for run in runs]
    epochs = len(first["curve"])
    setting = f"{first['config']['preset']}, " + (f"{epochs} epochs" if epochs else "not trained")
    return dataclasses.replace(
        line,
        ours=_SHOWN[first["task"]](tests),
        setting=setting,
        tested=_tested(tests[0]),
        hardware=hardware(first),
        runs=runs,
    )


def _sort(tests: Sequence[Mapping[str, float]]) -> str:
    return _mean([test["permutations_right"] for test in tests], "{:.3f}")


def _median(tests: Sequence[Mapping[str, float]]) -> str:
    error = _mean([test["mean_squared_error"] / 1e4 for test in tests], "{:.2f}")
    return f"{error} ({statistics.mean(test['spearman'] for test in tests):.2f})"


def _accuracy(tests: Sequence[Mapping[str, float]]) -> str:
    return _mean([100 * test["accuracy"] for test in tests], "{:.2f}")


_SHOWN: dict[str, Callable[[Sequence[Mapping[str, float]]], str]] = {
    "sort": _sort,
    "median": _median,
    **dict.fromkeys(("knn", "pixels", "pca", "autoencoder", "classifier"), _accuracy),
}


def _mean(values: Sequence[float], form: str) -> str:
    """Return the mean, with the deviation where there are several seeds."""
    mean = form.format(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


def _tested(test: Mapping[str, float]) -> str:
    if "sequences" in test:
        return f"{test['sequences']:,} sequences"
    words = [f"{test[name]:,} {name}" for name in ("queries", "candidates") if name in test]
    return ", ".join(words)


def hardware(record: Record) -> str:
    """Say what a run was carried out on."""
    machine = record["machine"]
    count = record["threads"]
    threads = "" if count == machine["cores"] else f", {count} thread{'s' * (count > 1)}"
    device = "" if record["device"] == "cpu" else f", {record['device']}"
    return f"{machine['cpu']}, {machine['cores']} cores{threads}{device}"
