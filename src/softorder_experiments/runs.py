"""A run's folder, its checkpoint, and the file of records. All are written atomically."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import torch

from softorder_experiments.config import Settings
from softorder_experiments.errors import UserError, report_write_errors, write_atomically
from softorder_experiments.record_schema import find_record_problem
from softorder_experiments.schema import TEXT, WHOLE, find_problem, shorten

CONFIG_VERSION = 1
CHECKPOINT_VERSION = 2
if TYPE_CHECKING:
    from rich.console import Console

Record = dict[str, Any]
_UNFINISHED = "unfinished"


class BusyError(UserError):
    """Another process has locked the run."""


class Run:
    """A run and its files: the folder OUT/runs/NAME/, and a line in OUT/results.jsonl.

    The name follows from the configuration, so that a run is found again.
    """

    def __init__(self, out: Path, name: str) -> None:
        self.out, self.name = out, name
        self.folder = out / "runs" / name
        self.records = out / "results.jsonl"
        self.checkpoint = self.folder / "checkpoint.pt"
        self.picture = self.folder / "picture.png"
        # Written by sweeps: the progress of the run, and why it failed.
        self.status = self.folder / "status.json"
        self.failure = self.folder / "failure.txt"
        self._config = self.folder / "config.json"
        # Present from the start of the run until the record is written.
        self._unfinished = self.folder / _UNFINISHED

    def create(self, task: str, config: Settings) -> None:
        """Create the folder, and write the configuration, which a resumed run reads."""
        fields = {"schema": CONFIG_VERSION, "task": task, "config": dataclasses.asdict(config)}
        with report_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._config, json.dumps(fields, indent=2).encode())

    def read_config(self) -> tuple[str, dict[str, Any]]:
        """Return the task's name and the fields of its configuration."""
        content, problem = _read_json(self._config)
        problem = problem or find_problem({"task": TEXT, "config": {}}, content)
        if problem:
            raise UserError(
                f"{self._config} must hold a configuration",
                f"a different file ({problem})",
                "Delete the folder, and start the run again",
            )
        return content["task"], content["config"]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run against other processes."""
        lock = filelock.FileLock(self.folder / "lock", timeout=0)
        with report_write_errors(self.folder):
            try:
                lock.acquire()
            except filelock.Timeout:
                raise BusyError(
                    f"only one process at a time can run {self.name}",
                    "a lock held by another process",
                    "Wait for that process, or stop it",
                ) from None
        try:
            yield
        finally:
            lock.release()

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint; the old one stays until the new one is complete."""
        stream = io.BytesIO()
        torch.save({"schema": CHECKPOINT_VERSION, **state}, stream)
        write_atomically(self.checkpoint, stream.getbuffer())

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if there is none yet."""
        if not self.checkpoint.exists():
            return None
        try:
            state = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
        except Exception as error:
            raise self.bad_checkpoint(f"{type(error).__name__}: {str(error)[:200]}") from error
        problem = find_problem({"schema": WHOLE}, state)
        if problem:
            raise self.bad_checkpoint(problem)
        if state["schema"] != CHECKPOINT_VERSION:
            raise UserError(
                f"{self.checkpoint} must be of version {CHECKPOINT_VERSION}",
                f"version {state['schema']}",
                "Resume with the softorder that wrote it, or delete it to start from the beginning",
            )
        return state

    def bad_checkpoint(self, problem: str) -> UserError:
        """Return the error for a file that is not a checkpoint of this run."""
        return UserError(
            f"{self.checkpoint} must be a checkpoint of this run",
            f"a different file ({problem})",
            "Delete it to start the run from the beginning",
        )

    def record(self) -> Record | None:
        """Return the newest record of this run, or None if it is not finished."""
        return finished_runs(self.out).get(self.name)

    def begin(self, *, again: bool) -> None:
        """Mark the run as unfinished; with `again`, delete its checkpoint."""
        write_atomically(self._unfinished, b"")
        self.failure.unlink(missing_ok=True)
        if again:
            self.checkpoint.unlink(missing_ok=True)

    def read_failure(self) -> str | None:
        """Return why the run failed, in at least one line, or None if it did not."""
        if not self.failure.exists():
            return None
        return self.failure.read_text(errors="replace").strip() or "no reason given"

    def finish(self) -> None:
        """Mark the run as finished, after its record is written."""
        self.failure.unlink(missing_ok=True)
        self._unfinished.unlink(missing_ok=True)


def run_of(task: str, config: Settings, out: str | Path) -> Run:
    """Return the run of a task and a configuration."""
    words = (task, config.label, config.preset, f"s{config.seed}", config.fingerprint())
    return Run(Path(out), "-".join(words))


def find_run(out: Path, text: str) -> Run:
    """Return a run by its name, the beginning of its name, or its folder."""
    folder = Path(text).resolve()
    if (folder / "config.json").exists() and folder.parent.name == "runs":
        return Run(folder.parent.parent, folder.name)
    names = sorted(file.parent.name for file in out.glob("runs/*/config.json"))
    found = [name for name in names if name.startswith(text)]
    if len(found) == 1 or text in found:
        return Run(out, text if text in found else found[0])
    if found:
        raise UserError(
            "RUN must name one run",
            f"{text!r}, with which {', '.join(found)} begin",
            "Write more of the name",
        )
    known = ", ".join(names) or f"none in {out}"
    raise UserError(
        f"RUN must be the folder or name of a run ({known})",
        repr(text),
        "`softorder show` lists them; --out names another folder",
    )


def finished_runs(out: Path) -> dict[str, Record]:
    """Return the newest record of each finished run.

    Lines that are not records are skipped here; `warn_of_bad_lines` reports them.
    """
    begun = {folder.name for folder in unfinished_runs(out)}
    records, _ = read_lines(out / "results.jsonl")
    return {record["run"]: record for record in records if record["run"] not in begun}


def unfinished_runs(out: Path) -> list[Path]:
    """Return the folders of the runs that have started and have no record yet."""
    return sorted(mark.parent for mark in out.glob(f"runs/*/{_UNFINISHED}"))


def append_record(file: Path, record: Record) -> None:
    """Append one JSON line: all of it, or nothing."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with report_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(file.with_suffix(".lock")), file.open("ab", buffering=0) as stream:
            end = stream.tell()
            try:
                # If the last line has no newline, start a new one.
                line = b"\n" * (not _ends_with_newline(file)) + line
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "the line was written only in part")
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(end)
                raise


