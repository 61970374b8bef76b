"""The report: one page with tables and figures of all runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from softorder_experiments.errors import write_atomically
from softorder_experiments.measuring import DISTURBANCE, format_seconds, is_disturbed
from softorder_experiments.paper_numbers import paper_numbers
from softorder_experiments.report import measured_figures as measured
from softorder_experiments.report import operator_figures as operators
from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.report.charts import Chart
from softorder_experiments.report.comparison import (
    NOT_RUN,
    hardware,
    lines_of,
    shortened_lines_of,
)
from softorder_experiments.runs import BadLine, Record, read_lines, read_records
from softorder_experiments.speed import (
    FRAMEWORKS,
    METHODS,
    TASK,
    find_unknown_method,
    in_torch,
    is_usual,
    newest,
    ratios_of,
    time_of,
)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its sorting key, and its runs."""

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
    """The content of the page."""

    records: Sequence[Record]
    benchmark: Benchmark

    @classmethod
    def read(cls, where: Path, benchmark: Path | None) -> Report:
        """Read the records of a folder, which must all be valid, and the lines of a benchmark."""
        return cls(read_records(where), Benchmark.read(benchmark))

    def charts(self) -> dict[str, list[Chart]]:
        """Return the figures by section."""
        speed = [record for record in self.records if record["task"] == TASK]
        timed = [record for record in speed if not is_disturbed(record)]
        return {
            "operator": [operators.illustration(), operators.bells()],
            "speed": [*measured.of_speed(timed), *measured.of_learning_to_be_in_order(speed)],
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
            "paper": [_of_paper(table, self.records) for table in paper_numbers()["tables"]],
            "shortened": _of_shortened(self.records),
            "speed": [
                *_of_speed(speed),
                _of_ratios(speed),
                _of_memory(speed),
                *_of_frameworks(speed),
            ],
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
            paper=paper_numbers()["paper"],
        )


def write_report(where: Path, benchmark: Path | None, out: Path) -> list[BadLine]:
    """Write the page for a folder of records, with the lines of a benchmark if given.

    Returns:
        The bad lines of the folder, which are not on the page.
    """
    records, bad = read_lines(where, find_unknown_method)
    write_atomically(out, Report(records, Benchmark.read(benchmark)).render().encode())
    return bad


def anchor(run: Record) -> str:
    """Return the anchor of a run in the list of runs."""
    return "run-" + re.sub(r"\W+", "-", f"{run['run']}-{run['date']}")


def _of_paper(table: dict[str, Any], records: Sequence[Record]) -> Table:
    rows = []
    for line in lines_of(table, records):
        key = None if line.ours == NOT_RUN else _number(line.ours)
        rows.append(
            (
                Cell(line.method),
                Cell(line.column, _number(line.column)),
                Cell(line.theirs, _number(line.theirs)),
                Cell(line.ours, key, line.runs),
                Cell(str(len(line.runs) or ""), float(len(line.runs))),
                Cell(line.trained),
                Cell(line.tested),
                Cell(line.setting),
                Cell(line.hardware),
            )
        )
    head = ("method", table["heading"], "the paper", "ours", "seeds", "trained", "tested on")
    metric = table["metric"]
    about = f"{metric[0].upper()}{metric[1:]}. {table['note']}"
    return Table(table["table"], table["title"], about, (*head, "setting", "hardware"), rows)


def _of_shortened(records: Sequence[Record]) -> list[Table]:
    """Return the table of shortened runs."""
    rows = [
        (
            Cell(table["title"].partition(":")[0]),
            Cell(f"{line.method}, {table['heading']} {line.column}"),
            Cell(line.trained),
            Cell(line.tested),
            Cell(line.ours, _number(line.ours), line.runs),
            Cell(line.setting),
            Cell(line.hardware),
        )
        for table in paper_numbers()["tables"]
        for line in shortened_lines_of(table, records)
    ]
    about = (
        "These runs have fewer epochs than their preset, fewer steps per epoch, or a smaller test. "
        "They show that an experiment runs; their results do not compare with the paper's."
    )
    head = ("table", "cell", "trained", "tested on", "result", "setting", "hardware")
    return [Table("shortened", "Shortened runs", about, head, rows)] if rows else []


def _of_speed(records: Sequence[Record]) -> list[Table]:
    """Return a line for each measured point."""
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
                Cell(time_of(record), time, (record,)),
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
        "Each point is measured in a process of its own. Order: the order of the initial scores. "
        "Loss: as printed, or as behind the paper's learning curves. Running out of memory or time "
        "is a result."
    )
    if any(map(is_disturbed, records)):
        about += (
            f" *: while other processes used more than {DISTURBANCE:.0%} of the processors; "
            "such times are left out of figures and ratios."
        )
    return [Table("speed", "Every point", about, (*head, "loss", "device"), rows)] if rows else []


