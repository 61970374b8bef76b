"""Write docs/report.html and the README's figure and tables from the committed records.

A user's own runs are in results/, which git ignores; they do not change these pages.

python -m tools.results_pages            writes the pages
python -m tools.results_pages --check    fails if a page is not up to date
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softorder_experiments.paper_numbers import paper_numbers
from softorder_experiments.report import Report
from softorder_experiments.report.comparison import NOT_RUN, Line, lines_of, shortened_lines_of
from softorder_experiments.report.measured_figures import of_sorting_time
from softorder_experiments.runs import Record

ROOT = pathlib.Path(__file__).parents[1]
README = ROOT / "README.md"
DOCS = ROOT / "docs"


def files() -> dict[pathlib.Path, str]:
    """Return the content of each file."""
    report = committed(ROOT)
    (picture,) = of_sorting_time(report.benchmark)
    return {
        DOCS / "report.html": report.render(),
        DOCS / "figures" / "time-light.svg": picture.light,
        DOCS / "figures" / "time-dark.svg": picture.dark,
        README: _put(README.read_text(), _tables(report.records)),
    }


def committed(root: pathlib.Path) -> Report:
    """Return the report on the committed records of a clone."""
    benchmark = max((root / "benchmarks" / "results").glob("*.jsonl"))
    return Report.read(root / "records", benchmark)


def _put(text: str, table: str) -> str:
    """Insert a table between its marks."""
    begin, end = "<!-- made by `make report` -->", "<!-- end -->"
    pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
    replaced, count = re.subn(pattern, lambda _: f"{begin}\n{table}\n{end}", text, flags=re.S)
    if count != 1:
        sys.exit(f"README.md must have the marks {begin} and {end} once; got them {count} times")
    return replaced


def _tables(records: Sequence[Record]) -> str:
    """Return a table of the paper's cells that were run, and a table of shortened runs."""
    whole, parts = [], []
    for table in paper_numbers()["tables"]:
        title = table["title"].partition(":")[0].removesuffix(" (appendix)")
        for line in lines_of(table, records):
            if line.ours != NOT_RUN:
                seeds = str(len(line.runs))
                ran = [line.theirs, line.ours, seeds, line.trained, line.tested, line.setting]
                whole.append([_cell(title, table, line), *ran])
        for line in shortened_lines_of(table, records):
            ran = [line.ours, line.trained, line.tested, line.setting]
            parts.append([_cell(title, table, line), *ran])
    head = ["", "the paper", "ours", "seeds", "trained", "tested on", "setting"]
    text = _markdown(head, whole)
    if parts:
        text += f"\n\n{_SHORTENED}\n\n"
        text += _markdown(["", "result", "trained", "tested on", "setting"], parts)
    return text


_SHORTENED = (
    "Shortened runs have fewer epochs than their preset, fewer steps per epoch, or a smaller\n"
    "test. They show that an experiment runs; their results do not compare with the paper's:"
)


def _cell(title: str, table: Mapping[str, Any], line: Line) -> str:
    return f"{title}: {line.method}, {table['heading']} {line.column}"


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def main() -> None:
    """Write the files, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a page is out of date")
    check = parser.parse_args().check
    stale = [
        (file, text)
        for file, text in files().items()
        if not file.exists() or file.read_text() != text
    ]
    for file, text in stale:
        name = file.relative_to(ROOT)
        if check:
            print(f"{name} is out of date; `make report` updates it", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(f"wrote {name}")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
