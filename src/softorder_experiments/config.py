"""Typed configurations, and how text from the command line changes them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from softorder_experiments.errors import UserError, look_up, nearest
from softorder_experiments.schedules import SCHEDULES

# Precisions that keep no state between steps; a checkpoint holds none.
PRECISIONS: dict[str, None] = {"32-true": None, "bf16-mixed": None}
C = TypeVar("C", bound="Settings")
V = TypeVar("V")


def added(default: V) -> V:
    """Return a configuration field that earlier versions did not have.

    At its default value it is left out of the fingerprint, so that earlier runs keep their names.
    """
    return dataclasses.field(default=default, metadata={"added": True})  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Settings:
    """The settings of every experiment. With the code, they determine every number of a run.

    Args:
        preset: The name of the preset that the configuration started from.
        data: The data set.
        seed: The random seed for weights, data order and noise.
        threads: CPU threads per process. The number of threads changes the order in which sums are
            rounded, so another number is another run.
    """

    preset: str = "embedded"
    data: str = "digits"
    seed: int = 0
    threads: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        require(self, "seed", 0 <= self.seed < 2**32, "from 0 to 2^32 - 1")
        require(self, "threads", self.threads >= 1, "at least 1", "--threads")

    @property
    def label(self) -> str:
        """Return the readable part of the run's name."""
        return self.data

    def fingerprint(self) -> str:
        """Return eight characters that identify this configuration."""
        values = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if not (field.metadata.get("added") and getattr(self, field.name) == field.default)
        }
        text = json.dumps([type(self).__name__, values], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Training(Settings):
    """The settings of every task that is trained.

    Args:
        epochs: The number of epochs; each ends with a validation.
        batch: Sequences or images per minibatch, over all processes.
        lr: The highest learning rate.
        schedule: The learning rate schedule: `constant`, or `cosine` down to 0 after a warm-up.
        warmup: The share of all steps in which a schedule other than `constant` rises.
        averaging: The decay of the running average of the weights, which is evaluated; 0: none.
        precision: `32-true` or `bf16-mixed`, as in Lightning Fabric.
    """

    epochs: int = 100
    batch: int = 20
    lr: float = 0.005
    schedule: str = "constant"
    warmup: float = 0.05
    averaging: float = 0.0
    precision: str = "32-true"

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        for name in ("epochs", "batch"):
            require(self, name, getattr(self, name) >= 1, "at least 1")
        require(self, "lr", 0 < self.lr < float("inf"), "positive")
        require(self, "warmup", 0 <= self.warmup < 1, "from 0 to less than 1")
        require(self, "averaging", 0 <= self.averaging < 1, "from 0 to less than 1")
        look_up("schedule", self.schedule, SCHEDULES)
        look_up("precision", self.precision, PRECISIONS)


@dataclass(frozen=True)
class Execution:
    """Where and how a run is executed. The run's name does not depend on it.

    Args:
        out: The folder for records, checkpoints and figures.
        accelerator: `auto`, `cpu`, `cuda` or `mps`, as in Lightning Fabric.
        devices: The number of devices, or of processes on the CPU.
        checkpoint_seconds: Seconds between checkpoints; each epoch also ends with one.
    """

    out: str = "results"
    accelerator: str = "auto"
    devices: int = 1
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        require(self, "devices", self.devices >= 1, "at least 1", "--devices")
        seconds = self.checkpoint_seconds
        require(self, "checkpoint_seconds", seconds >= 0, "at least 0", "--checkpoint-seconds")


def require(config: Any, name: str, holds: bool, expected: str, option: str = "") -> None:
    """Raise an error about one field unless the condition holds."""
    if not holds:
        option = option or f"--set {name}=..."
        received = repr(getattr(config, name))
        raise UserError(f"{name} must be {expected}", received, f"Change it with {option}")


def override(config: C, changes: Mapping[str, Any]) -> C:
    """Return the configuration with some fields changed; an unknown field is an error."""
    names = {field.name for field in dataclasses.fields(config)}
    for name in changes:
        if name not in names:
            raise UserError(
                f"a setting must be one of {', '.join(sorted(names))}",
                repr(name),
                nearest(name, names),
            )
    return dataclasses.replace(config, **changes)


def parse_settings(config_type: type[Settings], settings: Sequence[str]) -> dict[str, Any]:
    """Parse settings such as `lr=0.005` by the types of the fields."""
    changes: dict[str, Any] = {}
    kinds = typing.get_type_hints(config_type)
    for setting in settings:
        name, separator, text = setting.partition("=")
        if name == "preset":
            raise UserError("the preset has its own option", repr(setting), "Write --preset NAME")
        if not separator:
            raise UserError(
                "a setting must be NAME=VALUE", repr(setting), f"Write for example --set {name}=1"
            )
        # `override` reports unknown names, with the nearest known one.
        changes[name] = _parse(name, text, kinds.get(name, str))
    return changes


def _parse(name: str, text: str, kind: Any) -> Any:
    """Parse one value; an optional field accepts `none`."""
    if isinstance(kind, types.UnionType):
        if text.lower() == "none":
            return None
        (kind,) = (option for option in typing.get_args(kind) if option is not types.NoneType)
    words = {"true": True, "false": False}
    try:
        return words[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        noun = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
        raise UserError(f"{name} must be {noun}", repr(text), f"Write --set {name}=...") from None


def from_json(config_type: type[C], fields: Mapping[str, Any]) -> C:
    """Read a configuration; other fields mean that another version wrote it."""
    names = {field.name for field in dataclasses.fields(config_type)}
    problems = [f"no {name}" for name in sorted(names - fields.keys())]
    problems += [f"the unknown {name!r}" for name in fields if name not in names]
    kinds = typing.get_type_hints(config_type)
    problems += [
        f"{name} {value!r}"
        for name, value in fields.items()
        if name in names and not _is_of(kinds[name], value)
    ]
    if problems:
        raise UserError(
            f"a configuration must have the fields of {config_type.__name__}",
            ", ".join(problems)[:300],
            "Another version of softorder wrote it, or it was edited; start the run again",
        )
    return config_type(**fields)


def _is_of(kind: Any, value: Any) -> bool:
    """Tell whether a JSON value has the type of a field."""
    if isinstance(kind, types.UnionType):
        return any(_is_of(option, value) for option in typing.get_args(kind))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    if kind in (bool, str, types.NoneType):
        return isinstance(value, kind)
    return isinstance(value, (list, tuple))
