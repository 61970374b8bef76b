"""The page: tables and figures of everything that was run, in one file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from softorder_experiments.errors import replace
from softorder_experiments.printed import printed
from softorder_experiments.report import measured_figures as measured
from softorder_experiments.report import operator_figures as operators
from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.report.charts import Chart
from softorder_experiments.report.comparison import NOT_RUN, hardware, lines_of, mark
from softorder_experiments.runs import Record, read_records
from softorder_experiments.speed import (
    FRAMEWORKS,
    METHODS,
    TASK,
    in_torch,
    is_usual,
    newest,
    ratios_of,
    seconds,
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: what it says, what it is sorted by, and the runs behind it."""

    text: str
    key: float | None = None
    runs: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    name: str
    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Report:
    """What the page is made of."""

    records: Sequence[Record]
    benchmark: Benchmark

    @classmethod
    def read(cls, where: Path, benchmark: Path | None) -> Report:
        """Read the records of a folder, and the lines of a benchmark."""
        return cls(read_records(where), Benchmark.read(benchmark))

    def charts(self) -> dict[str, list[Chart]]:
        """Return the figures by section."""
        speed = [record for record in self.records if record["task"] == TASK]
        return {
            "operator": [operators.illustration(), operators.bells()],
            "speed": [*measured.of_speed(speed), *measured.of_learning_to_be_in_order(speed)],
            "learning": list(measured.of_training(self.records)),
            "peers": [
                *measured.of_sorting_time(self.benchmark),
                *measured.of_peers(self.benchmark),
            ],
        }

    def tables(self) -> dict[str, list[Table]]:
        """Return the tables by section."""
        speed = [record for record in self.records if record["task"] == TASK]
        return {
            "paper": [_of_paper(table, self.records) for table in printed()["tables"]],
            "speed": [*_of_speed(speed), *_of_ratios(speed), *_of_frameworks(speed)],
            "peers": list(_of_benchmark(self.benchmark)),
            "provenance": [_of_runs(self.records), _of_origins(self.benchmark)],
        }

    def render(self) -> str:
        """Return the page."""
        loader = jinja2.PackageLoader("softorder_experiments.report", "")
        environment = jinja2.Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
        )
        environment.globals |= {"anchor": anchor}
        return environment.get_template("page.html.jinja").render(
            charts=self.charts(),
            tables=self.tables(),
            logits=operators.logits(),
            missing=self.benchmark.missing,
            sources=printed()["sources"],
            paper=printed()["paper"],
        )


def write_report(where: Path, benchmark: Path | None, out: Path) -> None:
    """Write the page about a folder of records, and the lines of a benchmark if there are any."""
    replace(out, Report.read(where, benchmark).render().encode())


def anchor(run: Record) -> str:
    """Return the name by which a link finds a run in the list of runs."""
    return "run-" + re.sub(r"\W+", "-", f"{run['run']}-{run['date']}")


def _of_paper(table: dict[str, Any], records: Sequence[Record]) -> Table:
    rows = []
    for line in lines_of(table, records):
        key = None if line.ours == NOT_RUN else _number(line.ours)
        rows.append(
            (
                Cell(line.method),
                Cell(line.column, _number(line.column)),
                Cell(line.theirs + mark(line), _number(line.theirs)),
                Cell(line.ours, key, line.runs),
                Cell(line.setting),
                Cell(str(len(line.runs) or ""), float(len(line.runs))),
                Cell(line.tested),
                Cell(line.hardware),
            )
        )
    head = ("method", table["heading"], "the paper", "ours", "our setting", "seeds", "tested on")
    return Table(table["table"], table["title"], table["metric"], (*head, "hardware"), rows)


def _of_speed(records: Sequence[Record]) -> list[Table]:
    """Return a line for each point that was tried."""
    rows = []
    for record in records:
        config, metrics = record["config"], record["metrics"]
        ok = record["outcome"] == "ok"
        time, memory = metrics.get("seconds_per_epoch"), metrics.get("memory", {}).get("bytes")
        rho = metrics.get("spearman")
        rows.append(
            (
                Cell(METHODS[config["method"]].about),
                Cell(f"{config['n']:,}", config["n"]),
                Cell(seconds(time) if ok else record["outcome"], time, (record,)),
                Cell(f"{memory / 1e6:,.1f} MB" if ok else "", memory),
                Cell(f"{rho:.5f}" if ok else "", rho),
                Cell(str(config["epochs"]), config["epochs"]),
                Cell(config["order"]),
                Cell(config["objective"]),
                Cell(record["device"]),
            )
        )
    head = ("method", "n", "time per epoch", "peak memory", "Spearman's rho", "epochs", "order")
    about = (
        "Each point in a process of its own. Order: of the scores at the start. Loss: as printed, "
        "or as behind the paper's learning curves. Running out of memory or time is a result."
    )
    return [Table("speed", "Every point", about, (*head, "loss", "device"), rows)] if rows else []


