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
    """Dense layers of 500 - 500 - 50 - 500 - 500 units, then the pixels."""

    def __init__(self, image_shape: ImageShape) -> None:
        super().__init__()
        pixels = math.prod(image_shape)
        self.encoder = nn.Sequential(nn.Flatten(), *_dense(pixels, 500, 500, 50))
        self.decoder = nn.Sequential(*_dense(50, 500, 500, pixels))


class ConvolutionalAutoEncoder(AutoEncoder):
    """Three convolutions that halve the image, a code of 256 numbers, and the way back."""

    def __init__(self, image_shape: ImageShape) -> None:
        super().__init__()
        channels, height, width = image_shape
        if height % 8 or width % 8:
            raise UserError(
                "images of a convolutional auto-encoder must have sides that divide by 8",
                f"images of {height} x {width}",
                "Write --set architecture=dense",
            )
        widths = (channels, 32, 64, 128)
        inner = (widths[-1], height // 8, width // 8)
        down, up = [], []
        for before, after in itertools.pairwise(widths):
            down += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.ReLU()]
            up = [nn.ReLU(), nn.ConvTranspose2d(after, before, 4, stride=2, padding=1), *up]
        code = 256
        self.encoder = nn.Sequential(*down, nn.Flatten(), nn.Linear(math.prod(inner), code))
        self.decoder = nn.Sequential(nn.Linear(code, math.prod(inner)), nn.Unflatten(1, inner), *up)


def _dense(*widths: int) -> list[nn.Module]:
    """Return dense layers with a ReLU between each two."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return layers[:-1]
