"""The training loop: stopped, killed, resumed, on two processes, on a full disk."""

import dataclasses
import errno
import functools
import io
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import threadpoolctl
import torch
from rich.console import Console

from softorder_experiments import engine, machine, runs
from softorder_experiments.config import Execution, Training
from softorder_experiments.engine import Interrupted, Trainer, make_fabric
from softorder_experiments.errors import UserError
from softorder_experiments.launch import Stopped, run_task
from softorder_experiments.progress_display import LineDisplay, LiveDisplay, SilentDisplay
from softorder_experiments.record_schema import SCHEMA_VERSION
from softorder_experiments.runs import (
    Run,
    append_record,
    find_run,
    finished_runs,
    read_lines,
    read_records,
    run_of,
)
from softorder_experiments.schedules import cosine
from softorder_experiments.tasks import TASKS, Sort, configure
from softorder_experiments.tasks.base import Processes, Task, derive_seed, stream
from softorder_experiments.tasks.sort import embedded

A, B = (
    {
        "schema": SCHEMA_VERSION,
        "run": name,
        "task": "toy",
        "config": {"preset": "embedded", "data": "digits", "seed": 0},
        "seed": 0,
        "metrics": {"validation": {"score": 0.5}, "test": {"score": 0.5}},
        "curve": [],
        "seconds": 1.5,
        "device": "cpu",
        "threads": 1,
        **machine.describe(),
    }
    for name in "ab"
)
CPU = Execution(accelerator="cpu")
QUIET = Console(quiet=True)
SAME = ("metrics", "curve", "best_epoch", "config", "seed")


@dataclasses.dataclass(frozen=True)
class ToyConfig(Training):
    steps: int = 4
    scores: tuple[float, ...] = ()
    """The validation scores, for a test that wants to choose them."""


class Toy(Task[ToyConfig]):
    """A straight line through noisy points, with something to drop out."""

    name = "toy"
    config_type = ToyConfig
    presets = {}  # noqa: RUF012
    selection = "score"

    def __init__(self, config=None, at_step=None, **fields):
        super().__init__(config or ToyConfig(lr=0.1, **{"epochs": 3, **fields}))
        self.at_step = at_step or {}
        self.tested = None

    @property
    def steps_per_epoch(self):
        return self.config.steps

    @property
    def images_per_step(self):
        return self.config.batch

    def images_to_evaluate(self, split):
        return 0

    def network(self):
        return torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Dropout(0.3))

    def optimizer(self, network):
        return torch.optim.Adam(network.parameters(), lr=self.config.lr)

    def loss(self, network, step, processes):
        if step in self.at_step:
            self.at_step[step]()
        x = torch.randn(self.config.batch, 3, generator=stream(self.config.seed, "train", step))
        x = x[processes.share(self.config.batch)]
        return (network(x)[:, 0] - x.sum(-1)).square().mean()

    def evaluate(self, network, split, processes):
        assert not network.training
        weight = network[0].weight.detach()
        self.tested = weight.clone()
        near = 1 / (1 + (weight - 1).abs().sum().item())
        if split == "validation" and self.config.scores:
            self.seen = getattr(self, "seen", -1) + 1
            return {"score": self.config.scores[self.seen], "near": near}
        return {"score": near, "near": near}

    def draw(self, network, record, path):
        path.write_text("a picture")


def train(task, out, display=None, seconds=60.0):
    fabric = make_fabric(CPU, task.config.precision)
    run = run_of(task.name, task.config, out)
    run.create(task.name, task.config)
    return Trainer(task, run, fabric, display or SilentDisplay(), seconds).fit()


def same(left, right):
    return all(left[name] == right[name] for name in SAME)


def raise_(error):
    raise error


@pytest.mark.parametrize("averaging", [0.0, 0.9])
@pytest.mark.parametrize(("stopped", "crashed"), [(0, 1), (2, 4), (3, 7), (7, 11)])
def test_a_resumed_run_is_the_one_that_was_never_stopped(tmp_path, stopped, crashed, averaging):
    # Ctrl-C writes a checkpoint after the step; a crash leaves an older one.
    unbroken = train(Toy(averaging=averaging), tmp_path / "a")
    for step, disturb, error in (
        (stopped, lambda: os.kill(os.getpid(), signal.SIGINT), Interrupted),
        (crashed, lambda: raise_(MemoryError()), MemoryError),
    ):
        with pytest.raises(error):
            train(Toy(averaging=averaging, at_step={step: disturb}), tmp_path / "b")
    resumed = train(Toy(averaging=averaging), tmp_path / "b")
    assert same(unbroken, resumed)
    assert resumed["resumed"] >= 1
    assert unbroken["resumed"] == 0
    assert len(read_records(tmp_path / "b")) == 1


