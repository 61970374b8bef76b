"""Classify images by nearest neighbours of embeddings, trained through kNN (Table 3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import softorder as so
from softorder_experiments.config import require
from softorder_experiments.errors import look_up
from softorder_experiments.relaxations import Noisy, RelaxedTraining, temperature
from softorder_experiments.tasks.base import Metrics, Processes
from softorder_experiments.tasks.images import (
    EmbeddingConfig,
    ImageTask,
    NeighborsConfig,
    for_data,
)
from softorder_experiments.tasks.neighbors import neighbor_accuracy

LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "probability": torch.neg,
    # For an embedding far from its class, the probability underflows.
    "cross-entropy": lambda p: -p.clamp(min=1e-12).log(),
}
# Over the k nearest neighbours: the paper prints the mean, the authors' code uses the sum.
REDUCTIONS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda mean, k: mean,
    "sum": lambda mean, k: mean * k,
}

# For optimal transport: the best of 0.003, 0.01, 0.03 and 0.1 after 60 steps on the digits.
EPSILON = 0.01


@dataclass(frozen=True)
class KNNConfig(EmbeddingConfig, NeighborsConfig, RelaxedTraining):
    """The configuration of `knn`; `batch` counts the queries.

    Args:
        candidates: Training images per minibatch, among which the queries find neighbours.
        loss: Minus the `probability` of the true class, or its `cross-entropy`.
        reduction: Over the k nearest: `mean` as the paper prints it, `sum` as in the authors' code.
        tau: The temperature, in units of squared distance.
    """

    candidates: int = 100
    loss: str = "probability"
    reduction: str = "mean"
    tau: float = 16.0

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "k", self.k <= self.candidates, f"at most the {self.candidates} candidates")
        look_up("loss", self.loss, LOSSES)
        look_up("reduction", self.reduction, REDUCTIONS)

    @property
    def label(self) -> str:
        """Return k, method and data."""
        return f"k{self.k}-{self.method}-{self.data}"


def paper(given: Mapping[str, Any]) -> KNNConfig:
    """Return the paper's setting; k, tau and lr are one point of the printed grid."""
    config = KNNConfig(
        preset="paper", epochs=200, lr=1e-3, k=9, tau=temperature(given, 16.0, EPSILON)
    )
    return for_data(config, given.get("data", "mnist"))


def short(given: Mapping[str, Any]) -> KNNConfig:
    """Return our own setting, tuned for 20 epochs of images moved by a few pixels."""
    config = paper(given)
    return dataclasses.replace(
        config,
        preset="short",
        epochs=20,
        lr=0.05,
        tau=temperature(given, 1.0, EPSILON),
        crop=max(config.crop, 2),
        schedule="cosine",
        averaging=0.998,
    )


def embedded(given: Mapping[str, Any]) -> KNNConfig:
    """Return a setting for the data set digits; it takes a minute on a laptop."""
    return dataclasses.replace(
        short({**given, "data": "digits"}),
        preset="embedded",
        epochs=80,
        k=3,
        tau=temperature(given, 0.1, EPSILON),
        crop=1,
        averaging=0.98,
    )


PRESETS = {"paper": paper, "short": short, "embedded": embedded}


class KNN(ImageTask[KNNConfig]):
    """Embed images so that the nearest neighbours of an image are of its class."""

    name = "knn"
    about = "classify images by the nearest neighbours of trained embeddings (Table 3)"
    config_type = KNNConfig
    presets = PRESETS

    def __init__(self, config: KNNConfig) -> None:
        super().__init__(config)
        self.images.check_count("candidates")
        soft = config.new_relaxation()
        self.how = Noisy(soft) if config.stochastic else soft

    @property
    def images_per_step(self) -> int:
        """Return the number of queries and candidates in a minibatch."""
        return self.config.batch + self.config.candidates

    def network(self) -> nn.Module:
        """Return the embedding."""
        return self.config.new_embedding(self.images.shape)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return stochastic gradient descent with momentum."""
        return self.config.new_optimizer(network)

    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the loss of the true classes' probabilities, mean over queries.

        Every process takes all candidates, and its share of the queries.
        """
        config, device, size = self.config, processes.device, self.config.candidates
        queries, truth = self.images.minibatch(config, step, "queries", config.batch)
        candidates, labels = self.images.minibatch(config, step, "candidates", size)
        share = processes.share(config.batch)
        # In one batch: parallel training needs one pass through the network per step.
        points = network(torch.cat([queries[share], candidates]).to(device))
        truth, labels = truth[share].to(device), labels.to(device)
        return self.loss_of(points[:-size], points[-size:], truth, labels).mean()

    def loss_of(self, queries: Tensor, candidates: Tensor, truth: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each query; with noise, of each sample and query."""
        config = self.config
        tensors = (queries, candidates, truth, labels)
        if config.stochastic:
            tensors = (tensor.expand(config.samples, *tensor.shape) for tensor in tensors)
        queries, candidates, truth, labels = tensors
        of_class = so.knn(
            queries, candidates, config.k, self.how, labels=labels, num_classes=self.images.classes
        )
        mean = of_class.gather(-1, truth[..., None])[..., 0]
        return LOSSES[config.loss](REDUCTIONS[config.reduction](mean, config.k))

    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the accuracy of hard nearest neighbours among the training images."""
        return neighbor_accuracy(self.images, network, split, self.config.k, processes)
