"""The report: figures, provenance; and the page in a browser."""

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
from softorder_experiments.record_schema import find_record_problem
from softorder_experiments.report import Report, measured_figures, write_report
from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.report.comparison import NOT_RUN
from softorder_experiments.report.operator_figures import (
    bell,
    both_bells,
    logits,
    neuralsort_logits,
    softsort_logits,
)
from softorder_experiments.speed import METHODS
from softorder_experiments.tasks import TASKS
from tolerances import VALUES

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
        "best_epoch": 1,
        "seconds": 12.0,
        "images_per_second": 100.0,
        "device": "cpu",
        "threads": 1,
        **ORIGIN,
    }


def sort_run(seed, right, **config):
    given = {"n": 5, "relaxation": "softsort", "stochastic": False, "epochs": 10, **config}
    test = {"permutations_right": right, "elements_right": 0.9, "sequences": 2500}
    epochs = range(1, given["epochs"] + 1)
    curve = [{"epoch": e, "step": 50 * e, "loss": 1.0, "validation": test} for e in epochs]
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
    limits = {"seconds": 60.0, "bytes": 1e9}
    rest = {"outcome": outcome, "metrics": metrics if ok else {}, "curve": curve}
    return {**run, **rest, "limits": limits}


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


def test_figures_are_called_what_they_are(page):
    text = page.read_text()
    titles = re.findall(r"<figure[^>]*>\s*<h3>(.*?)</h3>", text)
    assert "Figure 9: speed in PyTorch, CPU" in titles
    assert "Figure 10: the rows, Laplace and Gaussian" in titles
    assert not any(title.startswith(("Figure 6", "Figure 7")) for title in titles)


def test_figure_10_is_what_the_operators_give():
    softsort, neuralsort = both_bells()
    for side, density in (
        (softsort, lambda u: numpy.exp(-abs(u))),
        (neuralsort, lambda u: numpy.exp(-(u**2) / 2)),
    ):
        assert len(side.scores) == 4
        numpy.testing.assert_allclose(side.weights, density(side.scores), atol=VALUES["float64"])
        numpy.testing.assert_allclose(side.heights, density(side.grid), atol=VALUES["float64"])
    # Drawn from the rows of the matrix, not from a formula.
    other = bell("", [2.4, 1.2, 0.0, -2.0], so.NeuralSort(5 / 3), so.NeuralSort(100.0))
    expected = so.NeuralSort(5 / 3)(numpy.array([2.4, 1.2, 0.0, -2.0])).matrix()[2]
    numpy.testing.assert_allclose(other.weights, expected / expected[2])


@pytest.mark.parametrize(
    ("of", "how"), [(softsort_logits, so.SoftSort(1.0)), (neuralsort_logits, so.NeuralSort(1.0))]
)
def test_the_logits_are_the_operators(of, how):
    scores = numpy.array([3.1, 2.4, 0.7, 0.2])
    log_p = how(scores).log_matrix()
    want = log_p - numpy.diagonal(log_p)[:, None]
    got = [[of(i, j, 4) @ scores for j in range(4)] for i in range(4)]
    numpy.testing.assert_allclose(got, want, atol=VALUES["float64"])


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


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[]",
        '{"implementation": 5}',
        json.dumps({**case("dense abs", 10, 0.1), "shape": [1, "\x1b"]}),
        json.dumps({**case("dense abs", 10, 0.1), "seconds": None}),
    ],
)
def test_a_file_that_is_no_benchmark_is_an_error(tmp_path, line):
    (tmp_path / "x").write_text(line)
    with pytest.raises(cli.UserError, match="must hold the JSON lines of a benchmark"):
        Benchmark.read(tmp_path / "x")


def test_a_record_must_have_the_metric_that_its_task_is_chosen_by():
    for name, task in TASKS.items():
        run = record(name, name, 0, {}, [], n=5, relaxation="softsort", stochastic=False)
        needed = re.search(r"metrics\.test\.(\w+) is missing", find_record_problem(run))
        assert needed[1] == task.selection


def test_a_dollar_in_a_setting_begins_no_formula():
    (chart,) = measured_figures.of_training([sort_run(0, 0.5, preset=r"$\no{$")])
    assert r"$\no{$" in chart.light


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