def test_one_run_name_has_one_number_of_threads(tmp_path):
    """Whatever the environment says: a sweep's worker has one thread, a shell has all cores."""
    records, seen = {}, []
    look = {0: lambda: seen.append(torch.get_num_threads())}
    for ambient in (1, 3):
        with engine.limited_threads(ambient):
            for threads in (1, 2):
                task = Toy(threads=threads, at_step=look)
                _, record = run_task(task, Execution(str(tmp_path / str(ambient)), "cpu"), QUIET)
                assert seen.pop() == record["threads"] == record["config"]["threads"] == threads
                records.setdefault(record["run"], []).append(record)
            assert torch.get_num_threads() == ambient
    assert len(records) == 2
    for first, second in records.values():
        assert same(first, second)


def test_a_measurement_has_the_threads_of_its_configuration(tmp_path):
    """scikit-learn's principal components depend on the threads of NumPy's matrix products."""
    seen = []
    task = TASKS["pca"](configure("pca", None, {"components": 2}))
    task.evaluate = lambda *_: seen.append(blas_threads()) or {"accuracy": 0.5}
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        run_task(task, Execution(str(tmp_path), "cpu"), QUIET)
    assert seen
    assert set().union(*seen) <= {1}


def blas_threads():
    return {
        lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"
    }


def test_random_numbers_of_a_step_do_not_depend_on_what_came_before():
    assert derive_seed(0, "train", 5) == derive_seed(0, "train", 5)
    seeds = {
        derive_seed(s, p, k, r) for s in (0, 1) for p in "ab" for k in range(5) for r in (0, 1)
    }
    assert len(seeds) == 40


def test_the_model_of_the_best_validation_is_tested(tmp_path):
    worsening, improving = Toy(scores=(0.9, 0.5, 0.1)), Toy(scores=(0.1, 0.5, 0.9))
    record = train(worsening, tmp_path / "a")
    assert record["best_epoch"] == 1
    assert record["metrics"]["validation"] == record["curve"][0]["validation"]
    assert record["metrics"]["test"]["near"] == record["curve"][0]["validation"]["near"]
    record = train(improving, tmp_path / "b")
    assert record["best_epoch"] == 3
    assert record["metrics"]["test"]["near"] == record["curve"][2]["validation"]["near"]


def test_training_learns_and_the_average_is_what_is_evaluated(tmp_path):
    record = train(Toy(epochs=30, steps=10), tmp_path / "a")
    assert record["curve"][-1]["loss"] < 0.7 * record["curve"][0]["loss"]
    task = Toy(epochs=1, averaging=0.5)
    fabric = make_fabric(CPU, "32-true")
    run = run_of(task.name, task.config, tmp_path / "b")
    run.create(task.name, task.config)
    weights = []
    trainer = Trainer(task, run, fabric, SilentDisplay())
    for step in range(1, 4):
        task.at_step[step] = lambda: weights.append(trainer._module[0].weight.detach().clone())
    trainer.fit()
    weights.append(trainer._module[0].weight.detach().clone())
    # The average begins as the first weights, and then moves half of the way.
    average = weights[0]
    for weight in weights[1:]:
        average = 0.5 * average + 0.5 * weight
    torch.testing.assert_close(task.tested, average)


def test_the_record_says_what_was_run_where(tmp_path):
    record = train(Toy(), tmp_path)
    assert json.loads((tmp_path / "results.jsonl").read_text()) == json.loads(json.dumps(record))
    assert record["schema"] == SCHEMA_VERSION
    assert set(record) >= {"run", "task", "config", "seed", "metrics", "curve", "seconds"}
    assert set(record) >= {"images_per_second", "machine", "versions", "commit", "date"}
    assert [point["step"] for point in record["curve"]] == [4, 8, 12]
    assert str(pathlib.Path.home()) not in json.dumps(record)


