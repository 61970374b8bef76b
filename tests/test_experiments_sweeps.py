"""Sweeps in one process: choices, failures, signals, the live table."""

import contextlib
import dataclasses
import io
import json
import os
import signal
import threading
import time

import pytest
from rich.console import Console

from softorder_experiments import sweeps
from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError
from softorder_experiments.plain_console import PlainConsole
from softorder_experiments.progress_display import StatusFile
from softorder_experiments.runs import finished_runs, read_records
from softorder_experiments.stop_signals import stop_signals
from softorder_experiments.sweeps import Cell, Sweep, TableOptions, Workers, plan
from softorder_experiments.sweeps import run as sweep_run
from softorder_experiments.sweeps.watch import Watch
from softorder_experiments.tasks import TASKS
from test_experiments_engine import QUIET, Toy

SMALL = ("digits=1", "epochs=2", "batch=20", "test_batches=3")


class FakeWorkers(Workers):
    """Works in this process."""

    @contextlib.contextmanager
    def ready(self, most):
        yield 1


@pytest.fixture
def in_process(monkeypatch):
    """Call functions one after the other, here; whatever was done is in the list."""
    called = []

    def call(function, arguments):
        for argument in arguments:
            called.append(argument.run.name)
            function(argument)

    monkeypatch.setattr(sweep_run, "call", call)
    monkeypatch.setitem(TASKS, "toy", Toy)
    return called


def toy_sweep(out, seeds=2, grid=True, rates=(0.001, 0.1, 0.01), **fields):
    config = Toy(epochs=2, **fields).config
    cell = Cell("toy", config, tuple({"lr": rate} for rate in rates))
    return Sweep("toys", [cell], seeds, grid, Execution(out=str(out), accelerator="cpu"))


def names_of(sweep):
    console = recording()
    sweeps.list_runs(console, sweep)
    return [line.split()[0] for line in text_of(console).splitlines()]


def text_of(console):
    return console.export_text(clear=False)


def recording():
    return Console(record=True, width=200, file=io.StringIO())


def test_the_choice_is_that_of_the_best_validation_and_is_recorded(tmp_path, in_process):
    sweep = toy_sweep(tmp_path)
    sweeps.run_sweep(sweep, FakeWorkers(), QUIET)
    assert len(in_process) == len(set(in_process)) == 4  # three rates, then another seed
    (row,) = json.loads(sweep.summary_file.read_text())["cells"]
    validated = {run["settings"]["lr"]: run["validation"]["score"] for run in row["searched"]}
    assert row["chosen"]["lr"] == max(validated, key=validated.get) == 0.1
    assert [run["seed"] for run in row["runs"]] == [0, 1]
    tests = [run["test"]["score"] for run in row["runs"]]
    assert row["test"]["score"]["mean"] == pytest.approx(sum(tests) / 2)
    deviation = abs(tests[0] - tests[1]) / 2**0.5
    assert row["test"]["score"]["deviation"] == pytest.approx(deviation)
    console = recording()
    sweeps.show_summary(console, sweep, sweep.summarize())
    assert "lr 0.1" in text_of(console)
    assert "2 of 2" in text_of(console)
    del in_process[:]
    sweeps.run_sweep(toy_sweep(tmp_path), FakeWorkers(), QUIET)
    assert in_process == []
    assert len(names_of(sweep)) == sweep.count() == 4
    console = recording()
    sweeps.show_plan(console, sweep, [60.0], 1)
    assert "4 runs. 0 s of work left" in text_of(console)
    # Another plan does not overwrite what was chosen.
    assert toy_sweep(tmp_path, grid=False).summary_file != sweep.summary_file


def test_one_failed_run_does_not_lose_the_others(tmp_path, in_process, monkeypatch):
    loss = Toy.loss

    def fail(self, network, step, processes):
        if self.config.lr == 0.1 and not repaired:
            raise MemoryError("far too little")
        return loss(self, network, step, processes)

    repaired = False
    monkeypatch.setattr(Toy, "loss", fail)
    sweep = toy_sweep(tmp_path)
    console = recording()
    sweeps.run_sweep(sweep, FakeWorkers(), console)
    assert "failed: MemoryError: far too little" in text_of(console)
    (row,) = sweep.summarize()
    assert row["chosen"]["lr"] == 0.01  # the best of those that finished
    (failed,) = [run for run in row["searched"] if run["failure"]]
    assert failed["settings"] == {"lr": 0.1}
    assert "Traceback" in failed["failure"]
    console = recording()
    sweeps.show_summary(console, sweep, [row])
    assert f"failed: {failed['run']}: MemoryError" in text_of(console)
    repaired = True
    del in_process[:]
    sweeps.run_sweep(sweep, FakeWorkers(), QUIET)
    assert in_process[0] == failed["run"]
    (row,) = sweep.summarize()
    assert row["chosen"]["lr"] == 0.1
    assert not any(run["failure"] for run in row["searched"])


