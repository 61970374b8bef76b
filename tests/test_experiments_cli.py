"""The command `softorder`, as a user meets it."""

import copy
import dataclasses
import functools
import importlib.util
import json
import pathlib
import re
import shlex
import subprocess
import sys
from random import Random

import pytest
import typer.main
from typer.testing import CliRunner

import frameworks
from softorder_experiments import __main__ as command_script
from softorder_experiments import cli, launch, speed, sweeps
from softorder_experiments.data import DATASETS
from softorder_experiments.relaxations import RELAXATIONS
from softorder_experiments.report import Report
from softorder_experiments.runs import read_records
from softorder_experiments.tasks import TASKS, configure
from test_experiments_report import RECORDS, sort_run, speed_run

SMALL = ["--n", "3", "--set", "digits=1", "--set", "epochs=1", "--set", "batch=100"]


def softorder(*arguments):
    """Run the command line in this process."""
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(cli.app, words, env={"COLUMNS": "120"})


def commands(command=None, names=()):
    """Yield the words of every command there is."""
    command = command or typer.main.get_command(cli.app)
    yield names
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*names, name))


def examples():
    """Return the examples of every help text, and of the README."""
    readme = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
    shell = "".join(re.findall(r"```sh\n(.*?)```", readme, re.S))
    found = {line.split("#")[0].strip() for line in re.findall("^softorder .*", shell, re.M)}
    assert len(found) >= 3
    for words in commands():
        text = softorder(*words, "--help").output
        # A line that was too long goes on in the next one.
        text = re.sub(r"\s*\n (?=\S)", " ", text.split("Examples:")[-1])
        found |= set(re.findall(r"softorder (?!-)[^\n`]+?(?=\s{2,}|\s*$)", text, re.M))
    return sorted(found)


def test_every_command_has_help():
    for words in commands():
        result = softorder(*words, "--help")
        assert result.exit_code == 0
        assert "Usage" in result.output


def test_the_help_names_what_there_is():
    text = softorder("run", "sort", "--help").output
    for name in (*RELAXATIONS, *DATASETS, *TASKS["sort"].presets):
        assert name in text


def test_the_examples_of_the_help_are_right(monkeypatch, tmp_path):
    carried = []
    monkeypatch.setattr(cli.run, "run_config", lambda task, config, *_, **__: carried.append(task))
    swept = []
    monkeypatch.setattr(sweeps, "run_sweep", lambda sweep, *_: swept.append(sweep.name))
    monkeypatch.setattr(sweeps, "show_dry_run", lambda _, sweep, __: swept.append(sweep.name))
    monkeypatch.setattr(sweeps.Sweep, "summarize", lambda self: [])
    timed = []
    monkeypatch.setattr(
        speed, "measure_points", lambda points, *_, **__: timed.append(points) or []
    )
    monkeypatch.chdir(tmp_path)
    offline = [text for text in examples() if not text.startswith("softorder data get")]
    assert len(offline) >= 8
    run = tmp_path / "results" / "runs" / "sort-n5-softsort-digits-embedded-s0"
    run.mkdir(parents=True)
    settings = dataclasses.asdict(configure("sort", None, {}))
    config = {"schema": 1, "task": "sort", "config": settings}
    (run / "config.json").write_text(json.dumps(config))
    (run.parent / "NAME").symlink_to(run)
    benchmark = tmp_path / "benchmarks" / "results" / "FILE.jsonl"
    benchmark.parent.mkdir(parents=True)
    benchmark.write_text("")
    for text in offline:
        result = softorder(*shlex.split(text)[1:])
        assert result.exit_code == 0, (text, result.output, result.exception)
    runs = [text for text in offline if "--help" not in text]
    assert len(timed) == sum(" run speed" in text for text in runs) >= 4
    carrying = [text for text in runs if " run " in text or " resume " in text]
    assert len(carried) == len(carrying) - len(timed)
    assert len(swept) == sum(" sweep " in text for text in runs) >= 4
    assert set(swept) == set(sweeps.TABLES)


