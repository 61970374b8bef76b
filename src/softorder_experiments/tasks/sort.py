"""Sorting handwritten numbers, learnt from their order alone (the paper's Table 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softorder as so
from softorder_experiments import data
from softorder_experiments.config import Training, require
from softorder_experiments.errors import choose
from softorder_experiments.models import INITIALIZATIONS, DigitNetwork, centre
from softorder_experiments.relaxations import relaxation
from softorder_experiments.tasks.base import Metrics, Processes, Task, stream


@dataclass(frozen=True)
class SortConfig(Training):
    """The configuration of `sort`.

    Args:
        n: Numbers of a sequence.
        digits: Digits of a number (l in the paper).
        shift: Move each digit by up to so many pixels when training.
        centred: Hold the mean of each inner unit's weights at 0.
        hidden_rate: The learning rate of the hidden layer, in shares of the others'.
        relaxation: Of the permutation that sorts the scores.
        tau: Its temperature.
        stochastic: Add Gumbel noise to the scores when training.
        samples: How many samples of the noise a sequence has; their losses are added.
        validation_batches: Minibatches of a validation; none for as many as the paper has.
        test_batches: Minibatches of the test; none for as many as the paper has.
    """

    n: int = 5
    digits: int = 4
    shift: int = 0
    centred: bool = False
    hidden_rate: float = 1.0
    relaxation: str = "softsort"
    tau: float = 1024.0
    stochastic: bool = False
    samples: int = 5
    validation_batches: int | None = None
    test_batches: int | None = None

    def __post_init__(self) -> None:
        """Check the values that stand on their own."""
        super().__post_init__()
        require(self, "n", 2 <= self.n <= 1000, "from 2 to 1000")
        require(self, "digits", 1 <= self.digits <= 18, "from 1 to 18")
        require(self, "shift", 0 <= self.shift <= 4, "from 0 to 4")
        require(self, "hidden_rate", 0 <= self.hidden_rate < float("inf"), "finite, not negative")
        require(self, "tau", 0 < self.tau < float("inf"), "positive")
        require(self, "samples", self.samples >= 1, "at least 1")
        for name in ("validation_batches", "test_batches"):
            count = getattr(self, name)
            require(self, name, count is None or count >= 1, "at least 1, or none")


def paper(given: Mapping[str, Any]) -> SortConfig:
    """Return the paper's setting, whose temperature depends on n."""
    n = given.get("n", 5)
    return SortConfig(preset="paper", data="mnist", n=n, tau=1024.0 if n <= 7 else 128.0)


def short(given: Mapping[str, Any]) -> SortConfig:
    """Return ours: as far as 10 epochs go."""
    return dataclasses.replace(
        paper(given),
        preset="short",
        epochs=10,
        batch=5,
        lr=0.002,
        hidden_rate=0.2,
        tau=1.0,
        schedule="cosine",
        averaging=0.9995,
        initialization="he-normal",
        centred=True,
        precision="bf16-mixed",
    )


def embedded(given: Mapping[str, Any]) -> SortConfig:
    """Return a setting for the embedded digits, a few minutes on a laptop."""
    return dataclasses.replace(
        short(given),
        preset="embedded",
        data="digits",
        digits=2,
        epochs=180,
        batch=20,
        lr=0.005,
        hidden_rate=1.0,
        averaging=0.998,
        precision="32-true",
        shift=1,
        validation_batches=20,
        test_batches=100,
    )


PRESETS = {"paper": paper, "short": short, "embedded": embedded}


