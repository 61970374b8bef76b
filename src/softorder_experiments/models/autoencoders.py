"""Auto-encoders, whose codes are features for nearest neighbours (baselines of Table 3)."""

from __future__ import annotations

import itertools
import math

from torch import Tensor, nn

from softorder_experiments.errors import UserError
from softorder_experiments.models.embeddings import ImageShape


class AutoEncoder(nn.Module):
    """An encoder, and a decoder that gives the logits of the pixels."""

    encoder: nn.Module
    decoder: nn.Module

    def forward(self, images: Tensor) -> Tensor:
        """Return a logit for each pixel, from the code alone."""
        return self.decoder(self.encoder(images)).view_as(images)


class DenseAutoEncoder(AutoEncoder):
    """Dense layers of 500 - 500 - 50 - 500 - 500 units with ReLU, the code too; then the pixels."""

    def __init__(self, image_shape: ImageShape) -> None:
        super().__init__()
        pixels = math.prod(image_shape)
        self.encoder = nn.Sequential(nn.Flatten(), *_dense(pixels, 500, 500, 50), nn.ReLU())
        self.decoder = nn.Sequential(*_dense(50, 500, 500, pixels))


class ConvolutionalAutoEncoder(AutoEncoder):
    """conv 3x3 of 64 - 32 - 16, each with norm, ReLU and max-pool 2; mirrored with up-sampling.

    The code of a CIFAR-10 image is 4 x 4 x 16 = 256 numbers. The paper's appendix refers to this
    network, a public one in Keras, whose last convolution has batch normalisation too.
    """

    def __init__(self, image_shape: ImageShape) -> None:
        super().__init__()
        channels, height, width = image_shape
        if height % 8 or width % 8:
            raise UserError(
                "images of a convolutional auto-encoder must have sides that divide by 8",
                f"images of {height} x {width}",
                "Write --set architecture=dense",
            )
        widths = (64, 32, 16)
        down: list[nn.Module] = []
        for before, after in itertools.pairwise((channels, *widths)):
            down += [*_convolution(before, after), nn.ReLU(), nn.MaxPool2d(2)]
        up: list[nn.Module] = []
        for before, after in itertools.pairwise((widths[-1], *reversed(widths))):
            up += [*_convolution(before, after), nn.ReLU(), nn.Upsample(scale_factor=2)]
        code = (widths[-1], height // 8, width // 8)
        self.encoder = nn.Sequential(*down, nn.Flatten())
        self.decoder = nn.Sequential(nn.Unflatten(1, code), *up, *_convolution(widths[0], channels))


def _convolution(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)]


def _dense(*widths: int) -> list[nn.Module]:
    """Return dense layers with a ReLU between each two."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