def test_a_run_from_its_start_to_its_files(tmp_path):
    out = tmp_path / "out"
    result = softorder("run", "sort", *SMALL, "--accelerator", "cpu", "--out", out, "--seed", 3)
    assert result.exit_code == 0, result.output
    (record,) = read_records(out)
    assert record["seed"] == record["config"]["seed"] == 3
    for what in ("record", "picture", "model"):
        (path,) = re.findall(rf"{what}  (\S+)", result.output)
        assert path.startswith(str(out))
    assert (out / "runs" / record["run"] / "picture.png").exists()
    again = softorder("run", "sort", *SMALL, "--accelerator", "cpu", "--out", out, "--seed", 3)
    assert "finished on" in again.output
    assert len(read_records(out)) == 1
    shown = softorder("show", out)
    assert "sort, on test" in shown.output
    heading = re.findall(r"epochs|correctly|time", shown.output)
    assert heading == ["epochs", "correctly", "correctly", "time"]
    assert record["run"] in shown.output


def test_the_preset_follows_the_data(monkeypatch):
    carried = []
    monkeypatch.setattr(cli.run, "run_config", lambda task, config, *_: carried.append(config))
    softorder("run", "sort")
    softorder("run", "sort", "--data", "mnist", "--n", "9")
    softorder("run", "sort", "--data", "mnist", "--preset", "short", "--stochastic")
    assert [config.preset for config in carried] == ["embedded", "paper", "short"]
    assert (carried[1].tau, carried[1].n) == (128, 9)
    assert carried[2].stochastic


def test_list_names_everything():
    text = softorder("list").output
    for name in (*TASKS, *RELAXATIONS, *DATASETS, "lr", "tau"):
        assert name in text


def test_embedded_data_needs_no_download():
    result = softorder("data", "get", "digits")
    assert (result.exit_code, result.output.strip()) == (0, "digits needs no download")


def test_info_is_the_librarys():
    result = softorder("info")
    assert result.exit_code == 0
    assert "native kernel" in result.output
    for name in frameworks.NAMES:
        line = next(line for line in result.output.splitlines() if line.startswith(name))
        assert ("not installed" in line) == (not frameworks.is_installed(name))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["run", "sort", "--data", "mnst"], ["must be one of", "'mnst'", "mean 'mnist'?"]),
        (["run", "sort", "--set", "learning_rate=1"], ["'learning_rate'", "Did you mean"]),
        (["run", "sort", "--set", "lr=fast"], ["lr must be a number", "'fast'"]),
        (["run", "sort", "--set", "preset=paper"], ["Write --preset"]),
        (["run", "sort", "--set", "n=100000"], ["n must be from 2 to 1000"]),
        (["run", "sort", "--devices", "0"], ["devices must be at least 1", "with --devices"]),
        (["run", "sort", "--devices", "3"], ["divisible by the 3 devices", "batch of 20"]),
        (["run", "sort", "--accelerator", "cpuu"], ["--accelerator cpuu"]),
        (["run", "sort", "--out", "{file}/out"], ["must be writable", "--out"]),
        (["resume", "nothing"], ["folder or name", "'nothing'"]),
        (["show", "nowhere"], ["nowhere, which does not exist"]),
        (["data", "get", "emnist"], ["mean 'mnist'?"]),
    ],
)
def test_what_a_user_can_mend_is_a_short_error(monkeypatch, capsys, tmp_path, arguments, parts):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    words = [argument.format(file=tmp_path / "file") for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["softorder", *words])
    with pytest.raises(SystemExit) as stop:
        cli.run_command_line()
    assert stop.value.code == 1
    text = capsys.readouterr().err
    for part in parts:
        assert part in text
    assert "Traceback" not in text
    assert len(text.splitlines()) <= 24


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command as a shell does; return exit code, output and errors."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["softorder", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.run_command_line()
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        for text in said:
            assert all(char.isprintable() or char == "\n" for char in text)
        return stop.value.code, said.out, said.err

    return run


def write_lines(file, *lines):
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text(text, errors="surrogatepass")


