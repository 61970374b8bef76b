"""Sort images of handwritten numbers, trained on their order alone (the paper's Table 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import softorder as so
from softorder_experiments.models import DigitNetwork
from softorder_experiments.relaxations import temperature
from softorder_experiments.tasks.base import Metrics, Processes, stream
from softorder_experiments.tasks.numbers import NumbersConfig, NumbersTask

# For optimal transport: the best of 0.003, 0.01, 0.03 and 0.1 after 800 steps on the digits.
EPSILON = 0.01


@dataclass(frozen=True)
class SortConfig(NumbersConfig):
    """The configuration of `sort`."""


def paper(given: Mapping[str, Any]) -> SortConfig:
    """Return the paper's setting, whose temperature depends on n."""
    n = given.get("n", 5)
    tau = temperature(given, 1024.0 if n <= 7 else 128.0, EPSILON)
    return SortConfig(preset="paper", data="mnist", n=n, tau=tau)


def short(given: Mapping[str, Any]) -> SortConfig:
    """Return our own setting, tuned for 10 epochs."""
    return dataclasses.replace(
        paper(given),
        preset="short",
        epochs=10,
        batch=5,
        lr=0.002,
        hidden_rate=0.2,
        tau=temperature(given, 1.0, EPSILON),
        schedule="cosine",
        averaging=0.9995,
        initialization="he-normal",
        centred=True,
        precision="bf16-mixed",
    )


def embedded(given: Mapping[str, Any]) -> SortConfig:
    """Return a setting for the data set digits; it takes a few minutes on a laptop."""
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


class Sort(NumbersTask[SortConfig]):
    """Sort images of numbers, trained only on the correct order of other images."""

    name = "sort"
    about = "sort images of handwritten numbers, trained on their order alone (Table 1)"
    config_type = SortConfig
    presets = PRESETS
    selection = "permutations_right"

    def new_network(self, image_shape: tuple[int, int, int]) -> DigitNetwork:
        """Return the paper's network."""
        return DigitNetwork(image_shape)

    def digit_networks(self, network: nn.Module) -> list[nn.Module]:
        """Return the network itself."""
        return [network]

    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the cross-entropy between the true and the soft permutation, mean over rows."""
        share = processes.share(self.config.batch)
        images, values = self.sequences("train", step, processes, share)
        truth = values.argsort(dim=-1, descending=True, stable=True)
        return self.cross_entropy(network(images), truth).mean()

    def cross_entropy(self, scores: Tensor, truth: Tensor) -> Tensor:
        """Return the loss of each sequence, summed over noise samples as the paper prints it."""
        n, samples = self.config.n, self.config.samples
        if not self.config.stochastic:
            return -self.relaxation(scores).log_prob(truth) / n
        noisy = so.PlackettLuce(scores, self.relaxation).rsample((samples,))
        return -noisy.log_prob(truth.expand(samples, *truth.shape)).sum(0) / n

    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the shares of sequences and of items that a hard sort places correctly."""
        counts = torch.zeros(3, dtype=torch.int64, device=processes.device)
        for batch in range(processes.rank, self.batches(split), processes.count):
            images, values = self.sequences(split, batch, processes)
            right = correct_elements(network(images), values)
            counts += torch.stack([counts.new_tensor(len(right)), right.all(-1).sum(), right.sum()])
        sequences, permutations, elements = processes.gather(counts[None]).sum(0).tolist()
        return {
            "permutations_right": permutations / sequences,
            "elements_right": elements / (sequences * self.config.n),
            "sequences": sequences,
        }

    def draw(self, network: nn.Module, record: Mapping[str, Any], path: Path) -> None:
        """Draw a test sequence, its soft permutation and the learning curve."""
        from softorder_experiments.figures import draw_sorting

        generator = stream(self.config.seed, "picture")
        images, values = self.numbers["test"].draw((self.config.n,), generator)
        device = next(network.parameters()).device
        scores = network(images.to(device)).float().cpu()
        matrix = self.relaxation(scores).matrix()
        draw_sorting(images[:, 0], values, matrix, record, path)


def correct_elements(scores: Tensor, values: Tensor) -> Tensor:
    """Tell for each position whether a hard sort by the scores, descending, places the right value.

    Equal values may come in either order.
    """
    found = values.gather(-1, scores.argsort(dim=-1, descending=True, stable=True))
    return found == values.sort(dim=-1, descending=True).values
