"""Reads the lines that `make bench` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softorder_experiments.errors import UserError
from softorder_experiments.schema import (
    NUMBER,
    OPTIONAL_TEXT,
    TEXT,
    TRUTH,
    WHOLE,
    Kind,
    MapOf,
    Schema,
    find_problem,
)

Line = dict[str, Any]
_BACKWARD = "forward+backward"
# Internal engines of softorder, which users do not choose.
_LEFT_OUT = ("native", "portable")


def _ranks(name: str) -> bool:
    """Tell from its name whether an implementation ranks (SoftRank can also sort)."""
    return "rank" in name.lower() and not name.endswith(" sort")


_ORIGIN: dict[str, Schema] = {
    "implementation": TEXT,
    "kind": TEXT,
    "outcome": TEXT,
    "configuration": {"threads": WHOLE},
    "machine": {"cpu": TEXT, "cores": WHOLE},
    "versions": MapOf(OPTIONAL_TEXT),
    "commit": OPTIONAL_TEXT,
    "dirty": TRUTH,
    "date": TEXT,
}
_SHAPE = Kind(
    "a list of two whole numbers",
    lambda shape: isinstance(shape, list) and [type(n) for n in shape] == [int, int],
)
_CASE: dict[str, Schema] = {"shape": _SHAPE, "direction": TEXT}


def _find_problem(line: Any) -> str | None:
    """Return why a line is not a benchmark's, or None; lines of other kinds are allowed."""
    if not isinstance(line, dict):
        return find_problem({}, line)
    if "implementation" not in line:
        return None
    is_case = line.get("kind") == "case"
    is_timed = is_case and line.get("outcome") == "ok"
    schema = _ORIGIN | (_CASE if is_case else {})
    return find_problem(schema | ({"seconds": {"median": NUMBER}} if is_timed else {}), line)


def _no_benchmark(file: Path, received: str) -> UserError:
    return UserError(
        f"{file} must hold the JSON lines of a benchmark",
        received,
        "`make bench` writes benchmarks/results/<date>.jsonl",
    )


class Benchmark:
    """Time and memory of each implementation, forward + backward; the newest line counts."""

    def __init__(self, lines: Sequence[Line]) -> None:
        """Keep the lines of cases and verifications."""
        self.lines = [line for line in lines if "implementation" in line]
        self._cases = {
            (line["implementation"], *line["shape"]): line
            for line in self.lines
            if line["kind"] == "case" and line["direction"] == _BACKWARD
        }

    @classmethod
    def read(cls, file: Path | None) -> Benchmark:
        """Read a file of JSON lines; None gives an empty benchmark."""
        if file is None:
            return cls([])
        try:
            lines = [json.loads(line) for line in file.read_text().splitlines()]
        except (OSError, ValueError, RecursionError) as error:
            raise _no_benchmark(file, f"{type(error).__name__}: {error}") from error
        for number, line in enumerate(lines, start=1):
            if problem := _find_problem(line):
                raise _no_benchmark(file, f"a different line {number} ({problem})")
        return cls(lines)

    @property
    def sorts(self) -> list[str]:
        """The implementations that sort values, in the order of measurement."""
        return [name for name in self._names if not _ranks(name)]

    @property
    def ranks(self) -> list[str]:
        """The implementations that rank."""
        return [name for name in self._names if _ranks(name)]

    @property
    def _names(self) -> list[str]:
        names = dict.fromkeys(name for name, *_ in self._cases)
        return [name for name in names if not name.startswith(_LEFT_OUT)]

    @property
    def machine(self) -> str:
        """The machine of the measurement, in words."""
        if not self.lines:
            return ""
        line = self.lines[-1]
        machine, threads = line["machine"], line["configuration"]["threads"]
        return f"{machine['cpu']}, {machine['cores']} cores, {threads} threads"

    @property
    def origins(self) -> list[Line]:
        """One line for each commit and machine."""
        return list({json.dumps([x["commit"], x["machine"]]): x for x in self.lines}.values())

    def times(self, name: str, batch: int) -> dict[int, float]:
        """Return the median seconds by increasing n, for the cases that ran."""
        return {
            n: line["seconds"]["median"]
            for (_, _, n), line in sorted(self._cases.items(), key=lambda item: item[0][2])
            if line["implementation"] == name
            and line["shape"][0] == batch
            and line["outcome"] == "ok"
        }

    def sizes(self, batch: int) -> list[int]:
        """Return the n that were tried with a batch size."""
        return sorted({n for _, rows, n in self._cases if rows == batch})

    def case(self, name: str, batch: int, n: int) -> Line | None:
        """Return the line of a case, or None if it was not tried."""
        return self._cases.get((name, batch, n))

    @property
    def missing(self) -> list[tuple[str, str]]:
        """The implementations that were not timed, and why."""
        verified = {line["implementation"]: line for line in self.lines if line["kind"] != "case"}
        return [
            (name, line["outcome"]) for name, line in verified.items() if line["outcome"] != "ok"
        ]
