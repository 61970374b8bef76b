"""The speed experiment: what it computes, how it is measured, what becomes of failures."""

import dataclasses
import io
import json
import os
import re
import subprocess
import sys

import numpy
import pytest
import scipy.stats
import torch
from rich.console import Console
from typer.testing import CliRunner

from softorder_experiments import cli, machine, measuring, speed
from softorder_experiments.errors import UserError
from softorder_experiments.measuring import (
    OUT_OF_MEMORY,
    TOO_SLOW,
    Limits,
    answer_or_out_of_memory,
    run_in_child,
)
from softorder_experiments.paper_numbers import paper_numbers
from softorder_experiments.report import Report
from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.runs import read_records, run_of
from softorder_experiments.speed.child import (
    initial_scores,
    learner_of,
    problem_of,
    spearman,
    train,
)
from softorder_experiments.speed.frameworks import Problem, is_installed, make_learner
from softorder_experiments.speed.plan import SpeedConfig
from test_experiments_report import speed_run
from tolerances import AGREEMENT, COMPOSITE, NETWORKS, VALUES

CHILD = "softorder_experiments.speed.child"
LIMITS = Limits(time_limit=120.0)
ELSEWHERE = [name for name, method in speed.METHODS.items() if method.framework != "torch"]
FRAMEWORKS = ["jax", "tensorflow"]


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """Let the machine be idle, which it is not while tests run."""
    monkeypatch.setattr(measuring.OtherWork, "share", lambda self: 0.01)


def need(framework):
    if not is_installed(framework):
        pytest.skip(f"{framework} is not installed")


@pytest.mark.parametrize("operator", ["softsort-square", "softsort-abs", "neuralsort"])
def test_all_methods_of_an_operator_take_the_same_step(operator):
    names = [
        name
        for name, method in speed.METHODS.items()
        if method.operator == operator and method.framework == "torch"
    ]
    assert len(names) >= 2
    after = {}
    for name in names:
        point = SpeedConfig(method=name, n=40)
        start = initial_scores(point).astype(float)
        learner = make_learner("torch", problem_of(point), start)
        learner.step()
        after[name] = learner.loss(), learner.scores()
    loss, scores = after.pop(names[0])
    for other_loss, other in after.values():
        assert other_loss == pytest.approx(loss, rel=AGREEMENT["abs"])
        numpy.testing.assert_allclose(
            other, scores, rtol=COMPOSITE["square"], atol=COMPOSITE["square"]
        )


@pytest.mark.parametrize("name", ELSEWHERE)
def test_every_framework_learns_the_same(name):
    need(speed.METHODS[name].framework)
    runs = []
    for method in (name, speed.in_torch(name)):
        learner = learner_of(SpeedConfig(method=method, n=50))
        losses = []
        for _ in range(5):
            learner.step()
            losses.append(learner.loss())
        runs.append((losses, learner.scores()))
    (losses, scores), (in_torch, want) = runs
    assert losses == pytest.approx(in_torch, rel=NETWORKS["rtol"])
    assert losses[0] > losses[-1]
    assert (scores.dtype, want.dtype) == (numpy.float32, numpy.float32)
    numpy.testing.assert_allclose(scores, want, **NETWORKS)


def test_the_update_is_that_of_torchs_optimiser():
    problem = Problem(lambda scores, order: scores, terms=1, decay=0.01)
    scores, velocity = numpy.linspace(-1, 1, 7), numpy.zeros(7)
    parameter = torch.tensor(scores, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=10.0, momentum=0.5, weight_decay=0.01)
    for step in range(3):
        gradient = numpy.cos(numpy.arange(7.0) + step)
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        scores, velocity = problem.update(scores, velocity, gradient)
        numpy.testing.assert_allclose(scores, parameter.detach().numpy(), rtol=VALUES["float64"])


def test_the_step_is_that_of_the_printed_loss():
    """-mean log P[i, i] + |scores|^2 / 200 by autograd, lr 10; scaling is constant."""
    point = SpeedConfig(method="softsort-square-dense", n=30)
    learner = learner_of(point)
    start = torch.tensor(learner.scores(), requires_grad=True)
    low, high = start.detach().amin(-1, True), start.detach().amax(-1, True)
    scaled = (start - low) / (high - low)
    ordered = scaled.sort(-1, descending=True).values
    P = torch.softmax(-((ordered[..., None] - scaled[..., None, :]) ** 2) / 0.03, -1)
    loss = -P.diagonal(dim1=-2, dim2=-1).log().mean() + start.square().sum() / 200
    (gradient,) = torch.autograd.grad(loss, start)
    learner.step()
    torch.testing.assert_close(torch.tensor(learner.scores()), (start - 10 * gradient).detach())