def _of_ratios(records: Sequence[Record]) -> list[Table]:
    """Return the paper's ratios beside ours."""
    found = _usual_on_cpu(records)
    theirs = printed()["speed"]
    rows = []
    for name, ratio in theirs["ratios"].items():
        for n, ours in ratios_of(found, name, theirs["reference"]):
            runs = (found[name, n], found[theirs["reference"], n])
            rows.append(
                (
                    Cell(METHODS[name].about),
                    Cell(f"{n:,}", n),
                    Cell(f"{ratio:g} †", ratio),
                    Cell(f"{ours:.2g}", ours, runs),
                )
            )
    about = "Time over that of SoftSort |.|² as printed, on the CPU; the paper's at its largest n."
    head = ("method", "n", "the paper", "ours")
    return [Table("ratios", "How many times slower", about, head, rows)] if rows else []


def _usual_on_cpu(records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    return newest([r for r in records if r["device"] == "cpu" and is_usual(r)])


def _of_frameworks(records: Sequence[Record]) -> list[Table]:
    """Return the times of softorder in other frameworks beside those in torch."""
    found = _usual_on_cpu(records)
    rows = []
    for name in (name for name, method in METHODS.items() if method.framework != "torch"):
        for n, ratio in ratios_of(found, name, in_torch(name)):
            here, there = found[name, n], found[in_torch(name), n]
            times = [run["metrics"]["seconds_per_epoch"] for run in (here, there)]
            rows.append(
                (
                    Cell(METHODS[name].about),
                    Cell(f"{n:,}", n),
                    *(Cell(seconds(time), time) for time in times),
                    Cell(f"{ratio:.2g}", ratio, (here, there)),
                )
            )
    about = "softorder's time per epoch in each framework, over that in PyTorch, on the CPU."
    head = ("method", "n", "time per epoch", "in PyTorch", "over PyTorch")
    return [Table("frameworks", "Other frameworks", about, head, rows)] if rows else []


def _of_benchmark(benchmark: Benchmark) -> list[Table]:
    tables = []
    for batch in (1, 20):
        sizes = benchmark.sizes(batch)
        for title, names in (("sorted values", benchmark.sorts), ("ranks", benchmark.ranks)):
            rows = [
                (Cell(name), *(_case(benchmark.case(name, batch, n)) for n in sizes))
                for name in names
                if any(benchmark.case(name, batch, n) for n in sizes)
            ]
            head = ("implementation", *(f"n = {n:,}" for n in sizes))
            words = "one row" if batch == 1 else f"{batch} rows"
            about = (
                f"{words[0].upper()}{words[1:]} of n scores, forward + backward, float32; "
                f"{benchmark.machine}."
            )
            if rows:
                name = f"peers-{title.split()[-1]}-{batch}"
                tables.append(Table(name, f"{title.capitalize()}, {words}", about, head, rows))
    return tables


def _case(line: dict[str, Any] | None) -> Cell:
    if line is None:
        return Cell("")
    if line["outcome"] != "ok":
        return Cell(line["outcome"])
    time = line["seconds"]["median"]
    return Cell(seconds(time), time)


def _of_runs(records: Sequence[Record]) -> Table:
    rows = [
        (
            Cell(record["run"], runs=(record,)),
            Cell(record["date"][:16].replace("T", " ")),
            Cell((record["commit"] or "unknown")[:10] + (" changed" if record["dirty"] else "")),
            Cell(hardware(record)),
            Cell(_frameworks(record["versions"])),
            Cell(f"{record['seconds']:,.0f} s", record["seconds"]),
        )
        for record in records
    ]
    head = ("run", "date", "commit", "hardware", "versions", "time")
    about = "Behind every number above: its run, and the commit of softorder that it ran on."
    return Table("runs", "Runs", about, head, rows)


def _frameworks(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in FRAMEWORKS if versions.get(name))


def _of_origins(benchmark: Benchmark) -> Table:
    rows = [
        (
            Cell(line["date"][:16].replace("T", " ")),
            Cell((line["commit"] or "unknown")[:10] + (" changed" if line["dirty"] else "")),
            Cell(f"{line['machine']['cpu']}, {line['machine']['cores']} cores"),
            Cell(", ".join(f"{name} {it}" for name, it in line["versions"].items() if it)),
        )
        for line in benchmark.origins
    ]
    head = ("date", "commit", "hardware", "versions")
    return Table("benchmark", "The benchmark", "Behind the peers' times.", head, rows)


def _number(text: str) -> float | None:
    """Return the number that a text begins with, to sort by."""
    found = re.match(r"[\d.]+", text)
    return float(found[0]) if found else None
