"""The project's own files agree with each other, and the example runs."""

import importlib
import importlib.metadata
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