def test_the_loss_behind_the_curves_is_the_authors():
    """20 (-mean log P[i, i] + 5 mean scores^2), as their TensorFlow has it."""
    learner = learner_of(SpeedConfig(method="softsort-abs-dense", n=30, objective="curves"))
    start = torch.tensor(learner.scores(), requires_grad=True)
    low, high = start.detach().amin(-1, True), start.detach().amax(-1, True)
    scaled = (start - low) / (high - low)
    ordered = scaled.sort(-1, descending=True).values
    P = torch.softmax(-(ordered[..., None] - scaled[..., None, :]).abs() / 0.1, -1)
    mean = -P.diagonal(dim1=-2, dim2=-1).log().mean()
    loss = 20 * (mean + 5 * start.square().mean())
    (gradient,) = torch.autograd.grad(loss, start)
    learner.step()
    torch.testing.assert_close(
        torch.tensor(learner.scores()), (start - 10 * gradient).detach(), **NETWORKS
    )


def test_scores_learn_their_order_and_the_curve_says_so():
    answer = train(dataclasses.asdict(SpeedConfig(method="softsort-square", n=60)))
    assert answer["outcome"] == "ok"
    curve = [entry["spearman"] for entry in answer["curve"]]
    assert len(curve) == 100
    assert abs(curve[0]) < 0.5
    assert answer["metrics"]["spearman"] == curve[-1] > 0.999
    assert answer["metrics"]["lowest_spearman"] <= answer["metrics"]["spearman"]
    assert answer["metrics"]["seconds_per_epoch"] > 0


def test_dense_and_ours_have_the_same_learning_curve():
    curves = []
    for method in ("softsort-square", "softsort-square-dense"):
        point = SpeedConfig(method=method, n=50, epochs=60)
        curve = train(dataclasses.asdict(point))["curve"]
        curves.append([entry["spearman"] for entry in curve])
    assert numpy.abs(numpy.subtract(*curves)).max() < NETWORKS["rtol"]


def test_spearman_is_scipys():
    scores = torch.rand(3, 50).round(decimals=1).numpy()  # with ties
    want = [scipy.stats.spearmanr(row, numpy.arange(50, 0, -1)).statistic for row in scores]
    numpy.testing.assert_allclose(spearman(scores), want)


def test_the_opposite_order_is_the_opposite():
    scores = initial_scores(SpeedConfig(n=20, order="opposite"))
    assert scores.shape == (20, 20)
    numpy.testing.assert_allclose(spearman(scores), -1)
    assert (scores.min() >= -1, scores.max() <= 1) == (True, True)


def test_what_runs_out_of_time_or_memory_says_so():
    dense = {"config": dataclasses.asdict(SpeedConfig(method="softsort-abs-dense", n=3000))}
    little = Limits(time_limit=120.0, memory_limit=1 << 30)
    assert run_in_child(CHILD, "train", dense, little) == {"outcome": OUT_OF_MEMORY}
    assert run_in_child(CHILD, "train", dense, Limits(time_limit=0.5)) == {"outcome": TOO_SLOW}


def test_a_child_that_fails_says_why(capfd):
    answer = run_in_child(CHILD, "train", {"config": {"method": "quicksort"}}, LIMITS)
    assert answer["outcome"].startswith("failed: ")
    assert "quicksort" in answer["outcome"]
    assert "Traceback" in capfd.readouterr().err


def test_the_plan_is_the_issues():
    quick = speed.plan(quick=True)
    assert {point.n for point in quick} == {100, 500, 1000}
    assert len(quick) == 3 * len(speed.METHODS)
    for point in quick:
        assert point.epochs == (6 if speed.METHODS[point.method].is_dense else 100)
    full = speed.plan()
    assert set(quick) <= set(full)
    assert {point.n for point in full if point.method == "softsort-abs"} >= {4000, 10**6}
    assert max(point.n for point in full if speed.METHODS[point.method].is_dense) == 4000
    assert any(point.order == "opposite" for point in full)
    assert len({point.label for point in full}) == len(full)
    devices = {point.device for point in speed.plan(quick=True, devices=("cpu", "cuda"))}
    assert devices == {"cpu", "cuda"}