def test_show_takes_markup_and_escape_sequences_for_what_they_are(command, tmp_path):
    for name in ("[red]", "\x1b[31m:smile:"):
        where = tmp_path / "[" / "x]" / name  # the path holds "[/x]", which closes nothing
        folder = where / "runs" / name
        folder.mkdir(parents=True)
        (folder / "unfinished").touch()
        write_lines(where / f"{name}.jsonl", {**sort_run(0, 0.5), "run": "[/blue] [b]x :x:"})
        code, out, err = command("show", where)
        assert (code, err) == (0, "")
        assert "[/blue] [b]x :x:" in out
        assert f"{where}/runs/{name}".replace("\x1b", r"\x1b") in out.split("unfinished")[1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"run": ', "it must be JSON"),
        ("[" * 100_000, "it must be JSON"),
        ("1" * 5000, "it must be JSON"),
        ("[]", "it must be an object with names; got []"),
        ({}, "schema is missing"),
        ({**sort_run(0, 0.5), "schema": 7}, "schema must be 1; got 7, from another version"),
        ({**sort_run(0, 0.5), "run": "\x1b[31mred"}, r"got '\x1b[31mred'"),
        ({**sort_run(0, 0.5), "run": "\ud800"}, r"got '\ud800'"),
        ({**sort_run(0, 0.5), "run": ["[red]"]}, "run must be text"),
        (
            {**sort_run(0, 0.5), "metrics": {"test": {}, "validation": {}}},
            "metrics.test.permutations_right is missing",
        ),
        ({**sort_run(0, 0.5), "seconds": "long"}, "seconds must be a finite number; got 'long'"),
        ({**sort_run(0, 0.5), "seconds": float("nan")}, "seconds must be a finite number; got nan"),
        ({**sort_run(0, 0.5), "seconds": 10**400}, "seconds must be a finite number; got 1000"),
        ({**sort_run(0, 0.5), "curve": [{"epoch": 1}]}, "curve[0].loss is missing"),
        (
            sort_run(0, "most"),
            "metrics.test.permutations_right must be a finite number; got 'most'",
        ),
        (sort_run(0, 0.5, n="5"), "config.n must be a whole number; got '5'"),
        (speed_run("softsort-abs", 10, epochs="x" * 99), "config.epochs must be a whole number"),
        ({**speed_run("softsort-abs", 10), "metrics": {}}, "metrics.seconds_per_epoch is missing"),
        ({**speed_run("softsort-abs", 10), "outcome": None}, "outcome must be text"),
    ],
)
@pytest.mark.parametrize("name", ["show", "report"])
def test_a_broken_line_is_named_after_the_good_ones_are_shown(
    command, tmp_path, monkeypatch, name, line, problem
):
    monkeypatch.setattr(Report, "render", lambda self: repr([r["run"] for r in self.records]))
    write_lines(tmp_path / "a.jsonl", sort_run(1, 0.25), line, sort_run(2, 0.75))
    options = ["--to", tmp_path / "page.html"] if name == "report" else []
    code, out, err = command(name, tmp_path, *options)
    assert code == 1
    shown = (tmp_path / "page.html").read_text() if name == "report" else out
    for run in ("sort-n5-s1", "sort-n5-s2"):
        assert run in shown
    assert f"line 2 of {tmp_path / 'a.jsonl'} is not a record: " in err
    assert problem in err


def test_a_method_of_another_version_is_a_broken_line(command, tmp_path):
    write_lines(tmp_path / "a.jsonl", speed_run("softsort-abs", 10))
    text = (tmp_path / "a.jsonl").read_text()
    (tmp_path / "a.jsonl").write_text(text.replace('"method": "softsort-abs"', '"method": "[/x]"'))
    for words in (["show"], ["report", "--to", tmp_path / "page.html"]):
        code, _, err = command(*words, tmp_path)
        assert code == 1
        assert "config.method must be a method of this version; got '[/x]'" in err


def places_of(content, path=()):
    """Yield the path of everything in an object."""
    if isinstance(content, dict | list):
        parts = content.items() if isinstance(content, dict) else enumerate(content)
        for key, part in parts:
            yield (*path, key)
            yield from places_of(part, (*path, key))


def test_no_record_makes_show_fail_otherwise_than_by_a_sentence(command, tmp_path):
    random = Random(0)
    wrong = [None, True, -1, 1e308, 2**70, "", "[/x]", "\x1b[2J", "a\nb", "\u202e", [], {}, [[]]]
    codes = set()
    for _ in range(100):
        record = copy.deepcopy(random.choice(RECORDS))
        *path, last = random.choice(list(places_of(record)))
        part = functools.reduce(lambda content, key: content[key], path, record)
        if random.random() < 0.2:
            del part[last]
        else:
            part[last] = random.choice(wrong)
        write_lines(tmp_path / "a.jsonl", record, sort_run(7, 0.5))
        code, out, err = command("show", tmp_path)
        assert "sort-n5-s7" in out
        assert (code, "line 1 of" in err) in ((0, False), (1, True))
        codes.add(code)
    assert codes == {0, 1}


