"""The base of the rows of Table 3: images, and the training of embeddings."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from softorder_experiments import data
from softorder_experiments.config import Settings, Training, require
from softorder_experiments.errors import look_up
from softorder_experiments.models import EMBEDDINGS
from softorder_experiments.tasks.base import Task, stream


@dataclass(frozen=True)
class ImagesConfig(Settings):
    """The configuration of an experiment on single images.

    Args:
        standardize: Scale pixels to mean 0 and deviation 1, by channel.
        validation_queries: The number of images to validate on; none for all.
        test_queries: The number of images to test on; none for all.
    """

    standardize: bool = False
    validation_queries: int | None = None
    test_queries: int | None = None

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        for name in ("validation_queries", "test_queries"):
            count = getattr(self, name)
            require(self, name, count is None or count >= 1, "at least 1, or none")


@dataclass(frozen=True)
class NeighborsConfig(ImagesConfig):
    """The configuration of a classifier by nearest neighbours.

    Args:
        k: The number of neighbours that vote.
        validation_candidates: Training images to search in a validation; none for all.
        test_candidates: The same for the test.
    """

    k: int = 3
    validation_candidates: int | None = None
    test_candidates: int | None = None

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "k", self.k >= 1, "at least 1")
        for name in ("validation_candidates", "test_candidates"):
            count = getattr(self, name)
            require(self, name, count is None or count >= self.k, "at least k, or none")

    @property
    def label(self) -> str:
        """Return k and data."""
        return f"k{self.k}-{self.data}"


@dataclass(frozen=True)
class ImageTrainingConfig(Training, ImagesConfig):
    """The configuration of a task that trains on images.

    Args:
        steps: Minibatches per epoch; none for one pass over the training images.
        crop: In training, move images by up to this many pixels.
        flip: In training, mirror images at random.
    """

    batch: int = 100
    steps: int | None = None
    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "steps", self.steps is None or self.steps >= 1, "at least 1, or none")
        require(self, "crop", 0 <= self.crop <= 8, "from 0 to 8")


@dataclass(frozen=True)
class EmbeddingConfig(ImageTrainingConfig):
    """The configuration of a task that trains one of the paper's embeddings.

    Args:
        embedding: `convolutional` or `resnet18`.
        units: The number of dimensions of the embedding.
        padded: Pad the convolutions of `convolutional`, as small images need.
        momentum: The momentum of stochastic gradient descent.
        weight_decay: Its weight decay.
    """

    embedding: str = "convolutional"
    units: int = 50
    padded: bool = False
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "units", self.units >= 1, "at least 1")
        require(self, "momentum", 0 <= self.momentum < 1, "from 0 to less than 1")
        require(self, "weight_decay", 0 <= self.weight_decay < float("inf"), "at least 0")
        look_up("embedding", self.embedding, EMBEDDINGS)

    def new_embedding(self, image_shape: tuple[int, int, int]) -> nn.Module:
        """Return a new network with torch's initial weights."""
        return EMBEDDINGS[self.embedding](image_shape, self.units, self.padded)

    def new_optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return stochastic gradient descent."""
        return torch.optim.SGD(
            network.parameters(),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )


E = TypeVar("E", bound=EmbeddingConfig)


def for_data(config: E, name: str) -> E:
    """Return the configuration with the paper's embedding and images for a data set."""
    photographs: dict[str, Any] = {"embedding": "resnet18", "units": 512, "standardize": True}
    settings: dict[str, dict[str, Any]] = {
        "fashion-mnist": photographs,
        "cifar10": {**photographs, "crop": 4, "flip": True},
        "digits": {"padded": True},
    }
    return dataclasses.replace(config, data=name, **settings.get(name, {}))