def test_the_plan_has_other_frameworks_where_they_can_go():
    points = [point for point in speed.plan() if point.method in ELSEWHERE]
    assert {point.method for point in points} == set(ELSEWHERE)
    assert {point.n for point in points if point.method == "softsort-abs-jax"} >= {4000, 10**6}
    assert {point.order for point in points} == {"random"}
    curves = [point for point in points if point.objective == "curves"]
    assert sorted(point.method for point in curves) == sorted(ELSEWHERE)
    assert {point.n for point in curves} == {1000}


def test_other_frameworks_are_measured_on_the_cpu_alone():
    both = speed.plan(devices=("cpu", "cuda"))
    assert {point.device for point in both if point.method in ELSEWHERE} == {"cpu"}
    there = speed.plan(devices=("cuda",))
    assert there
    assert not {point.method for point in there} & set(ELSEWHERE)
    need("jax")
    with pytest.raises(UserError, match="device must be cpu for softsort-abs-jax; got 'cuda'"):
        speed.plan(methods=["softsort-abs-jax"], devices=("cuda",))


def test_frameworks_are_imported_only_to_be_measured():
    """Their imports take seconds, and a page about them needs none."""
    code = (
        f"import sys, {CHILD}, softorder_experiments.report\n"
        f"assert not {set(FRAMEWORKS)} & set(sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_a_framework_that_is_not_installed_is_an_outcome(tmp_path, monkeypatch):
    framework, name = "jax", "softsort-abs-jax"
    points = [SpeedConfig(method=method, n=10, epochs=2) for method in (name, "softsort-abs")]
    console = Console(quiet=True)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, framework, None)
        for _ in range(2):  # the second time nothing is measured
            outcomes = [
                r["outcome"] for r in speed.measure_points(points, tmp_path, LIMITS, console)
            ]
            assert outcomes == [f"{framework} is not installed", "ok"]
        assert len(read_records(tmp_path)) == 2
        with pytest.raises(UserError, match=f"{framework} must be installed for {name}"):
            speed.plan(methods=[name])
    need(framework)
    record, _ = speed.measure_points(points, tmp_path, LIMITS, console)
    assert record["outcome"] == "ok"
    assert record["versions"][framework] is not None
    assert len(read_records(tmp_path)) == 3


def test_what_jax_says_without_memory_is_understood():
    def action():
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4000000000 bytes.")

    assert answer_or_out_of_memory(action) == {"outcome": OUT_OF_MEMORY}


def test_what_tensorflow_says_without_memory_is_understood(monkeypatch):
    need("tensorflow")
    import tensorflow as tf

    def graph():
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    learner = learner_of(SpeedConfig(method="softsort-abs-tensorflow", n=5))
    monkeypatch.setattr(learner, "_graph", graph)
    with pytest.raises(MemoryError, match="OOM"):
        learner.step()


def test_a_version_is_found_by_the_name_that_is_imported():
    """What is imported as yaml was installed as PyYAML."""
    assert machine.describe(("yaml", "nowhere"))["versions"]["yaml"]
    assert machine.describe(("nowhere",))["versions"]["nowhere"] is None


@pytest.mark.parametrize("wrong", [{"method": "quicksort"}, {"n": 1}, {"epochs": 1}])
def test_a_wrong_point_is_an_error(wrong):
    with pytest.raises(UserError):
        SpeedConfig(**wrong)


def test_a_point_is_measured_once(tmp_path):
    points = speed.plan(methods=["softsort-abs"], sizes=[10])
    console = Console(quiet=True)
    (first,) = speed.measure_points(points, tmp_path, LIMITS, console)
    (second,) = speed.measure_points(points, tmp_path, LIMITS, console)
    assert first == second
    assert len(read_records(tmp_path)) == 1
    assert first["metrics"]["memory"]["bytes"] >= 0
    speed.measure_points(points, tmp_path, LIMITS, console, again=True)
    assert len(read_records(tmp_path)) == 2


def show(records):
    console = Console(record=True, width=200, file=io.StringIO())
    speed.show_speed(console, records)
    return console.export_text()


