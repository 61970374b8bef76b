"""A run's files: full disks, damaged checkpoints, records, locks."""

import errno
import functools
import json
import os
import signal

import pytest
import torch

from softorder_experiments import runs
from softorder_experiments.config import Execution
from softorder_experiments.engine import Interrupted
from softorder_experiments.errors import UserError
from softorder_experiments.launch import Stopped, run_task
from softorder_experiments.runs import (
    Run,
    append_record,
    find_run,
    finished_runs,
    read_lines,
    read_records,
    run_of,
)
from test_experiments_engine import QUIET, A, B, Toy, ToyConfig, raise_, same, train


@pytest.fixture
def full_disk(monkeypatch):
    """Let the k-th file that is written from now on find no space."""

    def fill(after):
        left = iter(range(after, -1, -1))
        sync = os.fsync

        def fsync(number):
            if next(left, 0) == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(number)

        monkeypatch.setattr(os, "fsync", fsync)

    return fill


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_a_full_disk_loses_nothing(tmp_path, full_disk, monkeypatch, after):
    unbroken = train(Toy(), tmp_path / "a")
    full_disk(after)  # the configuration, three checkpoints, the record
    with pytest.raises(UserError, match=r"No space left on device.*Free some space"):
        train(Toy(), tmp_path / "b")
    monkeypatch.undo()
    assert not list((tmp_path / "b").rglob("*.partial"))
    assert read_records(tmp_path / "b") == []
    resumed = train(Toy(), tmp_path / "b")
    assert same(unbroken, resumed)
    assert resumed["resumed"] == (1 if after >= 2 else 0)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.* must be writable"):
        train(Toy(), tmp_path / "file")


def test_a_damaged_checkpoint_is_named(tmp_path):
    task = Toy()
    train(task, tmp_path)
    checkpoint = run_of(task.name, task.config, tmp_path).checkpoint
    checkpoint.write_bytes(checkpoint.read_bytes()[:200])
    with pytest.raises(UserError, match=r"checkpoint.pt must be a checkpoint"):
        train(Toy(), tmp_path)


def with_change(*path, to=None):
    """Return what changes a part of a state; without a value, it is taken out."""

    def change(state):
        *parents, last = path
        part = functools.reduce(lambda content, key: content[key], parents, state)
        part[last] = to
        if to is None:
            del part[last]
        return state

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda state: [state], "it must be an object with names"),
        (lambda state: torch.zeros(3), "it must be an object with names"),
        (lambda state: state["network"], "schema is missing"),
        (with_change("progress"), "progress is missing"),
        (with_change("progress", to=5), "progress must be an object"),
        (
            with_change("progress", "step", to=10**9),
            "progress.step must be one after 1 of 3 epochs",
        ),
        (with_change("progress", "step", to="5"), "progress.step must be a whole number; got '5'"),
        (with_change("progress", "color", to=1), "progress must hold"),
        (with_change("progress", "curve", to=[]), "progress.step must be one after 0"),
        (with_change("progress", "curve", 0, "epoch", to=2), "every epoch so far once"),
        (with_change("progress", "best", "loss", to=0.0), "must be a point of the curve"),
        (with_change("progress", "best", "loss", to=torch.ones(2)), "progress.best.loss must be"),
        (with_change("config", "lr", to=0.2), "lr must be 0.1, as in this run; got '0.2'"),
        (with_change("config", to=[]), "config must be the settings"),
        (with_change("network", "0.bias"), "network must be an object with the names"),
        (with_change("network", "0.weight", to=torch.zeros(2, 3)), r"a tensor \(1, 3\) of float32"),
        (with_change("network", "0.weight", to="\x1b[31m"), r"got '\\x1b\[31m'"),
        (with_change("best", "0.weight", to=torch.zeros(1)), r"best.0.weight must be a tensor"),
        (with_change("averaged", "n_averaged"), "averaged must be an object"),
        (with_change("optimizer", to=None), "optimizer is missing"),
        (with_change("optimizer", "state", to=[1]), "optimizer.state must be an object"),
        (with_change("optimizer", "state", 0, "step"), "optimizer.state.0 must be an object"),
        (with_change("optimizer", "state", 9, to={"step": 1}), "optimizer.state.9 must be None"),
        (
            with_change("optimizer", "state", 0, "exp_avg", to=torch.zeros(7)),
            r"optimizer.state.0.exp_avg must be a tensor \(1, 3\)",
        ),
        (with_change("loss_sums", to=torch.zeros(())), "loss_sums must be a tensor"),
    ],
)
def test_a_checkpoint_that_loads_but_holds_something_else_is_a_sentence(tmp_path, change, problem):
    stopping = {5: lambda: os.kill(os.getpid(), signal.SIGINT)}
    with pytest.raises(Interrupted):
        train(Toy(averaging=0.9, at_step=stopping), tmp_path)
    task = Toy(averaging=0.9)
    run = run_of(task.name, task.config, tmp_path)
    torch.save(change(run.load()), run.checkpoint)
    with pytest.raises(UserError, match=f"must be a checkpoint of this run.*{problem}"):
        train(task, tmp_path)


