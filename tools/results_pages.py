"""Write what the committed records show: docs/report.html, the README's picture and its tables.

What a user runs is written to results/, which git ignores, and never enters these pages.

python -m tools.results_pages            writes them
python -m tools.results_pages --check    says whether they are what would be written
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
    """Return what each file should hold."""
    report = committed(ROOT)
    (picture,) = of_sorting_time(report.benchmark)
    return {
        DOCS / "report.html": report.render(),
        DOCS / "figures" / "time-light.svg": picture.light,
        DOCS / "figures" / "time-dark.svg": picture.dark,
        README: _put(README.read_text(), _tables(report.records)),
    }


def committed(root: pathlib.Path) -> Report:
    """Return the report about what a clone holds, whatever was run in it since."""
    benchmark = max((root / "benchmarks" / "results").glob("*.jsonl"))
    return Report.read(root / "records", benchmark)


def _put(text: str, table: str) -> str:
    """Put a table between the marks for it."""
    begin, end = "<!-- made by `make report` -->", "<!-- end -->"
    pattern = f"{re.escape(begin)}.*?{re.escape(end)}"
    replaced, count = re.subn(pattern, lambda _: f"{begin}\n{table}\n{end}", text, flags=re.S)
    if count != 1:
        sys.exit(f"README.md must have the marks {begin} and {end} once; it has them {count} times")
    return replaced


def _tables(records: Sequence[Record]) -> str:
    """Return the cells of the paper's tables that were run, and apart from them shortened runs."""
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
    "Shortened runs (fewer epochs than their preset, fewer steps than an epoch has, or a smaller\n"
    "test) show that a cell can be run, not what would come out of it; the paper's results are no\n"
    "measure for them:"
)


def _cell(title: str, table: Mapping[str, Any], line: Line) -> str:
    return f"{title}: {line.method}, {table['heading']} {line.column}"


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
            print(f"{name} is not what the records say; `make report` writes it", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(f"wrote {name}")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
