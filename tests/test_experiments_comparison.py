"""The paper's tables beside ours: which runs stand beside which printed cell."""

import dataclasses

import pytest

from softorder_experiments.paper_numbers import paper_numbers
from softorder_experiments.report import Report
from softorder_experiments.report.benchmark import Benchmark
from softorder_experiments.report.comparison import NOT_RUN, lines_of, shortened_lines_of
from softorder_experiments.tasks import TASKS
from test_experiments_report import (
    RECORDS,
    ROOT,
    record,
    sort_run,
    speed_run,
)


def test_every_printed_row_names_a_task_there_is():
    for table in paper_numbers()["tables"]:
        for row in table["rows"]:
            assert row["task"] is None or row["task"] in TASKS
            assert len(row["values"]) == len(table["columns"])


def test_the_printed_numbers_are_the_papers_without_doubt_and_without_additions():
    text = (ROOT / "src" / "softorder_experiments" / "paper_numbers.json").read_text()
    pages = [text, *((ROOT / name).read_text() for name in ("README.md", "docs/report.html"))]
    for page in pages:
        assert "†" not in page
        assert "look it up" not in page
    assert [table["table"] for table in paper_numbers()["tables"]] == [
        "table1",
        "table2",
        "table3",
        "table5",
    ]
    rows = [len(table["rows"]) for table in paper_numbers()["tables"]]
    assert rows == [5, 4, 8, 5]
    assert "84.8" not in text  # of a row that the paper has not
    elements = {row["row"]: row["values"] for row in paper_numbers()["tables"][-1]["rows"]}
    assert elements["deterministic SoftSort"][-1] == "0.805 ± 0.007"
    speed = paper_numbers()["speed"]
    assert speed["ratios"] == {"neuralsort-published": 6, "neuralsort-corrected": 1.8}
    assert speed["ratios_on_gpu"] == {"neuralsort-published": 6, "neuralsort-corrected": 1.4}
    limits = {(row["method"], row["device"]): row["n"] for row in speed["out_of_memory"]}
    assert limits == {
        ("NeuralSort", "cpu"): 3600,
        ("SoftSort", "cpu"): 3700,
        ("NeuralSort", "cuda"): 3900,
    }


def test_a_cell_has_the_mean_and_deviation_over_seeds():
    table = paper_numbers()["tables"][0]
    lines = lines_of(table, RECORDS)
    (ours,) = (line for line in lines if line.ours != NOT_RUN)
    assert (ours.method, ours.column, ours.theirs) == (
        "deterministic SoftSort",
        "5",
        "0.796 ± 0.009",
    )
    assert ours.ours == "0.750 ± 0.071"
    assert ours.trained == "10 epochs of 50 steps (preset paper: 100 epochs)"
    assert ours.tested == "2,500 sequences"
    assert [run["seed"] for run in ours.runs] == [0, 1]
    assert len(lines) == sum(len(row["values"]) for row in table["rows"])


def test_of_two_settings_the_newest_counts_and_presets_stand_apart():
    older = {**sort_run(0, 0.1, lr=1.0), "date": "2025-01-01"}
    paper = sort_run(0, 0.6, preset="paper", epochs=100)
    lines = lines_of(paper_numbers()["tables"][0], [older, *RECORDS, paper])
    assert [line.ours for line in lines if line.runs] == ["0.750 ± 0.071", "0.600"]


def test_a_setting_is_what_it_has_otherwise_than_the_papers():
    paper = TASKS["sort"].presets["paper"]({"n": 5})
    config = {**dataclasses.asdict(paper), "preset": "short", "epochs": 10, "test_batches": 500}
    del config["seed"]
    run = sort_run(0, 0.7, **config)
    (line,) = (line for line in lines_of(paper_numbers()["tables"][0], [run]) if line.runs)
    assert line.setting == "short"
    run = sort_run(0, 0.7, **{**config, "lr": 0.002, "centred": True, "schedule": "cosine"})
    (line,) = (line for line in lines_of(paper_numbers()["tables"][0], [run]) if line.runs)
    assert line.setting == "short: lr 0.002, schedule cosine, centred on"


def knn_run(queries=10_000, **config):
    given = {"k": 9, "relaxation": "softsort", "stochastic": False, "epochs": 20, **config}
    curve = [{"epoch": 1, "step": 50, "validation": {"accuracy": 0.7}}]
    test = {"accuracy": 0.78, "queries": queries, "candidates": 55_000}
    return record("knn", "knn", 0, test, curve, **given)


