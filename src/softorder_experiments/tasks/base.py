"""The interface between the engine and a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy
import torch
from torch import Tensor, nn

from softorder_experiments.config import Settings, Training

S = TypeVar("S", bound=Settings)
T = TypeVar("T", bound=Training)
Metrics = dict[str, float]


@dataclass(frozen=True)
class Processes:
    """This process among those that train together.

    Args:
        rank: The number of this process, from 0.
        count: The number of processes.
        device: The device of its tensors.
        gather: Concatenates equally shaped tensors of all processes along the first dimension.
    """

    rank: int
    count: int
    device: torch.device
    gather: Callable[[Tensor], Tensor]

    def share(self, batch: int) -> slice:
        """Return this process's share of a batch."""
        size = batch // self.count
        return slice(self.rank * size, (self.rank + 1) * size)


class Experiment(ABC, Generic[S]):
    """An experiment with a name, settings and a record: a trained task, or a measurement."""

    name: ClassVar[str]
    about: ClassVar[str]
    config_type: ClassVar[type[Settings]]
    presets: ClassVar[Mapping[str, Callable[..., Any]]]
    """Functions by preset name, from the given options to a configuration."""
    selection: ClassVar[str]
    """The validation metric that chooses the model."""

    def __init__(self, config: S) -> None:
        self.config: S = config

    @classmethod
    def score(cls, validation: Metrics) -> float:
        """Return the score of a model from its validation metrics; larger is better."""
        return validation[cls.selection]


class Measurement(Experiment[S]):
    """An experiment without training."""

    @abstractmethod
    def evaluate(self, split: str, processes: Processes) -> Metrics:
        """Return the metrics on "validation" or "test"; there is one process."""


class Task(Experiment[T]):
    """A task to train on: data, network, loss and metrics. The engine does the rest.

    A task has no mutable state. Its random draws come from `stream`, which depends only on the seed
    and the step, or from torch's global generator, which the engine seeds for each step and
    process. This makes a resumed run identical to one that was never stopped.
    """

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Return the number of minibatches of an epoch."""

    @property
    @abstractmethod
    def images_per_step(self) -> int:
        """Return the number of images that a training step passes through the network."""

    @abstractmethod
    def images_to_evaluate(self, split: str) -> int:
        """Return the number of images that a validation or test passes through the network."""

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a new network, its weights drawn from torch's global generator."""

    @abstractmethod
    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser; its rates are the highest ones, which the schedule scales."""

    @abstractmethod
    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the loss of this process's share of a training step's minibatch."""

    @abstractmethod
    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the metrics on "validation" or "test", over all processes."""

    @abstractmethod
    def draw(self, network: nn.Module, record: Mapping[str, Any], path: Path) -> None:
        """Draw a figure of the trained model."""


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return an independent seed for a purpose and, for example, a step."""
    words = [seed, int.from_bytes(purpose.encode()), *numbers]
    return int(numpy.random.SeedSequence(words).generate_state(1, numpy.uint64)[0])


def stream(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return an independent generator for a purpose and, for example, a step."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *numbers))
