"""Write what the committed results show: docs/report.html, the README's picture and its tables.

python -m tools.results_pages            writes them
python -m tools.results_pages --check    says whether they are what would be written
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

from softorder_experiments.report import Report
from softorder_experiments.report.comparison import NOT_RUN, lines_of, printed
from softorder_experiments.runs import Record
from softorder_experiments.speed import METHODS, TASK, newest, seconds

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
_SIZES = (100, 1000, 4000, 10**5, 10**6)


def files() -> dict[pathlib.Path, str]:
    """Return what each file should hold."""
    benchmark = max((ROOT / "benchmarks" / "results").glob("*.jsonl"))
    report = Report.read(ROOT / "results", benchmark)
    (picture,) = (chart for chart in report.charts()["peers"] if chart.name == "time")
    readme = README.read_text()
    for name, table in (("speed", _speed(report.records)), ("tables", _tables(report.records))):
        readme = _put(readme, name, table)
    return {
        DOCS / "report.html": report.render(),
        DOCS / "figures" / "time-light.svg": picture.light,
        DOCS / "figures" / "time-dark.svg": picture.dark,
        README: readme,
    }


def _put(text: str, name: str, table: str) -> str:
    """Put a table between its marks."""
    pattern = rf"(<!-- results: {name} -->\n).*?(\n<!-- end -->)"
    replaced, count = re.subn(
        pattern, lambda found: f"{found[1]}{table}{found[2]}", text, flags=re.S
    )
    if count != 1:
        sys.exit(
            f"README.md must have <!-- results: {name} --> and <!-- end --> once; found {count}"
        )
    return replaced


def _speed(records: Sequence[Record]) -> str:
    """Return time per epoch by method and n, of the usual points on the CPU."""
    usual = [
        record
        for record in records
        if record["task"] == TASK
        and record["device"] == "cpu"
        and (record["config"]["order"], record["config"]["objective"]) == ("random", "printed")
    ]
    found = newest(usual)
    rows = [
        [method.about, *(_cell(found.get((name, n))) for n in _SIZES)]
        for name, method in METHODS.items()
    ]
    return _markdown(["time per epoch", *(f"n = {n:,}" for n in _SIZES)], rows)


def _cell(record: Record | None) -> str:
    if record is None:
        return "-"
    ok = record["outcome"] == "ok"
    return seconds(record["metrics"]["seconds_per_epoch"]) if ok else record["outcome"]


def _tables(records: Sequence[Record]) -> str:
    """Return the cells of the paper's tables that were run."""
    rows = []
    for table in printed()["tables"]:
        title = table["title"].partition(":")[0]
        for line in lines_of(table, records):
            if line.ours != NOT_RUN:
                what = f"{line.method}, {table['heading']} {line.column}"
                seeds = str(len(line.runs))
                rows.append([title, what, line.theirs, line.ours, line.setting, seeds])
    return _markdown(["", "", "the paper", "ours", "our setting", "seeds"], rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing: say what is stale")
    check = parser.parse_args().check
    stale = [
        (file, text)
        for file, text in files().items()
        if not file.exists() or file.read_text() != text
    ]
    for file, text in stale:
        name = file.relative_to(ROOT)
        if check:
            print(f"{name} is not what the results say; `make report` writes it", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(f"wrote {name}")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
