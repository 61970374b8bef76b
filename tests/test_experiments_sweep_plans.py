"""Sweeps as plans: which runs there are, and errors in the options."""

import dataclasses

import pytest
from typer.testing import CliRunner

from softorder_experiments import cli
from softorder_experiments.config import Execution
from softorder_experiments.errors import UserError
from softorder_experiments.runs import run_of
from softorder_experiments.sweeps import Sweep, TableOptions, Workers, plan
from softorder_experiments.sweeps import workers as engines
from test_experiments_sweeps import names_of


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
