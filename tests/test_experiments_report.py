"""The report: printed numbers beside ours, provenance, figures; and the page in a browser."""

import json
import pathlib
import re
import shutil
import subprocess

import numpy
import pytest
from typer.testing import CliRunner

import softorder as so
from softorder_experiments import cli
from softorder_experiments.printed import printed
from softorder_experiments.report import Report, measured_figures, write_report
from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.report.comparison import NOT_RUN, lines_of
from softorder_experiments.report.operator_figures import (
    logits,
    neuralsort_logits,
    softsort_logits,
)
from softorder_experiments.speed import METHODS
from softorder_experiments.tasks import TASKS

ROOT = pathlib.Path(__file__).parents[1]
ORIGIN = {
    "machine": {"cpu": "A processor", "cores": 2, "ram_bytes": 2**34, "os": "Linux"},
    "versions": {"python": "3.11", "torch": "2.13", "softorder": "0.1"},
    "commit": "0123456789abcdef",
    "dirty": False,
    "date": "2026-11-16T12:00:00+00:00",
}


def record(task, name, seed, test, curve, **config):
    config = {"preset": "short", "data": "mnist", "seed": seed, **config}
    return {
        "schema": 1,
        "run": f"{name}-s{seed}",
        "task": task,
        "config": config,
        "seed": seed,
        "metrics": {"test": test, "validation": test},
        "curve": curve,
        "seconds": 12.0,
        "device": "cpu",
        "threads": 1,
        **ORIGIN,
    }


def sort_run(seed, right, **config):
    test = {"permutations_right": right, "elements_right": 0.9, "sequences": 1000}
    curve = [{"epoch": e, "step": e, "loss": 1.0, "validation": test} for e in (1, 2)]
    given = {"n": 5, "relaxation": "softsort", "stochastic": False, **config}
    return record("sort", "sort-n5", seed, test, curve, **given)


def speed_run(method, n, outcome="ok", times=1.0, **config):
    config = {"epochs": 6, "order": "random", "objective": "printed", "device": "cpu", **config}
    run = record("speed", f"speed-{method}-{n}", 0, {}, [], method=method, n=n, **config)
    metrics = {
        "seconds_per_epoch": times * n / 1000,
        "memory": {"bytes": 1000 * n},
        "spearman": 0.5,
    }
    curve = [{"epoch": e, "loss": 1.0, "spearman": e / 10} for e in (1, 2)]
    ok = outcome == "ok"
    return {**run, "outcome": outcome, "metrics": metrics if ok else {}, "curve": curve}


def in_framework(name, version, run):
    return {**run, "versions": {**run["versions"], name: version}}


def case(name, n, seconds=None, outcome="ok"):
    line = {
        "kind": "case",
        "implementation": name,
        "shape": [1, n],
        "direction": "forward+backward",
        "outcome": outcome,
        "configuration": {"threads": 2},
        **ORIGIN,
    }
    return {**line, "seconds": {"median": seconds}} if outcome == "ok" else line


