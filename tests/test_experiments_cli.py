"""The command `softorder`, as a user meets it."""

import importlib.util
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import typer.main
from typer.testing import CliRunner

import frameworks
from softorder_experiments import cli, entry, launch, speed, sweeps
from softorder_experiments.data import DATASETS
from softorder_experiments.relaxations import RELAXATIONS
from softorder_experiments.runs import read_records
from softorder_experiments.tasks import TASKS

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
    monkeypatch.setattr(cli, "_carry_out", lambda task, config, *_, **__: carried.append(task))
    swept = []
    monkeypatch.setattr(sweeps, "carry_out_sweep", lambda sweep, *_: swept.append(sweep.name))
    monkeypatch.setattr(sweeps, "show_dry_run", lambda _, sweep, __: swept.append(sweep.name))
    monkeypatch.setattr(sweeps.Sweep, "summarize", lambda self: [])
    timed = []
    monkeypatch.setattr(speed, "carry_out", lambda points, *_, **__: timed.append(points) or [])
    monkeypatch.chdir(tmp_path)
    offline = [text for text in examples() if not text.startswith("softorder data get")]
    assert len(offline) >= 8
    run = tmp_path / "results" / "runs" / "sort-n5-softsort-digits-embedded-s0"
    run.mkdir(parents=True)
    config = {"schema": 1, "task": "sort", "config": {}}
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
    assert "was finished on" in again.output
    assert len(read_records(out)) == 1
    shown = softorder("show", out)
    assert "sort, on test" in shown.output
    heading = re.findall(r"epochs|right|time", shown.output)
    assert heading == ["epochs", "right", "right", "time"]
    assert record["run"] in shown.output


def test_the_preset_follows_the_data(monkeypatch):
    carried = []
    monkeypatch.setattr(cli, "_carry_out", lambda task, config, *_: carried.append(config))
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
    assert (result.exit_code, result.output.strip()) == (0, "digits is embedded")


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
        (["run", "sort", "--devices", "3"], ["divide by the 3 devices", "batch of 20"]),
        (["run", "sort", "--accelerator", "cpuu"], ["'cpuu' must be there"]),
        (["run", "sort", "--out", "{file}/out"], ["must be writable", "--out"]),
        (["resume", "nothing"], ["folder or name", "'nothing'"]),
        (["show", "nowhere"], ["nowhere, which is not there"]),
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
        raise launch.Stopped("Stopped; nothing is lost")

    monkeypatch.setattr(launch, "carry_out", stop)
    result = softorder("run", "sort")
    assert result.exit_code == 130
    assert "nothing is lost" in result.output


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else 1)
    with pytest.raises(SystemExit) as stop:
        entry.main()
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
