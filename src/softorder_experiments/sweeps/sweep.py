"""A sweep: its jobs, the chosen settings and the results. Its whole state is on the disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softorder_experiments import machine
from softorder_experiments.config import Execution, Settings, from_json, override
from softorder_experiments.data import DATASETS
from softorder_experiments.data.files import find
from softorder_experiments.errors import UserError, look_up, report_write_errors, write_atomically
from softorder_experiments.runs import Record, Run, finished_runs, run_of
from softorder_experiments.sweeps.plan import Cell
from softorder_experiments.tasks import TASKS


@dataclass(frozen=True)
class Job:
    """One run of a sweep, as it is sent to a worker."""

    task: str
    fields: dict[str, Any]
    execution: Execution
    stop: Path
    """A file that is created when the sweep should stop."""

    @property
    def config(self) -> Any:
        """Return the configuration."""
        return from_json(TASKS[self.task].config_type, self.fields)

    @property
    def run(self) -> Run:
        """Return the run's files."""
        return run_of(self.task, self.config, self.execution.out)


class Sweep:
    """The runs of some cells of a table.

    With a grid, runs with seed 0 try every setting of a cell; the other seeds use the setting with
    the best validation.

    Args:
        name: The name of the table.
        cells: The cells to run.
        seeds: The number of seeds.
        grid: Whether to search the grid.
        execution: Where and how to run; all workers share its folder.
    """

    def __init__(
        self,
        name: str,
        cells: Sequence[Cell],
        seeds: int,
        grid: bool,
        execution: Execution,
    ) -> None:
        if seeds < 1:
            raise UserError("there must be at least one seed", f"{seeds}", "Change --seeds")
        self.name, self.cells, self.seeds, self.grid = name, cells, seeds, grid
        # Absolute, because workers may have another working directory.
        self.execution = dataclasses.replace(execution, out=str(Path(execution.out).resolve()))
        folder = Path(self.execution.out) / "sweeps"
        what = [*((cell.task, cell.config.fingerprint()) for cell in cells), grid]
        fingerprint = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
        # Other cells make another sweep, with a summary of its own.
        self.summary_file = folder / f"{name}-{fingerprint}.json"
        self.stop_file = folder / f"{name}-{uuid.uuid4().hex[:8]}.stop"

    def make_folder(self) -> None:
        """Create the folder, and check that it is writable before any worker starts."""
        with report_write_errors(self.stop_file.parent):
            self.stop_file.parent.mkdir(parents=True, exist_ok=True)
            self.stop_file.touch()
            self.stop_file.unlink()

    def find_data(self) -> None:
        """Find or download the data sets once, before several workers need them."""
        for name in dict.fromkeys(cell.config.data for cell in self.cells):
            find(look_up("data", name, DATASETS).downloads)

    def search(self, cell: Cell) -> list[Settings]:
        """Return the configurations of a cell to choose from, with seed 0."""
        if not (self.grid and cell.grid):
            return [cell.config]
        return [override(cell.config, settings) for settings in cell.grid]

    def seeded(self, cell: Cell, config: Settings | None) -> list[Settings]:
        """Return a configuration with every seed; no configuration gives none."""
        if config is None:
            return []
        seeds = range(self.seeds if cell.has_seeds else 1)
        return [override(config, {"seed": seed}) for seed in seeds]

    def phases(self) -> Iterator[list[Job]]:
        """Yield the jobs of the grid search, then those of the chosen settings."""
        if self.grid:
            yield [self.job(cell, config) for cell in self.cells for config in self.search(cell)]
        pairs = zip(self.cells, self.selected_configs(), strict=True)
        yield [
            self.job(cell, config) for cell, chosen in pairs for config in self.seeded(cell, chosen)
        ]

    def runs_of(self, cell: Cell, chosen: Settings | None) -> list[Run]:
        """Return the runs of a cell that are known, given the settings chosen so far."""
        configs = [*self.search(cell), *self.seeded(cell, chosen)]
        runs = [self.job(cell, config).run for config in configs]
        return list({run.name: run for run in runs}.values())

    def job(self, cell: Cell, config: Settings) -> Job:
        """Return the job of a configuration."""
        fields = dataclasses.asdict(config)
        return Job(cell.task, fields, self.execution, self.stop_file)

    def selected_configs(self) -> list[Settings | None]:
        """Return the best configuration of each cell by validation, or None if none finished."""
        done = finished_runs(Path(self.execution.out))
        chosen = []
        for cell in self.cells:
            options = self.search(cell)
            scores = {
                index: TASKS[cell.task].score(record["metrics"]["validation"])
                for index, config in enumerate(options)
                if (record := done.get(self.job(cell, config).run.name))
            }
            # A single option is chosen even before it is finished.
            best = 0 if len(options) == 1 else max(scores, key=scores.__getitem__, default=None)
            chosen.append(None if best is None else options[best])
        return chosen

    def count(self) -> int:
        """Return the number of runs, which does not depend on the chosen settings."""
        return sum(self.count_of(cell) for cell in self.cells)

    def count_of(self, cell: Cell) -> int:
        """Return the number of runs of a cell; the run with seed 0 is part of the search."""
        return len(self.search(cell)) + len(self.seeded(cell, cell.config)) - 1

    def summarize(self) -> list[dict[str, Any]]:
        """Return for each cell the settings searched, the one chosen, and the metrics per seed."""
        done = finished_runs(Path(self.execution.out))
        rows = []
        for cell, chosen in zip(self.cells, self.selected_configs(), strict=True):
            searched = [self._entry(done, cell, config) for config in self.search(cell)]
            runs = [self._entry(done, cell, config) for config in self.seeded(cell, chosen)]
            rows.append(
                {
                    "task": cell.task,
                    "label": cell.config.label,
                    "searched": searched if self.grid and cell.grid else [],
                    "chosen": dataclasses.asdict(chosen) if chosen else None,
                    "runs": runs,
                    "test": _statistics([run["test"] for run in runs if run["test"]]),
                }
            )
        return rows

    def _entry(self, done: Mapping[str, Record], cell: Cell, config: Settings) -> dict[str, Any]:
        run = self.job(cell, config).run
        metrics = done[run.name]["metrics"] if run.name in done else {}
        settings = {name: getattr(config, name) for name in cell.searched}
        return {
            "run": run.name,
            "seed": config.seed,
            "settings": settings,
            "validation": metrics.get("validation"),
            "test": metrics.get("test"),
            "failure": None if metrics else run.read_failure(),
        }

    def write_summary(self) -> None:
        """Write the chosen settings and the results."""
        heading = {"sweep": self.name, "seeds": self.seeds, "grid": self.grid}
        content = {**heading, "cells": self.summarize(), **machine.describe()}
        write_atomically(self.summary_file, json.dumps(content, indent=1).encode())


def _statistics(metrics: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return the mean and standard deviation of each metric over seeds."""
    if not metrics:
        return {}
    shared = [name for name in metrics[0] if all(name in row for row in metrics)]
    columns = {name: [row[name] for row in metrics] for name in shared}
    return {
        name: {
            "mean": statistics.fmean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
            "seeds": len(values),
        }
        for name, values in columns.items()
    }
