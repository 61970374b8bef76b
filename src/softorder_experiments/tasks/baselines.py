"""The baselines of the paper's nearest neighbours (Table 3)."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from softorder_experiments.config import require
from softorder_experiments.errors import look_up
from softorder_experiments.models import (
    AutoEncoder,
    ConvolutionalAutoEncoder,
    DenseAutoEncoder,
)
from softorder_experiments.tasks.base import Measurement, Metrics, Processes
from softorder_experiments.tasks.images import (
    EmbeddingConfig,
    Images,
    ImageTask,
    ImageTrainingConfig,
    NeighborsConfig,
    for_data,
)
from softorder_experiments.tasks.neighbors import class_accuracy, neighbor_accuracy


@dataclass(frozen=True)
class PixelsConfig(NeighborsConfig):
    """The configuration of `pixels`."""


@dataclass(frozen=True)
class PCAConfig(NeighborsConfig):
    """The configuration of `pca`.

    Args:
        components: The number of principal components.
    """

    components: int = 50

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "components", self.components >= 1, "at least 1")


C = TypeVar("C", bound=NeighborsConfig)


class _FixedFeatures(Measurement[C]):
    """Nearest neighbours of features without training."""

    selection = "accuracy"

    def __init__(self, config: C) -> None:
        super().__init__(config)
        self.images = Images(config)

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Return the features of images, (count, d)."""

    def evaluate(self, split: str, processes: Processes) -> Metrics:
        """Return the accuracy of nearest neighbours among the training images."""
        return neighbor_accuracy(self.images, self.features, split, self.config.k, processes)


class Pixels(_FixedFeatures[PixelsConfig]):
    """Nearest neighbours of the images themselves."""

    name = "pixels"
    about = "baseline of Table 3: nearest neighbours of the pixels"
    config_type = PixelsConfig
    presets = {  # noqa: RUF012
        "paper": lambda given: PixelsConfig("paper", given.get("data", "mnist")),
        "embedded": lambda given: PixelsConfig("embedded"),
    }

    def features(self, images: Tensor) -> Tensor:
        """Return the pixels."""
        return images.flatten(1)


class PCA(_FixedFeatures[PCAConfig]):
    """Nearest neighbours of the principal components of images."""

    name = "pca"
    about = "baseline of Table 3: nearest neighbours of principal components"
    config_type = PCAConfig
    presets = {  # noqa: RUF012
        "paper": lambda given: PCAConfig("paper", given.get("data", "mnist")),
        "embedded": lambda given: PCAConfig("embedded", components=20),
    }

    @cached_property
    def _axes(self) -> tuple[Tensor, Tensor]:
        """Return mean and principal axes of the training images."""
        from sklearn import decomposition

        candidates, _ = self.images.candidates("test")
        pixels = self.images.of("train", candidates).flatten(1)
        count, most = self.config.components, min(pixels.shape)
        require(self.config, "components", count <= most, f"at most {most}: pixels, or images")
        fitted = decomposition.PCA(count, svd_solver="covariance_eigh").fit(pixels.numpy())
        return torch.as_tensor(fitted.mean_), torch.as_tensor(fitted.components_)

    def features(self, images: Tensor) -> Tensor:
        """Return the coordinates along the axes."""
        mean, axes = (part.to(images.device) for part in self._axes)
        return (images.flatten(1) - mean) @ axes.T


ARCHITECTURES: dict[str, Callable[[tuple[int, int, int]], AutoEncoder]] = {
    "dense": DenseAutoEncoder,
    "convolutional": ConvolutionalAutoEncoder,
}


@dataclass(frozen=True)
class AutoEncoderConfig(ImageTrainingConfig, NeighborsConfig):
    """The configuration of `autoencoder`.

    Args:
        architecture: `dense` (500-500-50-500-500), or `convolutional` (64-32-16-16-32-64), whose
            code of a CIFAR-10 image is 256 numbers.
    """

    architecture: str = "dense"

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        look_up("architecture", self.architecture, ARCHITECTURES)
        # The cross-entropy needs pixels from 0 to 1.
        require(self, "standardize", not self.standardize, "false")


def _autoencoder(given: Mapping[str, Any]) -> AutoEncoderConfig:
    name = given.get("data", "mnist")
    architecture = "convolutional" if name == "cifar10" else "dense"
    return AutoEncoderConfig("paper", name, architecture=architecture, epochs=100, lr=1e-3)


class AutoEncoderTask(ImageTask[AutoEncoderConfig]):
    """Nearest neighbours of the codes of an auto-encoder."""

    name = "autoencoder"
    about = "baseline of Table 3: nearest neighbours of an auto-encoder's codes"
    config_type = AutoEncoderConfig
    presets = {  # noqa: RUF012
        "paper": _autoencoder,
        "short": lambda given: dataclasses.replace(
            _autoencoder(given), preset="short", epochs=20, schedule="cosine"
        ),
        "embedded": lambda given: dataclasses.replace(
            _autoencoder({"data": "digits"}), preset="embedded", epochs=50
        ),
    }

    def network(self) -> nn.Module:
        """Return the auto-encoder."""
        return ARCHITECTURES[self.config.architecture](self.images.shape)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(network.parameters(), lr=self.config.lr)

    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the binary cross-entropy of the pixels."""
        config = self.config
        images, _ = self.images.minibatch(config, step, "images", config.batch)
        images = images[processes.share(config.batch)].to(processes.device)
        return nn.functional.binary_cross_entropy_with_logits(network(images), images)

    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the accuracy of nearest neighbours of the codes."""
        encoder = network.get_submodule("encoder")
        return neighbor_accuracy(self.images, encoder, split, self.config.k, processes)


@dataclass(frozen=True)
class ClassifierConfig(EmbeddingConfig):
    """The configuration of `classifier`."""


def _classifier(given: Mapping[str, Any]) -> ClassifierConfig:
    name = given.get("data", "mnist")
    epochs = 150 if name == "cifar10" else 50  # from the authors' code
    return for_data(ClassifierConfig("paper", epochs=epochs, lr=1e-3), name)


class Classifier(ImageTask[ClassifierConfig]):
    """The network of `knn` with a linear layer on top, without neighbours."""

    name = "classifier"
    about = "baseline of Table 3: the same network, trained to classify without neighbours"
    config_type = ClassifierConfig
    presets = {  # noqa: RUF012
        "paper": _classifier,
        "short": lambda given: dataclasses.replace(
            _classifier(given), preset="short", epochs=20, lr=0.02, schedule="cosine"
        ),
        "embedded": lambda given: dataclasses.replace(
            _classifier({"data": "digits"}), preset="embedded", lr=0.02
        ),
    }

    def images_to_evaluate(self, split: str) -> int:
        """Return the number of images."""
        return len(self.images.queries(split)[0])

    def network(self) -> nn.Module:
        """Return the embedding and a linear layer."""
        config, images = self.config, self.images
        head = nn.Linear(config.units, images.classes)
        return nn.Sequential(config.new_embedding(images.shape), head)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return stochastic gradient descent with momentum."""
        return self.config.new_optimizer(network)

    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the cross-entropy of the true classes."""
        config = self.config
        images, labels = self.images.minibatch(config, step, "images", config.batch)
        share = processes.share(config.batch)
        logits = network(images[share].to(processes.device))
        return nn.functional.cross_entropy(logits, labels[share].to(processes.device))

    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the accuracy of the most likely class."""
        return class_accuracy(self.images, network, split, processes)


BASELINES = (Pixels, PCA, AutoEncoderTask, Classifier)
