"""The training loop: stopped, resumed, reproducible."""

import dataclasses
import io
import json
import os
import pathlib
import signal
import sys

import pytest
import threadpoolctl
import torch
from rich.console import Console

from softorder_experiments import machine
from softorder_experiments.config import Execution, Training
from softorder_experiments.devices import limited_threads, make_fabric
from softorder_experiments.engine import Interrupted, Trainer
from softorder_experiments.errors import UserError
from softorder_experiments.launch import Stopped, run_task
from softorder_experiments.progress_display import LineDisplay, LiveDisplay, SilentDisplay
from softorder_experiments.record_schema import SCHEMA_VERSION
from softorder_experiments.runs import (
    Run,
    read_records,
    run_of,
)
from softorder_experiments.schedules import cosine
from softorder_experiments.stop_signals import stop_signals
from softorder_experiments.tasks import TASKS, configure
from softorder_experiments.tasks.base import Task, derive_seed, stream

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
        with limited_threads(ambient):
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


def test_weights_that_diverge_are_an_error_before_the_checkpoint(tmp_path):
    trainer = Trainer(Toy(), Run(tmp_path, "x"), make_fabric(CPU, "32-true"), SilentDisplay())
    trainer._check_finite()
    with torch.no_grad():
        trainer._module[0].weight[0, 1] = float("inf")
    with pytest.raises(UserError, match="loss and weights must be finite"):
        trainer._check_finite()


def test_a_stopped_run_says_how_to_go_on(tmp_path):
    task = Toy(at_step={5: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    with pytest.raises(Stopped, match=r"softorder resume .*runs/toy-digits-embedded-s0-"):
        run_task(task, Execution(out=str(tmp_path), accelerator="cpu"), QUIET)
    state = run_of(task.name, task.config, tmp_path).load()
    assert state["progress"]["step"] == 6


def test_a_run_stops_when_somebody_else_asks(tmp_path):
    task, answers = Toy(), iter([False, False, True])
    with pytest.raises(Stopped, match="To resume from this step"):
        run_task(task, Execution(str(tmp_path), "cpu"), QUIET, is_stopped=lambda: next(answers))
    assert run_of(task.name, task.config, tmp_path).load()["progress"]["step"] == 3


def test_the_second_signal_stops_at_once():
    said = []
    with stop_signals(said.append) as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked()
        assert said == ["stopping after this step; press Ctrl-C again to stop at once"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


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


COMMAND = [sys.executable, "-m", "softorder_experiments"]
