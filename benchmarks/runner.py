"""Runs each measurement in a process of its own, and writes one JSON line for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import Case
from benchmarks.peers import PACKAGES
from softorder_experiments import measuring
from softorder_experiments.machine import describe
from softorder_experiments.measuring import Answer, run_and_watch, run_in_child

ROOT = Path(__file__).resolve().parent.parent
CHILD = "benchmarks.child"


@dataclass(frozen=True)
class Limits(measuring.Limits):
    """The limits of one measurement.

    Attributes:
        seconds: For how long the calls of one case are repeated.
    """

    seconds: float = 1.0


class Runner:
    """Measures, prints a line for each measurement and appends it to a file."""

    def __init__(self, limits: Limits, output: Path) -> None:
        self.limits = limits
        self.output = output
        self.origin = describe(["torch", "numpy", "softorder", *PACKAGES])
        self.verified: set[str] = set()
        self.failures: list[str] = []
        output.parent.mkdir(parents=True, exist_ok=True)

    def verify(self, names: Sequence[str], largest_n: int) -> None:
        """Compare implementations with their references, in one process for all of them."""
        arguments = {"implementations": names, "largest_n": largest_n}
        answer = run_in_child(CHILD, "verify", arguments, self.limits, ROOT)
        # If the process ended early, none of its implementations counts as verified.
        for name in names:
            its = answer.get(name, answer)
            self._write("verification", {"implementation": name}, its)
            outcome = its["outcome"]
            shown = "agrees with its reference" if outcome == "ok" else outcome
            print(f"{name:48} {shown}", flush=True)
            if outcome == "ok":
                self.verified.add(name)
            elif not outcome.startswith("not available"):
                self.failures.append(f"{name}: {outcome}")

    def measure(self, case: Case) -> None:
        """Measure time and memory of one case."""
        arguments = {**case.to_json(), "seconds": self.limits.seconds}
        answer = run_and_watch(CHILD, "measure", arguments, self.limits, ROOT)
        self._write("case", case.to_json(), answer)
        shown = answer["outcome"]
        if shown == "ok":
            shown = (
                f"{answer['seconds']['median'] * 1e3:10.3f} ms"
                f"{answer['memory']['bytes'] / 1e6:10.1f} MB"
            )
        self._finish(str(case), shown, answer)

    def compare(self, left: Case, right: Case) -> None:
        """Time two cases in turns in one process."""
        sides = {"left": left.to_json(), "right": right.to_json()}
        arguments = {**sides, "seconds": 3 * self.limits.seconds}
        answer = run_and_watch(CHILD, "compare", arguments, self.limits, ROOT)
        self._write("comparison", sides, answer)
        shown = f"{answer['ratio']:.3g}" if answer["outcome"] == "ok" else answer["outcome"]
        self._finish(f"{left} / {right}", shown, answer)

    def _finish(self, title: str, shown: str, answer: Answer) -> None:
        print(f"{title:76} {shown}", flush=True)
        if answer["outcome"].startswith("failed"):
            self.failures.append(f"{title}: {answer['outcome']}")

    def _write(self, kind: str, subject: dict[str, Any], answer: Answer) -> None:
        """Append a line to the output."""
        configuration = {
            "dtype": "float32",
            "threads": self.limits.threads,
            "time_limit": self.limits.time_limit,
            "memory_limit": self.limits.memory_limit,
        }
        line = {"kind": kind, **subject, **answer, "configuration": configuration, **self.origin}
        with self.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