@pytest.mark.parametrize(
    "run",
    [
        sort_run(0, 0.6, epochs=6, preset="paper"),
        sort_run(0, 0.6, epochs=9),
        {
            **sort_run(0, 0.6),
            "metrics": {
                "test": {"permutations_right": 0.6, "elements_right": 0.8, "sequences": 100}
            },
        },
        knn_run(epochs=2),
        knn_run(steps=50),
        knn_run(queries=1000, test_queries=1000),
        knn_run(test_candidates=5000),
    ],
)
def test_a_shortened_run_is_no_answer_but_has_a_place_of_its_own(run):
    table = paper_numbers()["tables"][0 if run["task"] == "sort" else 2]
    assert not any(line.runs for line in lines_of(table, [run]))
    (line,) = shortened_lines_of(table, [run])
    assert line.runs == (run,)
    report = Report([run], Benchmark([]))
    assert {cell.text for t in report.tables()["paper"] for row in t.rows for cell in row[3:4]} == {
        NOT_RUN
    }
    (shortened,) = report.tables()["shortened"]
    # The printed result does not stand beside it.
    assert line.theirs not in {cell.text for row in shortened.rows for cell in row}
    assert line.ours in {cell.text for row in shortened.rows for cell in row}


def test_whole_runs_are_not_shortened():
    for run in (sort_run(0, 0.6), sort_run(0, 0.6, preset="paper", epochs=100), knn_run()):
        table = paper_numbers()["tables"][0 if run["task"] == "sort" else 2]
        assert not shortened_lines_of(table, [run])
        assert sum(bool(line.runs) for line in lines_of(table, [run])) == 1


def test_the_same_runs_answer_permutations_and_elements():
    (line,) = (
        line for line in lines_of(paper_numbers()["tables"][3], [sort_run(0, 0.7)]) if line.runs
    )
    assert (line.theirs, line.ours) == ("0.910 ± 0.005", "0.900")


def test_optimal_transport_answers_the_row_of_cuturi():
    run = sort_run(0, 0.7, relaxation="optimal-transport")
    (line,) = (line for line in lines_of(paper_numbers()["tables"][0], [run]) if line.runs)
    assert (line.method, line.theirs) == ("optimal transport (Cuturi et al.)", "0.811")


def test_another_metric_answers_no_cell():
    run = sort_run(0, 0.9, metric="square")
    assert not any(line.runs for line in lines_of(paper_numbers()["tables"][0], [run]))
    run = sort_run(0, 0.9, metric="abs")
    assert any(line.runs for line in lines_of(paper_numbers()["tables"][0], [run]))


def test_ratios_and_limits_of_memory_stand_beside_ours():
    runs = [
        speed_run("softsort-square-dense", 4000),
        speed_run("neuralsort-corrected", 4000, times=2.0),
        speed_run("neuralsort-published", 1000, times=3.0),
        speed_run("softsort-square-dense", 1000),
    ]
    tables = {table.name: table for table in Report(runs, Benchmark([])).tables()["speed"]}
    rows = [[cell.text for cell in row] for row in tables["ratios"].rows]
    assert rows == [
        ["NeuralSort, as published", "CPU", "1,000", "", "3"],
        ["NeuralSort, as published", "CPU", "4,000", "6", NOT_RUN],
        ["NeuralSort, corrected", "CPU", "4,000", "1.8", "2"],
        ["NeuralSort, as published", "GPU", "4,000", "6", NOT_RUN],
        ["NeuralSort, corrected", "GPU", "4,000", "1.4", NOT_RUN],
    ]
    failed = speed_run("neuralsort-corrected", 4000, "out of memory")
    tables = {
        table.name: table for table in Report([*runs, failed], Benchmark([])).tables()["speed"]
    }
    limits = [[cell.text for cell in row][:4] for row in tables["memory"].rows]
    assert limits == [
        ["NeuralSort", "CPU", "n = 3,600", "n = 4,000"],
        ["SoftSort", "CPU", "n = 3,700", "runs at n = 4,000"],
        ["NeuralSort", "GPU", "n = 3,900", NOT_RUN],
    ]
    assert "13 GB" in tables["memory"].rows[0][-1].text


def test_other_data_do_not_answer_a_cell():
    lines = lines_of(paper_numbers()["tables"][0], [sort_run(0, 0.9, data="digits")])
    assert not any(line.runs for line in lines)
