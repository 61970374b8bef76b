"""The paper's tables beside ours: each printed cell with the matching runs."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from softorder_experiments.config import Settings
from softorder_experiments.runs import Record
from softorder_experiments.tasks import TASKS

NOT_RUN = "not run"
_TEST_IMAGES = 10_000  # in each of MNIST, Fashion-MNIST and CIFAR-10
# Fields that identify a run, and fields for its amount of work; all others are settings.
_NO_SETTINGS = ("preset", "data", "seed", "n", "relaxation", "stochastic", "metric")
_AMOUNTS = ("epochs", "steps", "validation_batches", "validation_queries", "validation_candidates")
_AMOUNTS += ("test_batches", "test_queries", "test_candidates")


@dataclass(frozen=True)
class Line:
    """A line of a table: one printed cell, and one group of our runs, if there is any.

    Attributes:
        method: The printed row.
        column: The printed column: an n, or a data set.
        theirs: The printed value.
        ours: Mean and deviation over seeds, or "not run".
        trained: The length of training.
        setting: The preset, and its differences from the paper's setting.
        tested: The size of the test.
        hardware: Processor and cores.
        runs: The records of the runs.
    """

    method: str
    column: str
    theirs: str
    ours: str = NOT_RUN
    trained: str = ""
    setting: str = ""
    tested: str = ""
    hardware: str = ""
    runs: tuple[Record, ...] = ()


def lines_of(table: Mapping[str, Any], records: Sequence[Record]) -> list[Line]:
    """Return the lines of one printed table, with complete runs only."""
    return [
        line
        for cell, found in _cells_with_runs(table, records)
        for line in _filled(cell, table, [r for r in found if not is_shortened(r)]) or [cell]
    ]


def shortened_lines_of(table: Mapping[str, Any], records: Sequence[Record]) -> list[Line]:
    """Return a line for each group of shortened runs that match a cell."""
    return [
        line
        for cell, found in _cells_with_runs(table, records)
        for line in _filled(cell, table, [r for r in found if is_shortened(r)])
    ]


def is_shortened(record: Record) -> bool:
    """Tell whether a run trained less than its preset, or was tested on less than the test set."""
    config, test = record["config"], record["metrics"]["test"]
    if config.get("epochs", 0) < getattr(_preset_of(record), "epochs", 0):
        return True
    if any(config.get(name) is not None for name in ("steps", "test_queries", "test_candidates")):
        return True
    return test.get("sequences", _TEST_IMAGES) < _TEST_IMAGES // config.get("digits", 4)


def _cells_with_runs(
    table: Mapping[str, Any], records: Sequence[Record]
) -> Iterator[tuple[Line, list[Record]]]:
    """Yield each printed cell with the runs of its method and problem."""
    for row in table["rows"]:
        for column, theirs in zip(table["columns"], row["values"], strict=True):
            found = [record for record in records if _matches(record, row, column)]
            yield Line(row["row"], column, theirs), found


def _matches(record: Record, row: Mapping[str, Any], column: str) -> bool:
    """Tell whether a run has the method and the problem of a cell."""
    config = record["config"]
    # Records of earlier versions have no metric; they used |.|, as the tables do.
    if record["task"] != row["task"] or config.get("metric", "abs") != "abs":
        return False
    if any(config[key] != row[key] for key in ("relaxation", "stochastic") if key in row):
        return False
    if record["task"] in ("sort", "median"):
        return config["data"] == "mnist" and config["n"] == int(column)
    return config["data"] == column


def _groups(records: Sequence[Record]) -> list[tuple[Record, ...]]:
    """Return the runs that differ only in the seed; for each preset, those of its newest run."""
    groups: dict[str, tuple[str, dict[int, Record]]] = {}
    for record in sorted(records, key=lambda record: record["date"]):
        key = _without_seed(record)
        preset = record["config"]["preset"]
        same = groups[preset][1] if groups.get(preset, ("", {}))[0] == key else {}
        groups[preset] = key, {**same, record["seed"]: record}
    return [tuple(seeds[seed] for seed in sorted(seeds)) for _, seeds in groups.values()]


def _without_seed(record: Record) -> str:
    return json.dumps({**record["config"], "seed": None}, sort_keys=True)


def _filled(cell: Line, table: Mapping[str, Any], records: Sequence[Record]) -> list[Line]:
    return [_fill(cell, table, group) for group in _groups(records)]


def _fill(line: Line, table: Mapping[str, Any], runs: tuple[Record, ...]) -> Line:
    first = runs[0]
    tests = [run["metrics"]["test"] for run in runs]
    return dataclasses.replace(
        line,
        ours=_SHOWN[table["table"]](tests),
        trained=_trained(first),
        setting=setting(first),
        tested=_tested(tests[0]),
        hardware=hardware(first),
        runs=runs,
    )


def _share(name: str, factor: float, form: str) -> Callable[[Sequence[Mapping[str, float]]], str]:
    return lambda tests: _mean([factor * test[name] for test in tests], form)


def _median(tests: Sequence[Mapping[str, float]]) -> str:
    error = _mean([test["mean_squared_error"] / 1e4 for test in tests], "{:.2f}")
    return f"{error} ({statistics.mean(test['spearman'] for test in tests):.2f})"


_SHOWN: dict[str, Callable[[Sequence[Mapping[str, float]]], str]] = {
    "table1": _share("permutations_right", 1, "{:.3f}"),
    "table2": _median,
    "table3": _share("accuracy", 100, "{:.2f}"),
    "table5": _share("elements_right", 1, "{:.3f}"),
}


def _mean(values: Sequence[float], form: str) -> str:
    """Return the mean, with the deviation where there are several seeds."""
    mean = form.format(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


def _trained(record: Record) -> str:
    """Return how long a run was trained, and how long the preset `paper` trains."""
    curve = record["curve"]
    if not curve:
        return "no training"
    epochs, papers = len(curve), _papers_of(record).epochs
    text = f"{epochs} epochs of {curve[-1]['step'] // epochs:,} steps"
    return text if epochs == papers else f"{text} (preset paper: {papers} epochs)"


def setting(record: Record) -> str:
    """Return the preset of a run, and the settings that differ from the paper's."""
    paper = dataclasses.asdict(_papers_of(record))
    words = [
        f"{name} {_word(value)}"
        for name, value in record["config"].items()
        if name not in (*_NO_SETTINGS, *_AMOUNTS) and value != paper.get(name, value)
    ]
    preset = record["config"]["preset"]
    return f"{preset}: {', '.join(words)}" if words else preset


def _word(value: Any) -> str:
    words = {True: "on", False: "off", None: "none"}
    if isinstance(value, bool) or value is None:
        return words[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _papers_of(record: Record) -> Any:
    """Return the paper's configuration for the problem of a run."""
    return TASKS[record["task"]].presets["paper"](record["config"])


def _preset_of(record: Record) -> Settings:
    """Return the configuration of a run's preset."""
    return TASKS[record["task"]].presets[record["config"]["preset"]](record["config"])


def _tested(test: Mapping[str, float]) -> str:
    if "sequences" in test:
        return f"{test['sequences']:,} sequences"
    words = [f"{test[name]:,} {name}" for name in ("queries", "candidates") if name in test]
    return ", ".join(words)


def hardware(record: Record) -> str:
    """Return the processor, cores, threads and device of a run."""
    machine = record["machine"]
    count = record["threads"]
    threads = "" if count == machine["cores"] else f", {count} thread{'s' * (count > 1)}"
    device = "" if record["device"] == "cpu" else f", {record['device']}"
    return f"{machine['cpu']}, {machine['cores']} cores{threads}{device}"