def test_records_are_appended_whole_and_read_back(tmp_path, monkeypatch):
    file = tmp_path / "results.jsonl"
    append_record(file, A)
    write = runs.os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: raise_(OSError(errno.ENOSPC, "full")))
    with pytest.raises(UserError):
        append_record(file, B)
    monkeypatch.setattr(os, "fsync", write)
    append_record(file, B)
    assert read_records(file) == [A, B]
    assert read_records(tmp_path / "none") == []
    file.write_text(json.dumps(A) + '\n{"run"\n')
    with pytest.raises(UserError, match="line 2 of"):
        read_records(file)


def test_a_broken_line_does_not_hide_the_good_ones(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text(
        json.dumps(A)
        + '\n\n{"schema": 99, "task": "x"}\n[]\n{"schema": 1, "task": "x"}\n{"run"\n'
        + json.dumps(B)
    )
    append_record(file, A)  # the line before has no end
    records, bad = read_lines(tmp_path)
    assert records == [A, B, A]
    assert [(line.file, line.number) for line in bad] == [(file, n) for n in (3, 4, 5, 6)]
    assert "from another version" in bad[0].problem
    assert list(finished_runs(tmp_path)) == ["a", "b"]


def test_a_run_is_found_by_name_beginning_or_folder(tmp_path):
    for name in ("sort-n5-a", "sort-n5-b"):
        Run(tmp_path, name).create("toy", ToyConfig())
    assert find_run(tmp_path, "sort-n5-a").name == "sort-n5-a"
    assert find_run(tmp_path / "other", str(tmp_path / "runs" / "sort-n5-b")).name == "sort-n5-b"
    with pytest.raises(UserError, match="must name one run"):
        find_run(tmp_path, "sort")
    with pytest.raises(UserError, match="sort-n5-a, sort-n5-b"):
        find_run(tmp_path, "knn")


def test_a_finished_run_is_not_run_twice(tmp_path):
    execution = Execution(out=str(tmp_path), accelerator="cpu")
    first = run_task(Toy(), execution, QUIET)
    broken = Toy(at_step={0: lambda: raise_(MemoryError())})
    assert run_task(broken, execution, QUIET)[1]["metrics"] == first[1]["metrics"]
    with pytest.raises(MemoryError):
        run_task(broken, execution, QUIET, again=True)
    assert len(read_records(tmp_path)) == 1


def test_a_repeated_run_that_was_stopped_goes_on(tmp_path):
    execution = Execution(out=str(tmp_path), accelerator="cpu")
    _, first = run_task(Toy(), execution, QUIET)
    stopping = Toy(at_step={5: lambda: os.kill(os.getpid(), signal.SIGINT)})
    with pytest.raises(Stopped):
        run_task(stopping, execution, QUIET, again=True)
    _, second = run_task(Toy(), execution, QUIET)
    assert same(first, second)
    assert (first["resumed"], second["resumed"]) == (0, 1)


def test_a_picture_that_cannot_be_written_is_drawn_when_the_run_goes_on(tmp_path):
    task, execution = Toy(), Execution(out=str(tmp_path), accelerator="cpu")
    picture = run_of(task.name, task.config, execution.out).picture
    picture.mkdir(parents=True)
    with pytest.raises(UserError, match=r"picture.png must be writable"):
        run_task(task, execution, QUIET)
    assert read_records(tmp_path) == []
    picture.rmdir()
    run_task(task, execution, QUIET)
    assert picture.read_text() == "a picture"
    assert len(read_records(tmp_path)) == 1


def test_a_run_that_was_moved_is_the_same_run(tmp_path):
    task, execution = Toy(), Execution(out=str(tmp_path / "a"), accelerator="cpu")
    task.at_step[5] = lambda: os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Stopped):
        run_task(task, execution, QUIET)
    moved = tmp_path / "b" / "runs" / "mine"
    moved.parent.mkdir(parents=True)
    run_of(task.name, task.config, execution.out).folder.rename(moved)
    run = find_run(tmp_path, str(moved))
    _, record = run_task(Toy(), execution, QUIET, run=run)
    assert (record["run"], record["resumed"]) == ("mine", 1)
    assert read_records(tmp_path / "b")


def test_a_checkpoint_of_another_version_is_not_taken(tmp_path, monkeypatch):
    task, execution = Toy(), Execution(out=str(tmp_path), accelerator="cpu")
    run_task(task, execution, QUIET)
    monkeypatch.setattr(runs, "CHECKPOINT_VERSION", 3)
    with pytest.raises(UserError, match="must be of version 3; got version 2"):
        run_of(task.name, task.config, execution.out).load()


def test_a_run_is_carried_out_once_at_a_time(tmp_path):
    task = Toy()
    execution = Execution(out=str(tmp_path), accelerator="cpu")
    run = run_of(task.name, task.config, execution.out)
    run.create(task.name, task.config)
    with run.locked(), pytest.raises(UserError, match="only one process at a time"):
        run_task(task, execution, QUIET)
