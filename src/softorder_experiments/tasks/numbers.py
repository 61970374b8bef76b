"""The base of `sort` and `median`: sequences of large handwritten numbers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from softorder_experiments import data
from softorder_experiments.config import require
from softorder_experiments.errors import look_up
from softorder_experiments.models import INITIALIZATIONS, centre
from softorder_experiments.relaxations import RelaxedTraining
from softorder_experiments.tasks.base import Processes, Task, stream


@dataclass(frozen=True)
class NumbersConfig(RelaxedTraining):
    """The configuration of a task on sequences of numbers.

    Args:
        initialization: The distribution of the initial weights: `truncated-normal` or `he-normal`.
        n: The number of images in a sequence.
        digits: The number of digits in an image (l in the paper).
        shift: In training, move each digit by up to this many pixels.
        centred: Keep the mean of each inner unit's weights at 0.
        hidden_rate: The learning rate of the hidden layer, relative to the other layers.
        validation_batches: Minibatches per validation; none for the paper's number.
        test_batches: Minibatches of the test; none for the paper's number.
    """

    initialization: str = "truncated-normal"
    n: int = 5
    digits: int = 4
    shift: int = 0
    centred: bool = False
    hidden_rate: float = 1.0
    tau: float = 1024.0
    validation_batches: int | None = None
    test_batches: int | None = None

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "n", 2 <= self.n <= 1000, "from 2 to 1000")
        require(self, "digits", 1 <= self.digits <= 18, "from 1 to 18")
        require(self, "shift", 0 <= self.shift <= 4, "from 0 to 4")
        require(self, "hidden_rate", 0 <= self.hidden_rate < float("inf"), "finite, not negative")
        for name in ("validation_batches", "test_batches"):
            count = getattr(self, name)
            require(self, name, count is None or count >= 1, "at least 1, or none")

    @property
    def label(self) -> str:
        """Return n, method and data."""
        return f"n{self.n}-{self.method}-{self.data}"


C = TypeVar("C", bound=NumbersConfig)


class NumbersTask(Task[C]):
    """A task on minibatches of sequences of numbers."""

    def __init__(self, config: C) -> None:
        super().__init__(config)
        self.relaxation = config.new_relaxation()
        self._initialize = look_up("initialization", config.initialization, INITIALIZATIONS)
        pools = data.load(config.data)
        self._sizes = {split: len(pool) for split, pool in pools.items()}
        self.numbers = {
            split: data.LargeNumbers(pool, config.digits, config.shift if split == "train" else 0)
            for split, pool in pools.items()
        }

    @abstractmethod
    def new_network(self, image_shape: tuple[int, int, int]) -> nn.Module:
        """Return a network for images of a shape, with torch's initial weights."""

    @abstractmethod
    def digit_networks(self, network: nn.Module) -> list[nn.Module]:
        """Return the `DigitNetwork`s inside a network."""

    @property
    def steps_per_epoch(self) -> int:
        """Return how many batches hold as many digits as there are training images."""
        return self.batches("train")

    @property
    def images_per_step(self) -> int:
        """Return the number of images in a minibatch."""
        return self.config.batch * self.config.n

    def images_to_evaluate(self, split: str) -> int:
        """Return the number of images in all minibatches."""
        return self.batches(split) * self.images_per_step

    def network(self) -> nn.Module:
        """Return a network with the configured initial weights."""
        network = self.new_network(self.numbers["train"].image_shape)
        self._initialize(network)
        if self.config.centred:
            self._centre(network)
        return network

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return Adam."""
        lr = self.config.lr
        rates = {"hidden": lr * self.config.hidden_rate}
        groups = [
            {"params": list(layer.parameters()), "lr": rates.get(name, lr)}
            for part in self.digit_networks(network)
            for name, layer in part.named_children()
        ]
        adam = torch.optim.Adam(groups, fused=True)
        if self.config.centred:
            adam.register_step_post_hook(lambda *_: self._centre(network))
        return adam

    def batches(self, split: str) -> int:
        """Return the number of minibatches of a split."""
        fixed = {"validation": self.config.validation_batches, "test": self.config.test_batches}
        per_batch = self.config.digits * self.config.batch
        return fixed.get(split) or max(1, self._sizes[split] // per_batch)

    def sequences(
        self, split: str, number: int, processes: Processes, share: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Return images and values of a minibatch, or of a share of it."""
        generator = stream(self.config.seed, split, number)
        shape = (self.config.batch, self.config.n)
        images, values = self.numbers[split].draw(shape, generator, share)
        return images.to(processes.device), values.to(processes.device)

    def _centre(self, network: nn.Module) -> None:
        for part in self.digit_networks(network):
            centre(part)
