"""Runs in processes of their own: killed, on two devices, stopped."""

import dataclasses
import pathlib
import re
import shlex
import signal
import subprocess
import time

import pytest
import torch

from softorder_experiments.config import Execution
from softorder_experiments.devices import make_fabric
from softorder_experiments.engine import Trainer
from softorder_experiments.errors import UserError
from softorder_experiments.launch import run_task
from softorder_experiments.progress_display import SilentDisplay
from softorder_experiments.runs import (
    Run,
    read_records,
)
from softorder_experiments.tasks import Sort
from softorder_experiments.tasks.base import Processes
from softorder_experiments.tasks.sort import embedded
from test_experiments_engine import (
    COMMAND,
    CPU,
    QUIET,
    Toy,
    same,
)
from tolerances import NETWORKS


def test_processes_that_differ_are_found_out(tmp_path, monkeypatch):
    task = Toy()
    trainer = Trainer(task, Run(tmp_path, "x"), make_fabric(CPU, "32-true"), SilentDisplay())
    trainer._compare_replicas()
    monkeypatch.setattr(type(trainer.fabric), "world_size", 2)
    trainer._gather = lambda tensor: torch.cat([tensor, tensor])
    trainer._compare_replicas()
    others = [p.detach().view(torch.int32).sum() for p in trainer._module.parameters()]
    others[0] += 1  # one bit of one weight
    trainer._gather = lambda tensor: torch.cat([tensor, torch.stack(others)[None]])
    with pytest.raises(RuntimeError, match="different weights"):
        trainer._compare_replicas()


def test_processes_evaluate_with_the_same_running_statistics(tmp_path, monkeypatch):
    task = Toy()
    task.network = lambda: torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1))
    trainer = Trainer(task, Run(tmp_path, "x"), make_fabric(CPU, "32-true"), SilentDisplay())
    sent = []
    monkeypatch.setattr(torch.distributed, "broadcast", lambda x, rank: sent.append((x, rank)))
    trainer._evaluate("validation")
    assert sent == []
    monkeypatch.setattr(type(trainer.fabric), "world_size", 2)
    trainer._evaluate("validation")
    assert [rank for _, rank in sent] == [0, 0, 0]
    assert {id(x) for x, _ in sent} == {id(x) for x in trainer._module.buffers()}


def test_a_share_is_a_part_of_the_batch():
    shares = [Processes(rank, 2, torch.device("cpu"), lambda x: x).share(20) for rank in (0, 1)]
    assert shares == [slice(0, 10), slice(10, 20)]


def test_devices_that_are_not_there_are_an_error():
    with pytest.raises(UserError, match="must name an available device"):
        make_fabric(Execution(accelerator="tpu"), "32-true")
    with pytest.raises(UserError, match="precision must be one of"):
        Toy(precision="8-bit")
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        Toy(schedule="cosin")


SMALL = {"n": 3, "digits": 1, "averaging": 0.9, "epochs": 2, "lr": 0.001, "test_batches": 3}


def sort_digits(out, *more, **fields):
    """Return a command, and a function that does the same in this process."""
    fields = {**SMALL, **fields}
    settings = [f"--set={name}={value}" for name, value in fields.items()]
    command = [*COMMAND, "run", "sort", *settings, "--accelerator=cpu", f"--out={out}", *more]
    task = Sort(dataclasses.replace(embedded({}), **fields))
    return command, lambda: run_task(task, dataclasses.replace(CPU, out=str(out)), QUIET)


def wait_for_step(process, out, step):
    """Wait until the checkpoint of a run has passed a step."""
    while process.poll() is None:
        for file in pathlib.Path(out).glob("runs/*/checkpoint.pt"):
            if torch.load(file)["progress"]["step"] >= step:
                return
        time.sleep(0.1)
    raise AssertionError("the process ended too early")


def test_killed_in_the_middle_of_an_epoch_then_resumed(tmp_path):
    command, _ = sort_digits(tmp_path / "killed", "--checkpoint-seconds=0")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_for_step(process, tmp_path / "killed", 70)  # an epoch has 62
    process.kill()
    process.wait()
    (run,) = (tmp_path / "killed" / "runs").iterdir()
    step = torch.load(run / "checkpoint.pt")["progress"]["step"]
    assert step % 62, "killed between epochs: nothing was proved"
    subprocess.run([*COMMAND, "resume", str(run)], check=True, stdout=subprocess.DEVNULL)
    _, whole = sort_digits(tmp_path / "whole")
    _, unbroken = whole()
    (resumed,) = read_records(tmp_path / "killed")
    assert same(unbroken, resumed)
    assert (unbroken["resumed"], resumed["resumed"]) == (0, 1)


def test_two_processes_train_as_one_are_stopped_and_write_one_record(tmp_path):
    # A checkpoint after every step: each compares the weights of the two. Three steps an epoch.
    fields = {"batch": 400, "epochs": 3}
    command, _ = sort_digits(tmp_path / "two", "--devices=2", "--checkpoint-seconds=0", **fields)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_step(process, tmp_path / "two", 4)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate()
    assert process.returncode == 130, errors
    assert said.count("To resume from this step") == 1
    resume = shlex.split(re.search("softorder (resume .*)", said)[1])
    assert resume[2:] == ["--accelerator", "cpu", "--devices", "2"]
    subprocess.run([*COMMAND, *resume], check=True, stdout=subprocess.DEVNULL)
    (two,) = read_records(tmp_path / "two")
    _, alone = sort_digits(tmp_path / "one", **fields)
    _, one = alone()
    assert (one["processes"], two["processes"]) == (1, 2)
    assert (one["resumed"], two["resumed"]) == (0, 1)
    assert one["metrics"]["test"]["sequences"] == two["metrics"]["test"]["sequences"]
    for left, right in zip(one["curve"], two["curve"], strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=NETWORKS["rtol"])