def test_where_nothing_finished_nothing_is_chosen(tmp_path, in_process, monkeypatch):
    monkeypatch.setattr(Toy, "network", lambda self: 1 / 0)
    sweep = toy_sweep(tmp_path)
    sweeps.run_sweep(sweep, FakeWorkers(), QUIET)
    (row,) = sweep.summarize()
    assert (row["chosen"], row["runs"], row["test"]) == (None, [], {})
    console = recording()
    sweeps.show_summary(console, sweep, [row])
    assert "no run finished" in text_of(console)


def test_after_a_lost_worker_the_rest_goes_on(tmp_path, in_process, monkeypatch):
    call, losses = sweep_run.call, iter([1, 1])

    def lose(function, arguments):
        for count, argument in enumerate(arguments):
            call(function, [argument])
            if count == 0 and next(losses, None):
                raise ConnectionError("a worker died")

    monkeypatch.setattr(sweep_run, "call", lose)
    console = recording()
    sweep = toy_sweep(tmp_path, seeds=4, grid=False)
    sweeps.run_sweep(sweep, FakeWorkers(), console)
    assert text_of(console).count("a worker was lost (ConnectionError: a worker died)") == 2
    assert len(in_process) == 4
    assert len(finished_runs(tmp_path)) == 4


def test_workers_that_die_without_end_are_an_error(tmp_path, in_process, monkeypatch):
    monkeypatch.setattr(sweep_run, "call", lambda *_: 1 / 0)
    with pytest.raises(UserError, match=r"3 lost workers in a row \(ZeroDivisionError"):
        sweeps.run_sweep(toy_sweep(tmp_path), FakeWorkers(), QUIET)


def test_a_loss_may_have_no_words_and_counts_not_while_runs_come_further(
    tmp_path, in_process, monkeypatch
):
    call, rounds = sweep_run.call, iter(range(6))

    def come_further(function, arguments):
        (job, *_) = arguments
        if (number := next(rounds, None)) is not None:
            job.run.create(job.task, job.config)
            job.run.checkpoint.touch()
            os.utime(job.run.checkpoint, ns=(number, number))
            raise TimeoutError
        job.run.checkpoint.unlink()
        call(function, [job])

    monkeypatch.setattr(sweep_run, "call", come_further)
    console = recording()
    sweeps.run_sweep(toy_sweep(tmp_path, seeds=1, grid=False), FakeWorkers(), console)
    assert text_of(console).count("a worker was lost (TimeoutError: )") == 6
    assert len(finished_runs(tmp_path)) == 1


def test_a_run_that_another_sweep_is_at_is_waited_for(tmp_path, in_process, monkeypatch):
    monkeypatch.setattr(sweep_run, "_BUSY_SECONDS", 0.01)
    (job, _) = next(toy_sweep(tmp_path, grid=False).phases())
    job.run.create("toy", job.config)
    held = job.run.locked()
    held.__enter__()
    thread = threading.Thread(target=sweep_run.run_job, args=(job,))
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive()
    assert not finished_runs(tmp_path)
    held.__exit__(None, None, None)
    thread.join()
    assert list(finished_runs(tmp_path)) == [job.run.name]
    assert not job.run.failure.exists()


def test_a_folder_that_cannot_be_written_is_named_at_once(tmp_path, in_process):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file.* must be writable"):
        sweeps.run_sweep(toy_sweep(tmp_path / "file"), FakeWorkers(), QUIET)
    assert in_process == []


def test_a_signal_lets_no_further_run_begin(tmp_path, in_process, monkeypatch):
    call = sweep_run.call

    def interrupted(function, arguments):
        for argument in arguments:
            call(function, [argument])
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sweep_run, "call", interrupted)
    with pytest.raises(sweeps.SweepStopped):
        sweeps.run_sweep(toy_sweep(tmp_path), FakeWorkers(), QUIET)
    assert len(in_process) == 1
    assert not list(tmp_path.rglob("*.stop"))
    monkeypatch.setattr(sweep_run, "call", call)
    sweeps.run_sweep(toy_sweep(tmp_path), FakeWorkers(), QUIET)
    assert len(in_process) == len(set(in_process)) == 4


def test_a_signal_reaches_the_runs_through_a_file(tmp_path, in_process, monkeypatch):
    sweep = toy_sweep(tmp_path, grid=False)
    sweep.make_folder()
    (job, _) = next(sweep.phases())
    with sweep_run._stop_file(job.stop) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked()
        assert job.stop.exists()
        sweep_run.run_job(job)  # does not begin
        assert not job.run.folder.exists()
    assert not job.stop.exists()
    loss = Toy.loss

    def stop_at_two(self, network, step, processes):
        if step == 2:
            job.stop.touch()
        return loss(self, network, step, processes)

    monkeypatch.setattr(Toy, "loss", stop_at_two)
    sweep_run.run_job(job)
    assert job.run.load()["progress"]["step"] == 3
    job.stop.unlink()
    sweep_run.run_job(job)
    assert list(finished_runs(tmp_path)) == [job.run.name]