def test_the_learning_rate_rises_and_falls():
    assert cosine(0.05, 0.1) == 0.5
    assert cosine(0.1, 0.1) == 1.0
    assert cosine(0.55, 0.1) == pytest.approx(0.5)
    assert cosine(1.0, 0.1) == pytest.approx(0.0)
    assert cosine(0.0, 0.0) == 1.0
    rates = []
    task = Toy(epochs=1, schedule="cosine", warmup=0.5)
    fabric = make_fabric(CPU, "32-true")
    trainer = Trainer(task, Run(pathlib.Path("."), "none"), fabric, SilentDisplay())
    for _ in range(4):
        trainer._step()
        rates.append(trainer._optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx(
        [0.025, 0.075, 0.1 * cosine(0.625, 0.5), 0.1 * cosine(0.875, 0.5)]
    )


def test_a_loss_that_is_not_finite_stops_the_run_before_the_checkpoint(tmp_path):
    task = Toy(
        at_step={
            5: lambda: setattr(
                task, "loss", lambda n, s, p: n(torch.ones(1, 3)).sum() * float("nan")
            )
        }
    )
    with pytest.raises(UserError, match="loss and weights must be finite"):
        train(task, tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert torch.load(run / "checkpoint.pt")["progress"]["step"] == 4


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
    assert "of another version" in bad[0].problem
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


def test_weights_that_diverge_are_an_error_before_the_checkpoint(tmp_path):
    trainer = Trainer(Toy(), Run(tmp_path, "x"), make_fabric(CPU, "32-true"), SilentDisplay())
    trainer._check_finite()
    with torch.no_grad():
        trainer._module[0].weight[0, 1] = float("inf")
    with pytest.raises(UserError, match="loss and weights must be finite"):
        trainer._check_finite()


def test_a_run_is_carried_out_once_at_a_time(tmp_path):
    task = Toy()
    execution = Execution(out=str(tmp_path), accelerator="cpu")
    run = run_of(task.name, task.config, execution.out)
    run.create(task.name, task.config)
    with run.locked(), pytest.raises(UserError, match="once at a time"):
        run_task(task, execution, QUIET)


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    task = Toy(at_step={5: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Stopped, match=r"softorder resume .*runs/toy-digits-embedded-s0-"):
        run_task(task, Execution(out=str(tmp_path), accelerator="cpu"), QUIET)
    state = run_of(task.name, task.config, tmp_path).load()
    assert state["progress"]["step"] == 6


def test_a_run_stops_when_somebody_else_asks(tmp_path):
    task, answers = Toy(), iter([False, False, True])
    with pytest.raises(Stopped, match="nothing is lost"):
        run_task(task, Execution(str(tmp_path), "cpu"), QUIET, is_stopped=lambda: next(answers))
    assert run_of(task.name, task.config, tmp_path).load()["progress"]["step"] == 3


def test_the_second_signal_stops_at_once():
    said = []
    with engine.stop_signals(said.append) as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked()
        assert said == ["stopping after this step; again to stop at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


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


@pytest.mark.parametrize("kind", [LineDisplay, LiveDisplay])
def test_displays_show_epoch_rate_time_left_loss_and_metric(tmp_path, kind):
    console = Console(
        force_terminal=kind is LiveDisplay, width=200, record=True, file=io.StringIO()
    )
    display = kind(console, "score")
    train(Toy(), tmp_path, display)
    text = console.export_text() if kind is LineDisplay else _last_frame(display)
    left = "min left" if kind is LineDisplay else "0:00"
    for part in ("epoch 3/3", "steps/s", left, "loss", "score 0."):
        assert part in text


def _last_frame(display):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(display._progress.get_renderable())
    return console.export_text()


def test_devices_that_are_not_there_are_an_error():
    with pytest.raises(UserError, match="must be there"):
        make_fabric(Execution(accelerator="tpu"), "32-true")
    with pytest.raises(UserError, match="precision must be one of"):
        Toy(precision="8-bit")
    with pytest.raises(UserError, match="Did you mean 'cosine'"):
        Toy(schedule="cosin")


COMMAND = [sys.executable, "-m", "softorder_experiments"]
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
    assert said.count("Stopped; nothing is lost") == 1
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
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-4)
