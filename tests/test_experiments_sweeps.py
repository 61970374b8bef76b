"""Sweeps: plans, choices, workers that die, and the same records on every engine."""

import contextlib
import dataclasses
import io
import json
import os
import pickle
import signal
import subprocess
import threading
import time

import pytest
from rich.console import Console
from typer.testing import CliRunner

from softorder_experiments import cli, engine, sweeps
from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError
from softorder_experiments.launch import run_task
from softorder_experiments.plain_console import PlainConsole
from softorder_experiments.progress_display import StatusFile
from softorder_experiments.runs import finished_runs, read_records, run_of
from softorder_experiments.sweeps import Cell, Job, Sweep, TableOptions, Workers, plan, tables
from softorder_experiments.sweeps import run as sweep_run
from softorder_experiments.sweeps import workers as engines
from softorder_experiments.sweeps.watch import Watch
from softorder_experiments.tasks import TASKS
from test_experiments_engine import COMMAND, QUIET, Toy, same

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


def text_of(console):
    return console.export_text(clear=False)


def recording():
    return Console(record=True, width=200, file=io.StringIO())


def names_of(sweep):
    console = recording()
    sweeps.list_runs(console, sweep)
    return [line.split()[0] for line in text_of(console).splitlines()]


def test_table_1_has_200_runs_at_the_printed_tau(tmp_path):
    cells = plan("table1", TableOptions())
    sweep = Sweep("table1", cells, 10, False, Execution(out=str(tmp_path)))
    assert sweep.count() == 4 * 5 * 10
    assert len(set(names_of(sweep))) == 200
    found = {(c.config.relaxation, c.config.stochastic, c.config.n): c.config.tau for c in cells}
    assert len(found) == 20
    for (_, _, n), tau in found.items():
        assert tau == (1024 if n <= 7 else 128)
    assert {cell.config.preset for cell in cells} == {"paper"}
    searched = Sweep("table1", cells, 10, True, Execution(out=str(tmp_path)))
    assert searched.count() == 20 * (4 + 9)
    assert {config.tau for config in searched.search(cells[0])} == {1, 16, 128, 1024}


def test_tables_2_and_3_have_the_papers_cells_and_grids(tmp_path):
    execution = Execution(out=str(tmp_path))
    medians = plan("table2", TableOptions())
    assert Sweep("table2", medians, 10, False, execution).count() == 4 * 3 * 10
    assert [point["tau"] for point in medians[0].grid] == [128, 256, 512, 1024, 2048, 4096]
    cells = plan("table3", TableOptions())
    assert Sweep("table3", cells, 10, False, execution).count() == 3 * (4 * 10 + 1 + 1 + 10 + 10)
    (knn,) = {cell.grid for cell in map(_hashable, cells) if cell.task == "knn"}
    assert len(knn) == 4 * 6 * 3
    assert len(plan("table3", TableOptions(baselines=False))) == 12
    without = Sweep("table3", cells, 10, True, execution)
    assert without.count() == 3 * (4 * (72 + 9) + 4 + 4 + (4 + 9) + 10)


def _hashable(cell):
    return dataclasses.replace(cell, grid=tuple(tuple(sorted(p.items())) for p in cell.grid))


