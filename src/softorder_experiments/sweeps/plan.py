"""The tables of the paper as plans: the runs, and the hyper-parameters to search."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from softorder_experiments.config import Settings, override, parse_settings
from softorder_experiments.errors import UserError, look_up
from softorder_experiments.relaxations import temperatures
from softorder_experiments.tasks import TASKS, Measurement, configure


@dataclass(frozen=True)
class Cell:
    """A cell of a table: one method on one problem.

    Args:
        task: The name of the task.
        config: The configuration with seed 0, and the paper's or the preset's hyper-parameters.
        grid: The hyper-parameter settings to search.
        has_seeds: Whether the result depends on the seed.
    """

    task: str
    config: Settings
    grid: tuple[dict[str, Any], ...]
    has_seeds: bool = True

    @property
    def searched(self) -> tuple[str, ...]:
        """Return the names of the hyper-parameters in the grid."""
        return tuple(self.grid[0]) if self.grid else ()


@dataclass(frozen=True)
class TableOptions:
    """Which part of a table to run, and how. By default, everything in the paper's table.

    Args:
        n: The sequence lengths (tables 1 and 2).
        relaxations: The relaxations.
        stochastic: Only methods with noise, or only without.
        data: The data sets.
        preset: The preset to start from (default: `embedded` for digits, else `paper`).
        settings: Further settings, NAME=VALUE, for every task that has them.
        baselines: Whether to include the baselines of table 3.
        threads: CPU threads per run.
    """

    n: tuple[int, ...] = ()
    relaxations: tuple[str, ...] = ()
    stochastic: bool | None = None
    data: tuple[str, ...] = ()
    preset: str | None = None
    settings: tuple[str, ...] = ()
    baselines: bool = True
    threads: int = Settings.threads

    def methods(self) -> list[dict[str, Any]]:
        """Return the chosen methods, as fields of a configuration."""
        wanted = self.relaxations or ("neuralsort", "softsort")
        noises = (False, True) if self.stochastic is None else (self.stochastic,)
        pairs = itertools.product(wanted, noises)
        return [{"relaxation": name, "stochastic": noise} for name, noise in pairs]

    def configure(self, task: str, given: Mapping[str, Any]) -> Any:
        """Return the configuration that `softorder run` makes from these options."""
        task_type = TASKS[task]
        fields = {field.name for field in dataclasses.fields(task_type.config_type)}
        settings = [text for text in self.settings if _name(text) in fields]
        given = {**given, "threads": self.threads}
        changes = {**given, **parse_settings(task_type.config_type, settings)}
        # Tasks without training have no short preset.
        no_short = self.preset == "short" and issubclass(task_type, Measurement)
        return configure(task, None if no_short else self.preset, changes)


def _name(setting: str) -> str:
    return setting.partition("=")[0]


def table1(choice: TableOptions) -> list[Cell]:
    """Sorting: 4 methods, n in 3, 5, 7, 9, 15."""
    return _of_numbers("sort", choice, (3, 5, 7, 9, 15), (1.0, 16.0, 128.0, 1024.0))


def table2(choice: TableOptions) -> list[Cell]:
    """Medians: 4 methods, n in 5, 9, 15."""
    taus = tuple(float(2**power) for power in range(7, 13))
    return _of_numbers("median", choice, (5, 9, 15), taus)


def _of_numbers(
    task: str, choice: TableOptions, lengths: tuple[int, ...], taus: tuple[float, ...]
) -> list[Cell]:
    problems = itertools.product(choice.data or ("mnist",), choice.n or lengths, choice.methods())
    return [
        Cell(
            task,
            choice.configure(task, {"data": data, "n": n, **method}),
            tuple({"tau": tau} for tau in temperatures(method["relaxation"], taus)),
        )
        for data, n, method in problems
    ]


def table3(choice: TableOptions) -> list[Cell]:
    """Nearest neighbours: 4 methods and 4 baselines on 3 data sets."""
    neighbours = [{"k": k} for k in (1, 3, 5, 9)]
    taus, rates = (1.0, 4.0, 16.0, 64.0, 128.0, 512.0), (1e-3, 1e-4, 1e-5)

    def grid(relaxation: str) -> tuple[dict[str, Any], ...]:
        points = itertools.product(neighbours, temperatures(relaxation, taus), rates)
        return tuple({**k, "tau": tau, "lr": lr} for k, tau, lr in points)

    cells = []
    for data in choice.data or ("mnist", "fashion-mnist", "cifar10"):
        given = {"data": data}
        cells += [
            Cell("knn", choice.configure("knn", {**given, **method}), grid(method["relaxation"]))
            for method in choice.methods()
        ]
        if choice.baselines:
            by_k = tuple(neighbours)
            cells += [
                Cell("pixels", choice.configure("pixels", given), by_k, has_seeds=False),
                Cell("pca", choice.configure("pca", given), by_k, has_seeds=False),
                Cell("autoencoder", choice.configure("autoencoder", given), by_k),
                Cell("classifier", choice.configure("classifier", given), ()),
            ]
    return cells


TABLES = {"table1": table1, "table2": table2, "table3": table3}


def plan(table: str, choice: TableOptions, *, grid: bool = False) -> list[Cell]:
    """Return the cells of a table, each once.

    It is an error to set a field that the table or the grid determines, or that no cell has.
    """
    cells = look_up("table", table, TABLES)(choice)
    for name in map(_name, choice.settings):
        searched = {key for cell in cells * grid for key in cell.searched}
        if name in {*_DECIDED, *searched}:
            raise UserError(
                f"{name} is decided by the table" if name in _DECIDED else f"{name} is searched",
                f"--set {name}=...",
                _DECIDED.get(name, "Leave it out, or leave --grid out"),
            )
        if not any(name in dataclasses.asdict(cell.config) for cell in cells):
            override(cells[0].config, {name: None})  # raises an error that lists the fields
    return list({(cell.task, cell.config.fingerprint()): cell for cell in cells}.values())


_DECIDED = {
    "n": "Write --n",
    "relaxation": "Write --relaxation",
    "stochastic": "Write --stochastic or --deterministic",
    "data": "Write --data",
    "seed": "Write --seeds",
    "threads": "Write --threads",
}
