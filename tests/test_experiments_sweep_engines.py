"""Sweeps on every engine, with killed workers, and as a command."""

import contextlib
import dataclasses
import json
import os
import pickle
import signal
import subprocess
import time

import pytest
from typer.testing import CliRunner

from softorder_experiments import cli, sweeps
from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError
from softorder_experiments.launch import run_task
from softorder_experiments.runs import finished_runs, read_records
from softorder_experiments.sweeps import Job, Sweep, TableOptions, Workers, plan, tables
from softorder_experiments.sweeps import run as sweep_run
from softorder_experiments.tasks import TASKS
from test_experiments_engine import COMMAND, QUIET, same
from test_experiments_sweeps import SMALL, FakeWorkers


def test_errors_and_jobs_travel_to_workers(tmp_path):
    error = pickle.loads(pickle.dumps(UserError("this", "that", "Mend it")))
    assert (str(error), error.fix) == ("this; got that. Mend it", "Mend it")
    (cell,) = plan("table1", TableOptions((3,), ("softsort",), False))
    job = Sweep("x", [cell], 1, False, Execution(out=str(tmp_path))).job(cell, cell.config)
    again = pickle.loads(pickle.dumps(job))
    assert isinstance(again, Job)
    assert again.config == cell.config
    assert again.run.name == job.run.name


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The records of two seeds and two relaxations, run one by one in this process."""
    out = tmp_path_factory.mktemp("undisturbed")
    execution = Execution(out=str(out), accelerator="cpu")
    for cell in plan("table1", TableOptions((3,), (), False, ("digits",), None, SMALL)):
        for seed in (0, 1):
            config = dataclasses.replace(cell.config, seed=seed)
            run_task(TASKS[cell.task](config), execution, QUIET)
    return finished_runs(out)


def a_process_at_work(out):
    """Return the number of a worker's process whose run has a checkpoint."""
    for file in out.glob("runs/*/status.json"):
        if (file.parent / "checkpoint.pt").exists():
            with contextlib.suppress(ValueError, OSError):
                return int(json.loads(file.read_text())["where"].rpartition(":")[2])
    return None


@pytest.mark.parametrize("name", ["local", "ray", "dask"])
def test_a_sweep_on_any_engine_survives_a_killed_worker(tmp_path, undisturbed, name):
    settings = [f"--set={setting}" for setting in SMALL]
    wishes = ["--data=digits", "--seeds=2", "--n=3", "--deterministic", f"--engine={name}"]
    execution = ["--accelerator=cpu", f"--out={tmp_path}", "--checkpoint-seconds=0", "--jobs=2"]
    command = [*COMMAND, "sweep", "table1", *wishes, *settings, *execution]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        if (number := a_process_at_work(tmp_path)) is not None:
            os.kill(number, signal.SIGKILL)
            break
        time.sleep(0.05)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, (said, errors)
    records = finished_runs(tmp_path)
    assert len(read_records(tmp_path)) == len(records) == 4
    assert records.keys() == undisturbed.keys()
    for run, record in records.items():
        assert same(record, undisturbed[run])
    assert any(record["resumed"] for record in records.values()), "nobody was killed"
    content = (tmp_path / "results.jsonl").read_bytes()
    again = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (again.returncode, (tmp_path / "results.jsonl").read_bytes()) == (0, content)
    assert "at a time" not in again.stdout  # no worker was asked
    assert not list(tmp_path.glob("runs/*/status.json"))


def sweep_here(monkeypatch, out, *wishes):
    """Run the command in this process, which is the only worker."""
    monkeypatch.setattr(Workers, "ready", FakeWorkers.ready)
    monkeypatch.setattr(sweep_run, "call", lambda f, jobs: [f(job) for job in jobs])
    monkeypatch.setattr(tables, "call", lambda f, jobs: [f(job) for job in jobs])
    small = [f"--set={setting}" for setting in SMALL]
    execution = ["--data=digits", "--n=3", "--deterministic", "--accelerator=cpu", f"--out={out}"]
    words = ["sweep", "table1", *execution, *small, *wishes]
    return CliRunner().invoke(cli.app, words, env={"COLUMNS": "200"})


def test_a_sweep_in_which_a_run_failed_has_an_exit_code(tmp_path, monkeypatch):
    wishes = ("--relaxation=softsort", "--seeds=1", "--set=epochs=1")
    result = sweep_here(monkeypatch, tmp_path, *wishes, "--set=lr=1e30")
    assert result.exit_code == 1, result.output
    assert "failed: sort-n3-softsort" in result.output
    assert "must be finite" in result.output
    result = sweep_here(monkeypatch, tmp_path, *wishes)
    assert result.exit_code == 0, result.output
    assert "1 of 1" in result.output


def test_a_stopped_sweep_has_the_exit_code_of_one(tmp_path, monkeypatch):
    def stop(*_):
        raise sweeps.SweepStopped

    monkeypatch.setattr(sweeps, "run_sweep", stop)
    result = sweep_here(monkeypatch, tmp_path)
    assert result.exit_code == 130
    assert "Run the same command again to resume" in result.output


def test_a_dry_run_measures_and_changes_nothing(tmp_path, monkeypatch):
    result = sweep_here(monkeypatch, tmp_path / "out", "--dry-run", "--grid", "--seeds=2")
    assert result.exit_code == 0, result.output
    assert "10 runs." in result.output
    assert not (tmp_path / "out").exists()
    listed = sweep_here(monkeypatch, tmp_path / "out", "--list", "--seeds=3")
    assert len(listed.output.splitlines()) == 6