RECORDS = [
    sort_run(0, 0.70),
    sort_run(1, 0.80),
    speed_run("softsort-square-dense", 100),
    speed_run("neuralsort-corrected", 100),
    speed_run("softsort-square", 100),
    speed_run("softsort-square-dense", 4000, "out of memory"),
    speed_run("softsort-square", 1000, objective="curves"),
    in_framework("jax", "0.10", speed_run("softsort-square-jax", 100, times=2.0)),
    speed_run("softsort-square-jax", 1000, objective="curves"),
    speed_run("softsort-square-tensorflow", 100, "tensorflow is not installed"),
]
LINES = [
    case("dense abs", 10, 0.1),
    case("softorder abs", 10, 0.01),
    case("softorder abs", 100, 0.02),
    case("torch.sort", 10, 0.005),
    case("torchsort soft_sort", 10, 0.02),
    case("OTT rank", 10, outcome="too slow"),
    {**case("POT sort", 10, outcome="not available: not installed"), "kind": "verification"},
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the page about RECORDS and LINES, as the command writes it."""
    folder = tmp_path_factory.mktemp("report")
    for name, lines in (("results.jsonl", RECORDS), ("bench.json", LINES)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["report", str(folder), "--benchmark", str(folder / "bench.json")]
    result = CliRunner().invoke(cli.app, [*words, "--to", str(folder / "page.html")])
    assert result.exit_code == 0, result.output
    assert "page.html" in result.output
    return folder / "page.html"


def test_every_printed_row_names_a_task_there_is():
    for table in printed()["tables"]:
        for row in table["rows"]:
            assert row["task"] is None or row["task"] in TASKS
            assert len(row["values"]) == len(table["columns"])
            assert row["source"] in printed()["sources"]


def test_a_cell_has_the_mean_and_deviation_over_seeds():
    table = printed()["tables"][0]
    lines = lines_of(table, RECORDS)
    (ours,) = (line for line in lines if line.ours != NOT_RUN)
    assert (ours.method, ours.column, ours.theirs) == (
        "deterministic SoftSort",
        "5",
        "0.796 ± 0.009",
    )
    assert ours.ours == "0.750 ± 0.071"
    assert ours.setting == "short, 2 epochs"
    assert [run["seed"] for run in ours.runs] == [0, 1]
    assert len(lines) == sum(len(row["values"]) for row in table["rows"])


def test_of_two_settings_the_newest_counts_and_presets_stand_apart():
    older = {**sort_run(0, 0.1, lr=1.0), "date": "2025-01-01"}
    paper = sort_run(0, 0.6, preset="paper")
    lines = lines_of(printed()["tables"][0], [older, *RECORDS, paper])
    assert [line.ours for line in lines if line.runs] == ["0.750 ± 0.071", "0.600"]


def test_other_data_do_not_answer_a_cell():
    lines = lines_of(printed()["tables"][0], [sort_run(0, 0.9, data="digits")])
    assert not any(line.runs for line in lines)


@pytest.mark.parametrize(
    ("of", "how"), [(softsort_logits, so.SoftSort(1.0)), (neuralsort_logits, so.NeuralSort(1.0))]
)
def test_the_logits_are_the_operators(of, how):
    scores = numpy.array([3.1, 2.4, 0.7, 0.2])
    log_p = how(scores).log_matrix()
    want = log_p - numpy.diagonal(log_p)[:, None]
    got = [[of(i, j, 4) @ scores for j in range(4)] for i in range(4)]
    numpy.testing.assert_allclose(got, want, atol=1e-12)


def test_the_logits_are_written_as_the_paper_has_them():
    assert logits()["NeuralSort"][0] == ["0", "s2 - s1", "3s3 - s1 - 2s2", "5s4 - s1 - 2s2 - 2s3"]
    assert logits()["SoftSort, |.|"][1] == ["s2 - s1", "0", "s3 - s2", "s4 - s2"]


def test_the_page_says_what_was_run_and_what_was_not(page):
    text = page.read_text()
    for part in (NOT_RUN, "0.750 ± 0.071", "out of memory", "too slow", "POT sort (not available"):
        assert part in text
    assert "0123456789" in text  # the commit


def test_other_frameworks_stand_beside_torch(page):
    (table,) = (
        table
        for table in Report(RECORDS, Benchmark([])).tables()["speed"]
        if table.name == "frameworks"
    )
    (row,) = table.rows
    assert [cell.text for cell in row] == [
        "SoftSort |.|², softorder (JAX)",
        "100",
        "200 ms",
        "100 ms",
        "2",
    ]
    text = page.read_text()
    assert "torch 2.13, jax 0.10" in text
    assert "tensorflow is not installed" in text


def test_every_line_of_the_speed_figure_can_be_told_from_the_others():
    runs = [speed_run(name, n) for name in METHODS for n in (100, 1000)]
    curves = measured_figures._by_n(runs, measured_figures._seconds)
    assert len({(curve.color, curve.style, curve.marker) for curve in curves}) == len(METHODS)


def test_the_page_needs_no_network_and_no_other_file(page):
    addresses = re.findall(r'(?:src|srcset|href)="([^"]*)"', page.read_text())
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)


def test_every_link_has_its_run_and_every_figure_its_words(page):
    text = page.read_text()
    names = set(re.findall(r'id="([^"]+)"', text))
    assert set(re.findall(r'href="#([^"]+)"', text)) <= names
    pictures = re.findall(r"<img[^>]*>", text)
    assert len(pictures) >= 6
    assert all(re.search(r'alt="[^"]{40,}"', picture) for picture in pictures)


def test_the_same_lines_give_the_same_page(page, tmp_path):
    write_report(page.parent, page.parent / "bench.json", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page.read_text()


def test_nothing_run_is_a_page_too(tmp_path):
    text = Report([], Benchmark([])).render()
    assert text.count(NOT_RUN) > 40
    assert "softorder run speed" in text


def test_a_file_that_is_no_benchmark_is_an_error(tmp_path):
    (tmp_path / "x").write_text("no JSON")
    with pytest.raises(cli.UserError, match="must hold the JSON lines of a benchmark"):
        Benchmark.read(tmp_path / "x")


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
CHECK = """
<script>
window.problems = [];
window.addEventListener("error", (event) => window.problems.push(event.message));
</script>
"""
LOOK = """
<script>
addEventListener("load", () => {
  const pictures = [...document.images];
  const heading = document.querySelector("#table-table1 ~ .scroll th:nth-child(3) button");
  heading.click();
  const rows = [...heading.closest("table").tBodies[0].rows];
  const said = {
    problems: window.problems,
    drawn: pictures.filter((picture) => picture.complete && picture.naturalWidth > 100).length,
    pictures: pictures.length,
    tables: document.querySelectorAll("table.sortable").length,
    empty: [...document.querySelectorAll("table")].filter((t) => !t.querySelector("td")).length,
    wide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    sorted: heading.closest("th").getAttribute("aria-sort"),
    keys: rows.map((row) => parseFloat(row.cells[2].dataset.key)),
  };
  document.documentElement.innerHTML = `<pre id="said">${JSON.stringify(said)}</pre>`;
});
</script>
"""


@pytest.mark.skipif(
    BROWSER is None, reason="no Chromium here; as root, `make browser` installs Debian's"
)
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_draws_every_figure_and_sorts_the_tables(page, tmp_path, width):
    text = page.read_text().replace("<head>", f"<head>{CHECK}").replace("</body>", f"{LOOK}</body>")
    (tmp_path / "page.html").write_text(text)
    command = [
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--enable-logging"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},900",
        *("--virtual-time-budget=5000", "--dump-dom"),
        (tmp_path / "page.html").as_uri(),
    ]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in shown.stderr  # where Chromium logs what a page says of its errors
    (said,) = re.findall(r'<pre id="said">(.*?)</pre>', shown.stdout)
    said = json.loads(said)
    assert said["problems"] == []
    assert said["drawn"] == said["pictures"] >= 6
    assert said["tables"] >= 7
    assert said["empty"] == 0
    assert said["wide"] <= 0, "the page is wider than the window"
    assert said["sorted"] == "ascending"
    assert said["keys"] == sorted(said["keys"])
