"""A run's folder, its checkpoint, and the file of records: whole or not there, whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import torch

from softorder_experiments.config import Settings
from softorder_experiments.errors import UserError, replace, writing

SCHEMA_VERSION = 1
Record = dict[str, Any]
_UNFINISHED = "unfinished"


class BusyError(UserError):
    """Another process is at the same run."""


class Run:
    """A run and its files: OUT/runs/NAME/ for itself, and its line in OUT/results.jsonl.

    The same configuration has the same name, so that a run is found again.
    """

    def __init__(self, out: Path, name: str) -> None:
        self.out, self.name = out, name
        self.folder = out / "runs" / name
        self.records = out / "results.jsonl"
        self.checkpoint = self.folder / "checkpoint.pt"
        self.picture = self.folder / "picture.png"
        # While a sweep carries it out: how far it is, and why it failed.
        self.status = self.folder / "status.json"
        self.failure = self.folder / "failure.txt"
        self._config = self.folder / "config.json"
        # There from the beginning until the record is written.
        self._unfinished = self.folder / _UNFINISHED

    def create(self, task: str, config: Settings) -> None:
        """Make the folder, and write what is needed to resume."""
        fields = {"schema": SCHEMA_VERSION, "task": task, "config": dataclasses.asdict(config)}
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        replace(self._config, json.dumps(fields, indent=2).encode())

    def read_config(self) -> tuple[str, dict[str, Any]]:
        """Return the task's name and the fields of its configuration."""
        try:
            content = json.loads(self._config.read_text())
            return content["task"], content["config"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._config} must hold a configuration",
                f"{type(error).__name__}: {error}",
                "Delete the folder, and run anew",
            ) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from the same run."""
        lock = filelock.FileLock(self.folder / "lock", timeout=0)
        with writing(self.folder):
            try:
                lock.acquire()
            except filelock.Timeout:
                raise BusyError(
                    f"run {self.name} must be carried out once at a time",
                    "another process that is at it",
                    "Wait for it, or stop it",
                ) from None
        try:
            yield
        finally:
            lock.release()

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint; until the new one is whole, the old one stays."""
        stream = io.BytesIO()
        torch.save({"schema": SCHEMA_VERSION, **state}, stream)
        replace(self.checkpoint, stream.getbuffer())

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint; None if there is none yet."""
        if not self.checkpoint.exists():
            return None
        try:
            state = torch.load(self.checkpoint, weights_only=True, map_location="cpu")
            schema = state["schema"]
        except Exception as error:
            raise UserError(
                f"{self.checkpoint} must be a checkpoint",
                f"{type(error).__name__}: {str(error)[:200]}",
                "It is damaged: delete it, and the run begins anew",
            ) from error
        if schema != SCHEMA_VERSION:
            raise UserError(
                f"{self.checkpoint} must be of version {SCHEMA_VERSION}",
                f"version {schema}",
                "Go on with the softorder that wrote it, or delete it to begin anew",
            )
        return state

    def record(self) -> Record | None:
        """Return the newest record of this run; None if it is not finished."""
        return finished_runs(self.out).get(self.name)

    def begin(self, *, again: bool) -> None:
        """Say that the run is not finished; to begin again, forget how far it was."""
        replace(self._unfinished, b"")
        self.failure.unlink(missing_ok=True)
        if again:
            self.checkpoint.unlink(missing_ok=True)

    def finish(self) -> None:
        """Say that the record is written."""
        self.failure.unlink(missing_ok=True)
        self._unfinished.unlink(missing_ok=True)


def run_of(task: str, config: Settings, out: str | Path) -> Run:
    """Return the run of a task: the same configuration, the same run."""
    words = (task, config.label, config.preset, f"s{config.seed}", config.fingerprint())
    return Run(Path(out), "-".join(words))


def find_run(out: Path, text: str) -> Run:
    """Return the run of a name, the beginning of one, or a folder."""
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
            f"{text!r}, which {', '.join(found)} begin with",
            "Write more of its name",
        )
    known = ", ".join(names) or f"none in {out}"
    raise UserError(
        f"RUN must be a run's folder or name ({known})",
        repr(text),
        "`softorder show` lists them; --out names another folder",
    )


def finished_runs(out: Path) -> dict[str, Record]:
    """Return the newest record of each run that is finished."""
    begun = {folder.name for folder in unfinished_runs(out)}
    records = read_records(out / "results.jsonl")
    return {record["run"]: record for record in records if record["run"] not in begun}


def unfinished_runs(out: Path) -> list[Path]:
    """Return the folders of the runs that have begun and have no record yet."""
    return sorted(mark.parent for mark in out.glob(f"runs/*/{_UNFINISHED}"))


def append_record(file: Path, record: Record) -> None:
    """Append one JSON line: the whole of it, or nothing."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(file.with_suffix(".lock")), file.open("ab", buffering=0) as stream:
            end = stream.tell()
            try:
                # After a line that somebody left without its end, begin a new one.
                line = b"\n" * (not _ends_with_newline(file)) + line
                if stream.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "only a part was written")
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(end)
                raise


def read_records(path: Path) -> list[Record]:
    """Return the records of a file or of every .jsonl file in a folder, in their order.

    Lines of another kind or version are left out.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] * path.exists()
    records = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            try:
                record = json.loads(line or "null")
            except json.JSONDecodeError as error:
                raise UserError(
                    f"line {number} of {file} must be JSON", str(error), "Delete that line"
                ) from error
            if _is_record(record):
                records.append(record)
    return records


def _is_record(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("schema") != SCHEMA_VERSION:
        return False
    return content.keys() >= {"run", "task", "config", "metrics"}


def _ends_with_newline(file: Path) -> bool:
    content = file.read_bytes()
    return not content or content.endswith(b"\n")