def _of_ratios(records: Sequence[Record]) -> Table:
    """Return the paper's ratios beside ours, on the CPU and on the GPU."""
    theirs = paper_numbers()["speed"]
    rows = []
    for device, ratios in (("cpu", theirs["ratios"]), ("cuda", theirs["ratios_on_gpu"])):
        found = _usual_on(device, records)
        for name, ratio in ratios.items():
            ours = dict(ratios_of(found, name, theirs["reference"]))
            for n in sorted({theirs["n"], *ours}):
                runs = (found[name, n], found[theirs["reference"], n]) if n in ours else ()
                printed_here = n == theirs["n"]
                rows.append(
                    (
                        Cell(METHODS[name].about),
                        Cell(_DEVICES[device]),
                        Cell(f"{n:,}", n),
                        Cell(f"{ratio:g}" if printed_here else "", ratio if printed_here else None),
                        Cell(f"{ours[n]:.2g}" if n in ours else NOT_RUN, ours.get(n), runs),
                    )
                )
    about = (
        "Time divided by that of SoftSort |.|² as printed. The paper reports its largest n in "
        "TensorFlow, and says that PyTorch is similar; our times are in PyTorch."
    )
    head = ("method", "device", "n", "the paper", "ours")
    return Table("ratios", "How many times slower", about, head, rows)


_DEVICES = {"cpu": "CPU", "cuda": "GPU"}
# Our methods for those in the paper's plots, which do not say which NeuralSort they show.
_PLOTTED = {"NeuralSort": "neuralsort-corrected", "SoftSort": "softsort-square-dense"}


def _of_memory(records: Sequence[Record]) -> Table:
    """Return the n at which the paper's formulas run out of memory in PyTorch."""
    rows = []
    for theirs in paper_numbers()["speed"]["out_of_memory"]:
        name = _PLOTTED[theirs["method"]]
        tried = {
            n: run
            for (method, n), run in _usual_on(theirs["device"], records).items()
            if method == name
        }
        failed = [n for n, run in tried.items() if run["outcome"] == "out of memory"]
        enough = [n for n, run in tried.items() if run["outcome"] == "ok"]
        ours = NOT_RUN
        if failed:
            ours = f"n = {min(failed):,}"
        elif enough:
            ours = f"runs at n = {max(enough):,}"
        last = min(failed, default=max(enough, default=0))
        rows.append(
            (
                Cell(theirs["method"]),
                Cell(_DEVICES[theirs["device"]]),
                Cell(f"n = {theirs['n']:,}", theirs["n"]),
                Cell(ours, last or None, (tried[last],) if last else ()),
                Cell(paper_numbers()["speed"]["hardware"][theirs["device"]]),
            )
        )
    head = ("method", "device", "the paper", "ours", "the paper's hardware")
    about = (
        "The n at which formulas that build the matrix run out of memory, in PyTorch. The paper "
        "does not say which NeuralSort it used; ours is the corrected one. SoftSort uses |.|²."
    )
    return Table("memory", "Out of memory", about, head, rows)


def _usual_on(device: str, records: Sequence[Record]) -> dict[tuple[str, int], Record]:
    return newest([r for r in records if r["device"] == device and is_usual(r)])


def _of_frameworks(records: Sequence[Record]) -> list[Table]:
    """Return the times of softorder in other frameworks, relative to torch."""
    found = _usual_on("cpu", records)
    rows = []
    for name in (name for name, method in METHODS.items() if method.framework != "torch"):
        for n, ratio in ratios_of(found, name, in_torch(name)):
            here, there = found[name, n], found[in_torch(name), n]
            times = [run["metrics"]["seconds_per_epoch"] for run in (here, there)]
            rows.append(
                (
                    Cell(METHODS[name].about),
                    Cell(f"{n:,}", n),
                    *(Cell(format_seconds(time), time) for time in times),
                    Cell(f"{ratio:.2g}", ratio, (here, there)),
                )
            )
    about = "softorder's time per epoch in each framework, divided by that in PyTorch, on the CPU."
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
    return Cell(format_seconds(time), time)


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
    about = "The run behind every number above, and the commit of softorder that it used."
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
    return Table("benchmark", "The benchmark", "The benchmark behind the peers' times.", head, rows)


def _number(text: str) -> float | None:
    """Return the number at the start of a text, for sorting."""
    found = re.match(r"[\d.]+", text)
    return float(found[0]) if found else None