@dataclass(frozen=True)
class BadLine:
    """A line that is not a record.

    Attributes:
        file: The file.
        number: The line number, from 1; None if the whole file cannot be read.
        problem: Why the line is not a record.
    """

    file: Path
    number: int | None
    problem: str

    def __str__(self) -> str:
        """Return the place of the line and the problem."""
        where = str(self.file) if self.number is None else f"line {self.number} of {self.file}"
        return f"{where} is not a record: {self.problem}"


def read_lines(
    path: Path, find_more: Callable[[Record], str | None] = lambda _: None
) -> tuple[list[Record], list[BadLine]]:
    """Return the records of a file, or of every .jsonl file in a folder, and the bad lines.

    Args:
        path: The file or the folder; if it does not exist, there are no records.
        find_more: A further check of valid records; returns a problem or None.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] * path.exists()
    records: list[Record] = []
    bad: list[BadLine] = []
    for file in files:
        try:
            lines = file.read_bytes().split(b"\n")
        except OSError as error:
            bad.append(BadLine(file, None, f"it must be readable; got {error.strerror}"))
            continue
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            content, problem = _parse(line)
            problem = problem or find_record_problem(content) or find_more(content)
            if problem:
                bad.append(BadLine(file, number, problem))
            else:
                records.append(content)
    return records, bad


def _read_json(file: Path) -> tuple[Any, str | None]:
    """Return the content of a JSON file and None, or None and the problem."""
    try:
        return _parse(file.read_bytes())
    except OSError as error:
        return None, f"it must be readable; got {error.strerror}"


def _parse(line: bytes) -> tuple[Any, str | None]:
    """Return the content of a JSON line and None, or None and the problem."""
    try:
        return json.loads(line), None
    except (ValueError, RecursionError) as error:  # also raised for invalid UTF-8 and deep nesting
        return None, f"it must be JSON; got {shorten(line)} ({error})"


def read_records(path: Path) -> list[Record]:
    """Return the records of a file, or of every .jsonl file in a folder; a bad line is an error."""
    records, bad = read_lines(path)
    if bad:
        first = str(bad[0])
        raise UserError(
            "every line must be the record of a run",
            f"{len(bad)} bad line{'s' * (len(bad) > 1)}. The first: {first}",
            "Delete or fix that line",
        )
    return records


def warn_of_bad_lines(out: Path, console: Console) -> None:
    """Print a warning for each bad line; the run of such a line counts as unfinished."""
    _, bad = read_lines(out / "results.jsonl")
    for line in bad:
        console.print(f"warning: {line}; skipping it", soft_wrap=True)


def _ends_with_newline(file: Path) -> bool:
    content = file.read_bytes()
    return not content or content.endswith(b"\n")
