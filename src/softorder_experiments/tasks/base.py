"""What the engine asks of a task."""

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
        rank: Its number, from 0.
        count: How many there are.
        device: Where its tensors live.
        gather: Joins the tensors of all processes, alike in shape, along the first dimension.
    """

    rank: int
    count: int
    device: torch.device
    gather: Callable[[Tensor], Tensor]

    def share(self, batch: int) -> slice:
        """Return the part of a batch that this process takes."""
        size = batch // self.count
        return slice(self.rank * size, (self.rank + 1) * size)


class Experiment(ABC, Generic[S]):
    """What has a name, settings and a record: a task to learn, or something to measure."""

    name: ClassVar[str]
    about: ClassVar[str]
    config_type: ClassVar[type[Settings]]
    presets: ClassVar[Mapping[str, Callable[..., Any]]]
    """Preset name -> a configuration for the given keyword arguments, which it depends on."""
    selection: ClassVar[str]
    """The validation metric that chooses the model."""

    def __init__(self, config: S) -> None:
        self.config: S = config

    @classmethod
    def score(cls, validation: Metrics) -> float:
        """Return how good a model is by its validation; the larger the better."""
        return validation[cls.selection]


class Measurement(Experiment[S]):
    """An experiment in which nothing is trained."""

    @abstractmethod
    def evaluate(self, split: str, processes: Processes) -> Metrics:
        """Return the metrics on "validation" or "test"; there is one process."""


class Task(Experiment[T]):
    """Something to learn: data, network, loss and metrics. The engine does the rest.

    A task holds nothing that changes: what it draws comes from `stream`, which depends on the seed
    and the step alone, or from torch's global source, which the engine seeds anew for each step and
    process. So a resumed run is the same as one that was never stopped.
    """

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Return the number of minibatches of an epoch."""

    @property
    @abstractmethod
    def images_per_step(self) -> int:
        """Return how many images pass through the network in a training step."""

    @abstractmethod
    def images_to_evaluate(self, split: str) -> int:
        """Return how many images pass through the network in a validation, or in the test."""

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a new network, its weights drawn from torch's global source."""

    @abstractmethod
    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return what changes the weights, at rates that the engine's schedule takes shares of."""

    @abstractmethod
    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the loss of this process's share of the minibatch of a training step."""

    @abstractmethod
    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the metrics on "validation" or "test", over all processes."""

    @abstractmethod
    def draw(self, network: nn.Module, record: Mapping[str, Any], path: Path) -> None:
        """Draw a picture of what was learnt."""


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a seed of its own for a purpose, and for example a step."""
    words = [seed, int.from_bytes(purpose.encode()), *numbers]
    return int(numpy.random.SeedSequence(words).generate_state(1, numpy.uint64)[0])


def stream(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """Return random numbers of their own for a purpose, and for example a step."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *numbers))