def test_a_run_that_is_stopped_from_outside_goes_on(tmp_path, in_process, monkeypatch):
    loss = Toy.loss
    signals = iter([signal.SIGTERM])

    def disturb(self, network, step, processes):
        if step == 5 and (number := next(signals, None)):
            os.kill(os.getpid(), number)
        return loss(self, network, step, processes)

    monkeypatch.setattr(Toy, "loss", disturb)
    sweeps.run_sweep(toy_sweep(tmp_path, grid=False), FakeWorkers(), QUIET)
    assert [record["resumed"] for record in read_records(tmp_path)] in ([0, 1], [1, 0])
    assert len(in_process) == 3


def test_signals_are_for_the_main_thread():
    answers = []

    def ask():
        with stop_signals(answers.append) as asked:
            answers.append(asked())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]


def test_a_status_says_where_and_how_far(tmp_path):
    status = StatusFile(tmp_path / "status.json", "score")
    status.begin(0, 10, 3)
    first = json.loads((tmp_path / "status.json").read_text())
    assert first["where"].endswith(f":{os.getpid()}")
    assert (first["epoch"], first["epochs"], first["metric"]) == (1, 3, None)
    status.epoch({"validation": {"score": 0.5}})
    status._last = 0.0
    status.step(11, 0.25)
    last = json.loads((tmp_path / "status.json").read_text())
    assert (last["epoch"], last["step"], last["loss"], last["metric"]) == (2, 11, 0.25, 0.5)
    StatusFile(tmp_path / "nowhere" / "status.json", "score").begin(0, 10, 3)  # does no harm


def test_the_live_table_shows_what_runs_where(tmp_path, in_process):
    sweep = toy_sweep(tmp_path, grid=False)
    jobs = next(sweep.phases())
    console = Console(force_terminal=True, width=200, record=True, file=io.StringIO())
    watch = Watch(sweep, jobs, 2, console)
    run = jobs[0].run
    run.create("toy", jobs[0].config)
    status = StatusFile(run.status, "score")
    status.begin(0, 10, 3)
    (tmp_path / "runs" / jobs[1].run.name).mkdir()
    jobs[1].run.status.write_text("{half a")  # not written whole: left out this time
    plain = Console(width=200, record=True, file=io.StringIO())
    plain.print(watch._table())
    text = text_of(plain)
    assert run.name in text
    assert f":{os.getpid()}" in text
    assert "0 of 2 runs" in text
    assert jobs[1].run.name not in text
    with watch:
        time.sleep(1.2)
    assert "2 at a time" in text_of(console)


def test_wrong_status_and_failure_files_do_no_harm(tmp_path, in_process):
    sweep = toy_sweep(tmp_path, grid=False)
    jobs = next(sweep.phases())
    for job, status in zip(jobs, ([], {"where": "[/x]", "epoch": "x"}), strict=True):
        job.run.create("toy", job.config)
        job.run.status.write_text(json.dumps(status))
    console = PlainConsole()
    watch = Watch(sweep, jobs, 2, console)
    with console.capture() as capture:
        jobs[0].run.failure.write_bytes(b"")
        jobs[1].run.failure.write_bytes(b"a\nbad [/red] \x1b[31m \xff end")
        console.print(watch._table())
        watch._look()
        sweeps.show_summary(console, sweep, sweep.summarize())
    text = capture.get()
    assert text.count("no reason given") == 2
    assert text.count(r"bad [/red] \x1b[31m") == 2
    assert "\x1b" not in text


def test_the_estimate_grows_with_the_run(tmp_path):
    choice = TableOptions((3,), ("softsort",), False, ("digits",), None, SMALL)
    seconds = []
    for epochs in (1, 1000):
        (cell,) = plan("table1", dataclasses.replace(choice, settings=(*SMALL, f"epochs={epochs}")))
        sweep = Sweep("table1", [cell], 2, False, Execution(out=str(tmp_path), accelerator="cpu"))
        seconds.append(sweeps.estimate(sweep.job(cell, cell.config)))
    assert 200 < seconds[1] / seconds[0] < 5000
    (pixels,) = (c for c in plan("table3", TableOptions(data=("digits",))) if c.task == "pixels")
    assert sweeps.estimate(sweep.job(pixels, pixels.config)) is None
    console = recording()
    sweep = Sweep("table1", [cell, pixels], 10, True, Execution(out=str(tmp_path)))
    sweeps.show_plan(console, sweep, [7200.0, None], 2)
    text = text_of(console)
    for part in ("tau of 1, 16, 128, 1024", "2.0 h", "no training", "26.0 h", "17 runs", "13.0 h"):
        assert part in text
