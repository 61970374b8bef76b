"""Reads the JSON lines of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.cases import Case

Line = dict[str, Any]


class Results:
    """The newest line of each case, comparison and verification."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.cases: dict[Case, Line] = {}
        self.comparisons: dict[tuple[Case, Case], Line] = {}
        self.verifications: dict[str, Line] = {}
        self.origins: dict[str, Line] = {}
        for line in lines:
            self.origins[json.dumps([line["machine"], line["versions"], line["commit"]])] = line
            if line["kind"] == "case":
                self.cases[Case.from_json(line)] = line
            elif line["kind"] == "comparison":
                pair = Case.from_json(line["left"]), Case.from_json(line["right"])
                self.comparisons[pair] = line
            else:
                self.verifications[line["implementation"]] = line

    @classmethod
    def read(cls, file: Path) -> Results:
        """Read a file of JSON lines."""
        return cls(json.loads(line) for line in file.read_text().splitlines())

    def seconds(self, case: Case) -> float | None:
        """Return the median time of a call."""
        line = self._measured(self.cases.get(case))
        return line["seconds"]["median"] if line else None

    def memory(self, case: Case) -> float | None:
        """Return the bytes of extra memory at the peak."""
        line = self._measured(self.cases.get(case))
        return line["memory"]["bytes"] if line else None

    def ratio(self, left: Case, right: Case) -> float | None:
        """Return median time over median time of two cases that took turns."""
        line = self._measured(self.comparisons.get((left, right)))
        return line["ratio"] if line else None

    def succeeded(self, case: Case) -> float | None:
        """Return 1 for a case that ran, 0 for one that did not; None if it was not tried."""
        line = self.cases.get(case)
        return float(line["outcome"] == "ok") if line else None

    def disturbed(self, share: float) -> tuple[int, int]:
        """Return the number of measurements disturbed by more than this share, and of all."""
        lines = [*self.cases.values(), *self.comparisons.values()]
        return sum((line["other_work"] or 0.0) > share for line in lines), len(lines)

    @staticmethod
    def _measured(line: Line | None) -> Line | None:
        return line if line and line["outcome"] == "ok" else None