class Images:
    """The images of an experiment: to train on, to evaluate, and to find neighbours among."""

    def __init__(self, config: ImagesConfig) -> None:
        self._config = config
        self._pools = data.load(config.data)
        train = self._pools["train"]
        channels, height, width = train.images.shape[1:]
        self.shape = (channels, height, width)
        self.classes = int(train.labels.max()) + 1
        self._mean, self._deviation = _statistics(train) if config.standardize else (0.0, 1.0)
        if isinstance(config, NeighborsConfig):
            self.check_count("k")

    def queries(self, split: str) -> tuple[Tensor, Tensor]:
        """Return the indices of the images to evaluate in a split, and their labels."""
        return self._some(split, f"{split}_queries")

    def candidates(self, split: str) -> tuple[Tensor, Tensor]:
        """Return the indices of the training images to search for a split, and their labels."""
        return self._some("train", f"{split}_candidates")

    def count(self, split: str) -> int:
        """Return the number of queries and candidates."""
        return sum(len(some(split)[0]) for some in (self.queries, self.candidates))

    def of(self, split: str, index: Tensor) -> Tensor:
        """Return images of a split as float tensors."""
        return self._floats(self._pools[split].images[index])

    def batches(self, batch: int) -> int:
        """Return the number of minibatches in one pass over the training images."""
        return len(self._pools["train"]) // batch

    def check_count(self, setting: str) -> None:
        """Check that a setting asks for no more training images than there are."""
        count = len(self._pools["train"])
        wanted = getattr(self._config, setting)
        require(self._config, setting, wanted <= count, f"at most the {count} training images")

    def minibatch(
        self, config: ImageTrainingConfig, step: int, purpose: str, size: int
    ) -> tuple[Tensor, Tensor]:
        """Return training images, moved and mirrored as configured, and their labels.

        Each epoch visits all images, in a new order for each purpose.
        """
        pool = self._pools["train"]
        epoch, number = divmod(step, self.batches(size))
        order = _order(config.seed, purpose, epoch, len(pool))
        chosen = order[number * size : (number + 1) * size]
        images, generator = pool.images[chosen], stream(config.seed, f"{purpose} moved", step)
        if config.crop:
            images = data.random_crop(images, config.crop, generator)
        if config.flip:
            images = data.random_flip(images, generator)
        return self._floats(images), pool.labels[chosen]

    def _some(self, split: str, setting: str) -> tuple[Tensor, Tensor]:
        labels, count = self._pools[split].labels, getattr(self._config, setting)
        if count is None or count >= len(labels):
            return torch.arange(len(labels)), labels
        index = torch.randperm(len(labels), generator=stream(self._config.seed, setting))[:count]
        return index, labels[index]

    def _floats(self, images: Tensor) -> Tensor:
        return (images.float() / self._pools["train"].white - self._mean) / self._deviation


def _statistics(pool: data.Pool) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each channel, in O(1) memory."""
    levels = torch.arange(256, dtype=torch.float64) / pool.white
    counts = [torch.bincount(part.flatten(), minlength=256) for part in pool.images.unbind(1)]
    shares = torch.stack(counts).double() / counts[0].sum()
    mean = shares @ levels
    deviation = (shares @ levels**2 - mean**2).sqrt()
    return mean.float()[:, None, None], deviation.float()[:, None, None]


@functools.lru_cache(maxsize=4)
def _order(seed: int, purpose: str, epoch: int, size: int) -> Tensor:
    return torch.randperm(size, generator=stream(seed, purpose, epoch))


C = TypeVar("C", bound=ImageTrainingConfig)


class ImageTask(Task[C]):
    """A task on minibatches of images; validation accuracy chooses the model."""

    selection = "accuracy"

    def __init__(self, config: C) -> None:
        super().__init__(config)
        self.images = Images(config)
        self.images.check_count("batch")

    @property
    def steps_per_epoch(self) -> int:
        """Return the configured number, or that of one pass over the training images."""
        return self.config.steps or self.images.batches(self.config.batch)

    @property
    def images_per_step(self) -> int:
        """Return the size of a minibatch."""
        return self.config.batch

    def images_to_evaluate(self, split: str) -> int:
        """Return the number of queries and candidates."""
        return self.images.count(split)

    def draw(self, network: nn.Module, record: Mapping[str, Any], path: Path) -> None:
        """Draw the learning curve."""
        from softorder_experiments.figures import draw_accuracy

        draw_accuracy(record, path)
