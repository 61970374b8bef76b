"""A run's folder, its checkpoint, and the file of records: whole or not there, whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import torch

from softorder_experiments.config import Training
from softorder_experiments.errors import UserError, writing

SCHEMA_VERSION = 1
Record = dict[str, Any]


class Run:
    """A run and its files: OUT/runs/ID/ for itself, and its line in OUT/results.jsonl.

    The same configuration has the same ID, so that a run is found again.
    """

    def __init__(self, out: Path, name: str) -> None:
        self.name = name
        self.folder = out / "runs" / name
        self.records = out / "results.jsonl"
        self.checkpoint = self.folder / "checkpoint.pt"
        self.picture = self.folder / "picture.png"
        self._config = self.folder / "config.json"

    def create(self, task: str, config: Training) -> None:
        """Make the folder, and write what is needed to resume."""
        fields = {"schema": SCHEMA_VERSION, "task": task, "config": dataclasses.asdict(config)}
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        replace(self._config, json.dumps(fields, indent=2).encode())

    def read_config(self) -> tuple[str, dict[str, Any]]:
        """Return the task's name and the fields of its configuration."""
        content = json.loads(self._config.read_text())
        return content["task"], content["config"]

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from the same run."""
        try:
            with filelock.FileLock(self.folder / "lock", timeout=0):
                yield
        except filelock.Timeout:
            raise UserError(
                f"run {self.name} must be carried out once at a time",
                "another process that is at it",
                "Wait for it, or stop it",
            ) from None

    def save(self, state: dict[str, Any]) -> None:
        """Write the checkpoint; until the new one is whole, the old one stays."""
        stream = io.BytesIO()
        torch.save(state, stream)
        replace(self.checkpoint, stream.getbuffer())

    def load(self) -> dict[str, Any] | None:
        """Return the checkpoint; None if there is none yet."""
        if not self.checkpoint.exists():
            return None
        try:
            return torch.load(self.checkpoint, weights_only=True, map_location="cpu")
        except Exception as error:
            raise UserError(
                f"{self.checkpoint} must be a checkpoint",
                f"{type(error).__name__}: {str(error)[:200]}",
                "It is damaged: delete it, and the run begins anew",
            ) from error

    def record(self) -> Record | None:
        """Return the record of this run, the newest if there are several; None before its end."""
        found = [record for record in read_records(self.records) if record["run"] == self.name]
        return found[-1] if found else None

    def forget(self) -> None:
        """Let the run begin anew; its record stays until the new one comes."""
        self.checkpoint.unlink(missing_ok=True)


def find_run(out: Path, text: str) -> Run:
    """Return the run of a name, the beginning of one, or a folder."""
    if (Path(text) / "config.json").exists():
        folder = Path(text).resolve()
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


def append_record(file: Path, record: Record) -> None:
    """Append one JSON line: the whole of it, or nothing."""
    line = json.dumps(record, allow_nan=False).encode() + b"\n"
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(file.with_suffix(".lock")), file.open("ab", buffering=0) as stream:
            end = stream.tell()
            try:
                if stream.write(line) != len(line):
                    raise OSError(28, "short write")
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(end)
                raise


def read_records(path: Path) -> list[Record]:
    """Return the records of a file or of every .jsonl file in a folder, in their order."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path] * path.exists()
    records = []
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise UserError(
                    f"line {number} of {file} must be JSON", str(error), "Delete that line"
                ) from error
    return records


def replace(path: Path, content: bytes | memoryview) -> None:
    """Write a file so that its name stands for the old content or the new, never for a part."""
    partial = path.with_suffix(".partial")
    with writing(path):
        try:
            with partial.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