def test_a_choice_narrows_a_table():
    choice = TableOptions((5,), ("softrank",), True, ("digits",), None, ("lr=0.25",))
    (cell,) = plan("table2", choice)
    config = cell.config
    assert (config.n, config.relaxation, config.stochastic) == (5, "softrank", True)
    assert (config.data, config.preset, config.lr) == ("digits", "embedded", 0.25)
    cells = plan("table3", TableOptions(data=("digits",), settings=("tau=3", "components=7")))
    by_task = {cell.task: cell.config for cell in cells}
    assert (by_task["knn"].tau, by_task["pca"].components) == (3, 7)
    twice = TableOptions((5, 5), ("softsort", "softsort"), True, ("digits", "digits"))
    assert len(plan("table2", twice)) == 1
    short = plan("table3", TableOptions(data=("mnist",), preset="short"))
    assert {(c.task, c.config.preset) for c in short if c.task in ("knn", "pca")} == {
        ("knn", "short"),
        ("pca", "paper"),
    }


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: plan("table4", TableOptions()), "Did you mean 'table"),
        (lambda: plan("table1", TableOptions(settings=("taw=1",))), "Did you mean 'tau'"),
        (lambda: plan("table1", TableOptions(settings=("tau=x",))), "tau must be a number"),
        (lambda: plan("table1", TableOptions(preset="papers")), "Did you mean 'paper'"),
        (lambda: plan("table1", TableOptions(settings=("label=1",))), "a setting must be one of"),
        (lambda: plan("table1", TableOptions(settings=("n=7",))), "Write --n"),
        (lambda: plan("table1", TableOptions(settings=("seed=7",))), "Write --seeds"),
        (lambda: plan("table1", TableOptions(settings=("tau=7",)), grid=True), "tau is searched"),
        (
            lambda: plan("table2", TableOptions(preset="shrt")),
            "preset must be one of embedded, paper",
        ),
        (lambda: Sweep("x", [], 0, False, Execution()), "at least one seed"),
        (lambda: Workers("rai"), "Did you mean 'ray'"),
        (lambda: Workers(jobs=0), "jobs must be at least 1"),
        (lambda: Workers(threads=0), "threads must be at least 1"),
        (lambda: Workers("local", "somewhere:1"), "Write --engine ray"),
    ],
)
def test_wrong_wishes_are_errors_that_help(make, text):
    with pytest.raises(UserError, match=text):
        make()


def test_an_engine_that_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("ray", "dask"):
        with pytest.raises(UserError, match=rf"softorder\[{name}\]"), Workers(name).ready(1):
            pass


def test_there_are_no_more_workers_than_runs():
    with Workers(jobs=100).ready(1) as count:
        assert count == 1
    with Workers(jobs=3).ready(100) as count:
        assert count == 3


def test_a_sweep_and_a_run_of_one_configuration_have_one_name(monkeypatch, tmp_path):
    runs, given = [], ["--n=3", "--data=digits", "--deterministic", f"--out={tmp_path}"]
    monkeypatch.setattr(
        cli.run, "run_config", lambda *words, **_: runs.append(run_of(*words[:2], ""))
    )
    for threads in ([], ["--threads=2"]):
        wishes = ["--relaxation=softsort", *given, *threads]
        listed = CliRunner().invoke(
            cli.app, ["sweep", "table1", "--list", "--seeds=1", *wishes], env={"COLUMNS": "200"}
        )
        assert CliRunner().invoke(cli.app, ["run", "sort", *wishes]).exit_code == 0
        assert listed.output.split()[0] == runs[-1].name
    assert runs[0].name != runs[1].name
    with pytest.raises(UserError, match="Write --threads"):
        plan("table1", TableOptions(settings=("threads=2",)))


def test_workers_of_dask_have_one_thread_each():
    class Client:
        def __init__(self, *threads):
            self.nthreads = lambda: dict(enumerate(threads))

    assert engines._count_workers(Client(1, 1, 1)) == 3
    with pytest.raises(UserError, match="--nthreads 1"):
        engines._count_workers(Client(1, 4))


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
    assert "4 runs. Left are 0 s of work" in text_of(console)
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
    assert "nothing finished" in text_of(console)


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
    with pytest.raises(UserError, match=r"3 losses in a row \(ZeroDivisionError"):
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
        with engine.stop_signals(answers.append) as asked:
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
    assert "2 at once" in text_of(console)


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
    assert text.count("it does not say why") == 2
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
    for part in ("tau of 1, 16, 128, 1024", "2.0 h", "not trained", "26.0 h", "17 runs", "13.0 h"):
        assert part in text


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
    assert "at once" not in again.stdout  # no worker was asked
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
