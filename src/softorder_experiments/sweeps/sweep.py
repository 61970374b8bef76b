"""A sweep: what is to run, what was chosen, what came out; its whole state is on the disk."""

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
    """A run of a sweep, as it is sent to a worker."""

    task: str
    fields: dict[str, Any]
    execution: Execution
    stop: Path
    """A file that appears when the sweep is to stop."""

    @property
    def config(self) -> Any:
        """Return the configuration."""
        return from_json(TASKS[self.task].config_type, self.fields)

    @property
    def run(self) -> Run:
        """Return its run."""
        return run_of(self.task, self.config, self.execution.out)


class Sweep:
    """The runs of some cells: what is to do, what is done, what came out.

    With a grid, the settings of a cell are chosen by the validation of runs with seed 0, and the
    other seeds follow with those.

    Args:
        name: Of the table.
        cells: What to run.
        seeds: How many.
        grid: Whether to search.
        execution: Where the files are, which all workers share.
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
        # Workers may have another working directory.
        self.execution = dataclasses.replace(execution, out=str(Path(execution.out).resolve()))
        folder = Path(self.execution.out) / "sweeps"
        what = [*((cell.task, cell.config.fingerprint()) for cell in cells), grid]
        fingerprint = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:8]
        # Another choice of cells is another sweep.
        self.summary_file = folder / f"{name}-{fingerprint}.json"
        self.stop_file = folder / f"{name}-{uuid.uuid4().hex[:8]}.stop"

    def make_folder(self) -> None:
        """See that files can be written, before workers find that they cannot."""
        with report_write_errors(self.stop_file.parent):
            self.stop_file.parent.mkdir(parents=True, exist_ok=True)
            self.stop_file.touch()
            self.stop_file.unlink()

    def find_data(self) -> None:
        """Find or download what the runs need, once, before several workers do."""
        for name in dict.fromkeys(cell.config.data for cell in self.cells):
            find(look_up("data", name, DATASETS).downloads)

    def search(self, cell: Cell) -> list[Settings]:
        """Return the configurations among which a cell's is chosen, with seed 0."""
        if not (self.grid and cell.grid):
            return [cell.config]
        return [override(cell.config, settings) for settings in cell.grid]

    def seeded(self, cell: Cell, config: Settings | None) -> list[Settings]:
        """Return a configuration with every seed; none of nothing."""
        if config is None:
            return []
        seeds = range(self.seeds if cell.has_seeds else 1)
        return [override(config, {"seed": seed}) for seed in seeds]

    def phases(self) -> Iterator[list[Job]]:
        """Yield what to run first, and then, when it is done, what to run with the choice."""
        if self.grid:
            yield [self.job(cell, config) for cell in self.cells for config in self.search(cell)]
        pairs = zip(self.cells, self.selected_configs(), strict=True)
        yield [
            self.job(cell, config) for cell, chosen in pairs for config in self.seeded(cell, chosen)
        ]

    def runs_of(self, cell: Cell, chosen: Settings | None) -> list[Run]:
        """Return the runs of a cell that can be named, given what is chosen so far."""
        configs = [*self.search(cell), *self.seeded(cell, chosen)]
        runs = [self.job(cell, config).run for config in configs]
        return list({run.name: run for run in runs}.values())

    def job(self, cell: Cell, config: Settings) -> Job:
        """Return a run, ready to be sent."""
        fields = dataclasses.asdict(config)
        return Job(cell.task, fields, self.execution, self.stop_file)

    def selected_configs(self) -> list[Settings | None]:
        """Return the configuration of each cell that validates best; None where none finished."""
        done = finished_runs(Path(self.execution.out))
        chosen = []
        for cell in self.cells:
            options = self.search(cell)
            scores = {
                index: TASKS[cell.task].score(record["metrics"]["validation"])
                for index, config in enumerate(options)
                if (record := done.get(self.job(cell, config).run.name))
            }
            # Where there is nothing to choose, nothing need be finished.
            best = 0 if len(options) == 1 else max(scores, key=scores.__getitem__, default=None)
            chosen.append(None if best is None else options[best])
        return chosen

    def count(self) -> int:
        """Return the number of runs, whatever is chosen."""
        return sum(self.count_of(cell) for cell in self.cells)

    def count_of(self, cell: Cell) -> int:
        """Return the number of runs of a cell; that with seed 0 is one of those searched."""
        return len(self.search(cell)) + len(self.seeded(cell, cell.config)) - 1

    def summarize(self) -> list[dict[str, Any]]:
        """Return for each cell what was searched, what was chosen, and the metrics of its seeds."""
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
        """Write what was chosen and what came out."""
        heading = {"sweep": self.name, "seeds": self.seeds, "grid": self.grid}
        content = {**heading, "cells": self.summarize(), **machine.describe()}
        write_atomically(self.summary_file, json.dumps(content, indent=1).encode())


def _statistics(metrics: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return mean and standard deviation over seeds, of each metric."""
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