class Sort(Task[SortConfig]):
    """Sort images of numbers, having seen nothing but the right order of other images."""

    name = "sort"
    about = "sort handwritten numbers, learnt from their order alone (Table 1)"
    config_type = SortConfig
    presets = PRESETS
    selection = "permutations_right"

    def __init__(self, config: SortConfig) -> None:
        super().__init__(config)
        self.relaxation = relaxation(config.relaxation, config.tau)
        self._initialize = choose("initialization", config.initialization, INITIALIZATIONS)
        pools = data.load(config.data)
        self._sizes = {split: len(pool) for split, pool in pools.items()}
        self._numbers = {
            split: data.LargeNumbers(pool, config.digits, config.shift if split == "train" else 0)
            for split, pool in pools.items()
        }

    @property
    def label(self) -> str:
        """Return what tells this run from others, for the eye."""
        config = self.config
        noise = "-stochastic" if config.stochastic else ""
        return f"n{config.n}-{config.relaxation}{noise}-{config.data}"

    @property
    def steps_per_epoch(self) -> int:
        """Return how often a batch uses up as many digits as the training images are."""
        return self._batches("train")

    @property
    def images_per_step(self) -> int:
        """Return how many numbers a minibatch has."""
        return self.config.batch * self.config.n

    def network(self) -> nn.Module:
        """Return the paper's network."""
        network = DigitNetwork(self._numbers["train"].image_shape)
        self._initialize(network)
        if self.config.centred:
            centre(network)
        return network

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return Adam."""
        lr = self.config.lr
        rates = {"hidden": lr * self.config.hidden_rate}
        groups = [
            {"params": list(layer.parameters()), "lr": rates.get(name, lr)}
            for name, layer in network.named_children()
        ]
        adam = torch.optim.Adam(groups, fused=True)
        if self.config.centred:
            adam.register_step_post_hook(lambda *_: centre(network))
        return adam

    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the cross-entropy between the true and the soft permutation, mean over rows."""
        share = processes.share(self.config.batch)
        images, values = self._sequences("train", step, processes, share)
        truth = values.argsort(dim=-1, descending=True, stable=True)
        return self.cross_entropy(network(images), truth).mean()

    def cross_entropy(self, scores: Tensor, truth: Tensor) -> Tensor:
        """Return the loss of each sequence; those of samples are added, as the paper prints it."""
        n, samples = self.config.n, self.config.samples
        if not self.config.stochastic:
            return -self.relaxation(scores).log_prob(truth) / n
        noisy = so.PlackettLuce(scores, self.relaxation).rsample((samples,))
        return -noisy.log_prob(truth.expand(samples, *truth.shape)).sum(0) / n

    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the shares of permutations and of elements that a hard sort gets right."""
        counts = torch.zeros(3, dtype=torch.int64, device=processes.device)
        for batch in range(processes.rank, self._batches(split), processes.count):
            images, values = self._sequences(split, batch, processes)
            right = elements_right(network(images), values)
            counts += torch.stack([counts.new_tensor(len(right)), right.all(-1).sum(), right.sum()])
        sequences, permutations, elements = processes.gather(counts[None]).sum(0).tolist()
        return {
            "permutations_right": permutations / sequences,
            "elements_right": elements / (sequences * self.config.n),
            "sequences": sequences,
        }

    def draw(self, network: nn.Module, record: Mapping[str, Any], path: Path) -> None:
        """Draw a test sequence, its soft permutation and the learning curve."""
        from softorder_experiments.pictures import draw_sorting

        generator = stream(self.config.seed, "picture")
        images, values = self._numbers["test"].draw((self.config.n,), generator)
        device = next(network.parameters()).device
        scores = network(images.to(device)).float().cpu()
        matrix = self.relaxation(scores).matrix()
        draw_sorting(images[:, 0], values, matrix, record, path)

    def _batches(self, split: str) -> int:
        fixed = {"validation": self.config.validation_batches, "test": self.config.test_batches}
        per_batch = self.config.digits * self.config.batch
        return fixed.get(split) or max(1, self._sizes[split] // per_batch)

    def _sequences(
        self, split: str, number: int, processes: Processes, share: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Return images and values of a minibatch, or of a share of it."""
        generator = stream(self.config.seed, split, number)
        shape = (self.config.batch, self.config.n)
        images, values = self._numbers[split].draw(shape, generator, share)
        return images.to(processes.device), values.to(processes.device)


def elements_right(scores: Tensor, values: Tensor) -> Tensor:
    """Tell for each position whether a hard sort puts the right value there, in decreasing order.

    Equal values are right in either order.
    """
    found = values.gather(-1, scores.argsort(dim=-1, descending=True, stable=True))
    return found == values.sort(dim=-1, descending=True).values