def test_a_run_tells_of_a_broken_line_and_is_not_kept_from_running(command, tmp_path):
    write_lines(tmp_path / "results.jsonl", '{"run": [')
    code, out, _ = command("run", "sort", *SMALL, "--accelerator", "cpu", "--out", tmp_path)
    assert code == 0
    assert f"line 1 of {tmp_path / 'results.jsonl'} is not a record: it must be JSON" in out
    assert command("show", tmp_path)[0] == 1


def test_a_folder_named_like_a_file_of_records_is_named(command, tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    write_lines(tmp_path / "b.jsonl", sort_run(0, 0.5))
    code, out, err = command("show", tmp_path)
    assert code == 1
    assert "sort-n5-s0" in out
    assert "a.jsonl is not a record: it must be readable; got Is a directory" in err


SETTINGS = dataclasses.asdict(configure("sort", None, {}))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "it must be JSON"),
        ([], "an object with names"),
        ({"task": ["sort"], "config": {}}, "task must be text"),
        ({"task": "[/x]", "config": {}}, "task must be one of"),
        ({"task": "sort", "config": 5}, "config must be an object"),
        ({"task": "sort", "config": {}}, "no batch"),
        ({"task": "sort", "config": {**SETTINGS, "[/x]\x1b": 1}}, r"the unknown '[/x]\x1b'"),
        ({"task": "sort", "config": {**SETTINGS, "n": "5"}}, "n '5'"),
        ({"task": "sort", "config": {**SETTINGS, "data": 5}}, "data 5"),
        ({"task": "sort", "config": {**SETTINGS, "stochastic": "yes"}}, "stochastic 'yes'"),
        ({"task": "sort", "config": {**SETTINGS, "epochs": 2.5}}, "epochs 2.5"),
        ({"task": "sort", "config": {**SETTINGS, "threads": True}}, "threads True"),
        ({"task": "sort", "config": {**SETTINGS, "epochs": -1}}, "epochs must be at least 1"),
        ({"task": "sort", "config": {**SETTINGS, "data": "[red]"}}, "data must be one of"),
    ],
)
def test_a_wrong_configuration_is_a_sentence(command, tmp_path, content, problem):
    run = tmp_path / "[" / "red]" / "runs" / "[b]"
    run.mkdir(parents=True)
    write_lines(run / "config.json", content)
    code, _, err = command("resume", run)
    assert code == 1
    assert problem in err


def test_words_that_look_like_markup_are_ordinary_mistakes(command):
    for words in (["run", "[/red]"], ["run", "sort", "--n", "[/red]"], ["\x1b[31m"]):
        assert command(*words)[0] == 2
    for words in (["show", "[/red]"], ["resume", "\x1b[31m"], ["run", "sort", "--data", "[/b]"]):
        assert command(*words)[0] == 1


def test_a_truncated_file_is_named_before_anything_is_trained(monkeypatch, capsys, tmp_path):
    for download in DATASETS["mnist"].downloads:
        path = tmp_path / "data" / download.files[0].path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x1f\x8b truncated")
    monkeypatch.setenv("SOFTORDER_DATA", str(tmp_path / "data"))
    out = tmp_path / "out"
    words = ["softorder", "run", "sort", "--data", "mnist", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stop:
        cli.run_command_line()
    assert stop.value.code == 1
    assert "train-images-idx3-ubyte.gz must be the published file" in capsys.readouterr().err
    assert not out.exists()


def test_a_stopped_run_has_the_exit_code_of_one(monkeypatch):
    def stop(*_, **__):
        raise launch.Stopped("Stopped; To resume")

    monkeypatch.setattr(launch, "run_task", stop)
    result = softorder("run", "sort")
    assert result.exit_code == 130
    assert "To resume" in result.output


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else 1)
    with pytest.raises(SystemExit) as stop:
        command_script.main()
    assert 'pip install "softorder[experiments]"' in stop.value.code
    assert "(typer)" in stop.value.code


def test_help_comes_without_torch():
    code = (
        "import sys; sys.argv = ['softorder', 'run', 'sort', '--help']\n"
        "import softorder_experiments.cli as cli\n"
        "try: cli.app()\n"
        "finally: assert 'torch' not in sys.modules, 'help imports torch'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