def test_a_point_on_a_busy_machine_warns_is_marked_and_is_measured_again(tmp_path, monkeypatch):
    shares = iter([0.4, 0.2, 0.3, 0.5, 0.01])
    monkeypatch.setattr(measuring.OtherWork, "share", lambda self: next(shares))
    metrics = {"seconds_per_epoch": 0.5, "memory": {"bytes": 8}, "spearman": 1.0}
    answer = {"outcome": "ok", "metrics": metrics, "curve": []}
    monkeypatch.setattr(measuring.other_work, "run_in_child", lambda *_: answer)
    points = speed.plan(methods=["softsort-abs"], sizes=[10])
    console = Console(record=True, width=200, file=io.StringIO())
    (busy,) = speed.measure_points(points, tmp_path, LIMITS, console)
    said = console.export_text()
    assert said.count("measuring it again") == 2
    assert "other processes used 40% of the processors while softsort-abs, n = 10" in said
    assert "its time is unreliable" in said
    assert (busy["other_work"], busy["attempts"]) == (0.2, 3)  # the least disturbed
    assert re.search(r"s \*", show([busy]))
    assert "* 1 measured while other processes used more than 10% of the processors" in show([busy])
    # The same command measures it again, until nothing disturbs it.
    (idle,) = speed.measure_points(points, tmp_path, LIMITS, console)
    assert (idle["other_work"], idle["attempts"]) == (0.01, 2)
    assert "*" not in show([busy, idle])
    assert speed.measure_points(points, tmp_path, LIMITS, console) == [idle]


def test_a_disturbed_time_is_in_no_ratio_and_no_figure():
    names = ("softsort-square-dense", "neuralsort-corrected")
    records = [speed_run(name, 100) for name in names]
    busy = [{**record, "other_work": 0.3} for record in records]
    assert speed.ratios_of(speed.newest(records), names[1], names[0]) == [(100, 1.0)]
    assert speed.ratios_of(speed.newest([records[0], busy[1]]), names[1], names[0]) == []
    page = Report([records[0], busy[1]], Benchmark([]))
    (figure,) = page.charts()["speed"]
    assert figure.runs == (records[0],)
    (table,) = (table for table in page.tables()["speed"] if table.title == "Every point")
    assert [row[2].text for row in table.rows] == ["100 ms", "100 ms *"]
    assert "*: while other processes used more than 10% of the processors" in table.about
    assert not measuring.is_disturbed({**busy[0], "outcome": OUT_OF_MEMORY})


def test_another_number_of_threads_is_another_point(tmp_path):
    names = {
        threads: [
            run_of("speed", point, tmp_path).name
            for point in speed.plan(methods=["softsort-abs"], sizes=[10], threads=threads)
        ]
        for threads in (None, os.cpu_count(), 1 + os.cpu_count())
    }
    assert names[None] == names[os.cpu_count()] != names[1 + os.cpu_count()]


def test_a_point_that_was_too_slow_is_tried_again_with_more_time(tmp_path):
    points = speed.plan(methods=["softsort-abs"], sizes=[10])
    console = Console(quiet=True)
    (hasty,) = speed.measure_points(points, tmp_path, Limits(time_limit=0.01), console)
    assert hasty["outcome"] == TOO_SLOW
    (same,) = speed.measure_points(points, tmp_path, Limits(time_limit=0.01), console)
    assert same == hasty
    (patient,) = speed.measure_points(points, tmp_path, LIMITS, console)
    assert patient["outcome"] == "ok"


def test_the_command_shows_time_memory_and_the_papers_ratios(tmp_path):
    words = ["run", "speed", "--n", "12", "--out", str(tmp_path)]
    methods = ["softsort-square", "softsort-square-dense", "neuralsort-corrected"]
    words += [word for name in methods for word in ("--method", name)]
    result = CliRunner().invoke(cli.app, words, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    for part in ("time per epoch, cpu", "peak memory", "Spearman", "in the paper, on its CPU: 1.8"):
        assert part in result.output
    shown = CliRunner().invoke(cli.app, ["show", str(tmp_path)], env={"COLUMNS": "160"})
    assert "SoftSort |.|², softorder" in shown.output
    line = json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])
    assert {"machine", "versions", "commit", "curve", "other_work", "limits"} <= line.keys()


def test_the_printed_ratios_are_those_of_the_data_file():
    ratios = {"neuralsort-published": 6.0, "neuralsort-corrected": 1.8}
    assert paper_numbers()["speed"]["ratios"] == ratios
    assert {*ratios, paper_numbers()["speed"]["reference"]} <= set(speed.METHODS)
