"""The project's own files agree with each other, and the example runs."""

import ast
import importlib
import importlib.metadata
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml

import frameworks
import softorder

ROOT = pathlib.Path(__file__).parents[1]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
needs_experiments = pytest.mark.skipif(
    not frameworks.extra_is_installed("experiments"), reason="experiments are not installed"
)


def test_pre_commit_runs_the_pinned_versions():
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    versions = {repo["repo"].rsplit("/", 1)[-1]: repo["rev"] for repo in config["repos"]}
    assert versions["ruff-pre-commit"] == f"v{PINS['ruff']}"
    assert versions["pyright-python"] == f"v{PINS['pyright']}"


def test_the_version_is_one():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == softorder.__version__
    assert importlib.metadata.version("softorder") == softorder.__version__


def test_the_core_needs_three_packages():
    names = {re.split(r"[<>=~!]", d)[0] for d in PROJECT["project"]["dependencies"]}
    assert names == {"array-api-compat", "numpy", "scipy"}
    assert set(PROJECT["project"]["optional-dependencies"]) >= {
        "torch",
        "jax",
        "tensorflow",
        "experiments",
        "docs",
    }


def test_every_development_dependency_is_pinned():
    wanted = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["torch"],
        *PROJECT["project"]["optional-dependencies"]["experiments"],
        *PROJECT["dependency-groups"]["dev"],
    ]
    for requirement in wanted:
        name = re.split(r"[\[<>=~!]", requirement)[0]
        assert name == "softorder" or name in PINS, f"{name} is not in constraints.txt"


@pytest.mark.parametrize("file", ["constraints.txt", "Makefile", ".ci/run", "pyproject.toml"])
def test_no_host_and_no_path_of_a_machine_is_named(file):
    text = (ROOT / file).read_text()
    assert not re.search(r"https?://|/(root|home|opt|tmp|work)/", text)


def numbers_of(place):
    """Return the numbers of an expression: fractions anywhere, but not in brackets, and itself."""
    keys = {
        id(part)
        for entry in ast.walk(place)
        if isinstance(entry, ast.Subscript)
        for part in ast.walk(entry.slice)
    }
    constants = (p for p in ast.walk(place) if isinstance(p, ast.Constant) and id(p) not in keys)
    return [
        c.value
        for c in constants
        if type(c.value) is float or (c is place and type(c.value) is int)
    ]


def inline_tolerances(text):
    """Return the lines of a test file that hold a tolerance as a number.

    0 is none, and a whole number of entries of the table, like 10 * LIMIT, is one of the table.
    """
    lines = set()
    for node in ast.walk(ast.parse(text)):
        places, least = [], math.inf
        if isinstance(node, ast.Call):
            places = [k.value for k in node.keywords if k.arg in ("rtol", "atol", "rel", "abs")]
            if re.search("close|alike", ast.unparse(node.func)):
                starred = any(isinstance(a, ast.Starred) for a in node.args)
                places += node.args[1 if starred else 2 :][-1:]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            places = [v for k, v in pairs if k and ast.unparse(k) in ("'rtol'", "'atol'")]
        elif isinstance(node, ast.Assert):
            compared = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
            below = [part for part in compared if isinstance(part.ops[-1], (ast.Lt, ast.LtE))]
            places, least = [part.comparators[-1] for part in below], 2e-3
        # A string may be a program that a test runs.
        program = isinstance(node, ast.Constant) and isinstance(node.value, str)
        written = program and re.search(r"\b(rtol|atol|rel|abs)=[\d.]*[1-9]", node.value)
        numbers = [number for place in places for number in numbers_of(place)]
        if written or any(0 < abs(number) < least for number in numbers):
            lines.add(node.lineno)
    return sorted(lines)


@pytest.mark.parametrize(
    "line",
    [
        "assert_allclose(a, b, rtol=1e-6)",
        "assert_allclose(a, b, rtol=0, atol=0.05)",
        "assert_allclose(a, b, atol=LIMIT + 1e-9 * b.max())",
        "assert_allclose(a, b, 1e-6)",
        "torch.testing.assert_close(a, b, rtol=0.0, atol=1e-7)",
        "assert a == pytest.approx(b, abs=4)",
        "assert a == pytest.approx(b, rel=1e-4)",
        "assert_close(a, b, 1e-9)",
        "assert_alike(a, b, 1e-9, least=1.0)",
        "assert_alike(*found, 1e-9)",
        "assert (a - b).abs().max() < 1e-10",
        "assert (abs(a - b) <= 1e-12 * b).all()",
        "check(a, **{'rtol': 1e-4})",
        "run('assert_allclose(a, b, atol=1e-4)')",
    ],
)
def test_a_tolerance_that_is_not_of_the_table_is_seen(line):
    assert inline_tolerances(f"x = 1\n{line}\n") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "assert_allclose(a, b, rtol=0, atol=10 * LIMIT)",
        "assert_close(a, [0.1, 0.2], VALUES)",
        "assert_close(a, b, STOPPED[1e-4])",
        "assert a == pytest.approx(b)",
        "so.Sinkhorn(tolerance=1e-9)",
        "assert x < 0.2",
        "step = 1e-6",
    ],
)
def test_other_numbers_are_not_tolerances(line):
    assert inline_tolerances(line) == []


def test_the_tolerances_of_the_tests_are_in_one_table():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path.name not in ("tolerances.py", "test_project.py")
        for line in inline_tolerances(path.read_text())
    ]
    assert found == [], "take an entry of tests/tolerances.py, or add one that says why"


def test_the_page_how_to_choose_is_what_was_found_and_measured():
    command = [sys.executable, "-m", "tools.how_to_choose", "--check"]
    subprocess.run(command, check=True, cwd=ROOT)


@needs_experiments
def test_what_the_results_show_is_what_is_committed():
    command = [sys.executable, "-m", "tools.results_pages", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@needs_experiments
def test_what_a_user_runs_does_not_enter_the_committed_pages(tmp_path, monkeypatch):
    """`make run` and then `make test` in one clone."""
    from softorder_experiments.config import Execution
    from softorder_experiments.runs import Run, append_record

    monkeypatch.syspath_prepend(ROOT)
    results_pages = importlib.import_module("tools.results_pages")
    for folder in ("records", "benchmarks/results"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    before = results_pages.committed(tmp_path)
    assert len(before.records) > 50
    theirs = next(record for record in before.records if record["task"] == "sort")
    append_record(Run(tmp_path / Execution.out, theirs["run"]).records, theirs)
    after = results_pages.committed(tmp_path)
    assert (after.records, after.benchmark.lines) == (before.records, before.benchmark.lines)
    assert f"/{Execution.out}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_ci_runs_the_two_commands_of_the_readme_in_their_order():
    (section,) = re.findall(
        "## Two commands\n\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    commands = [line.partition("#")[0].strip() for line in section.splitlines()]
    assert commands == ["make run", "make test"]
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in lines if line.startswith("make")] == commands


@needs_experiments
def test_the_quickstart_prints_figure_1_and_draws(tmp_path):
    picture = tmp_path / "picture.png"
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py", picture],
        check=True,
        capture_output=True,
        text=True,
    )
    for row in ("0.04    0.71    0.26", "0.09    0.24    0.67", "0.84    0.04    0.11"):
        assert row in run.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_experiments
def test_the_quickstart_says_where_it_cannot_write(tmp_path):
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "quickstart.py", tmp_path / "none" / "p.png"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 2
    assert "must exist; create it" in run.stderr
