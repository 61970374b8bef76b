"""The paper's embeddings: points whose nearest neighbours are of the same class."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from softorder_experiments.errors import UserError

ImageShape = tuple[int, int, int]


class ConvolutionalEmbedding(nn.Module):
    """conv 5x5x20 - ReLU - max-pool 2 - conv 5x5x50 - ReLU - max-pool 2 - FC - ReLU, for MNIST.

    Args:
        image_shape: Channels, height, width.
        units: Dimensions of the embedding: 50 in the paper, 500 in the authors' code.
        padded: Keep the size of an image in convolutions; the paper does not, and needs 16 x 16.
    """

    def __init__(self, image_shape: ImageShape, units: int, padded: bool = False) -> None:
        super().__init__()
        channels, *sides = image_shape
        padding = 2 if padded else 0
        lost = 0 if padded else 4  # rows and columns, in each convolution
        height, width = (((side - lost) // 2 - lost) // 2 for side in sides)
        if min(height, width) < 1:
            raise UserError(
                "images must be at least 16 x 16 for convolutions without padding",
                f"images of {sides[0]} x {sides[1]}",
                "Write --set padded=true",
            )
        self.first = nn.Conv2d(channels, 20, 5, padding=padding)
        self.second = nn.Conv2d(20, 50, 5, padding=padding)
        self.output = nn.Linear(50 * height * width, units)

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings (count, units)."""
        # ReLU and maximum commute, and after pooling there are four times fewer values.
        x = torch.max_pool2d(self.first(images), 2).relu()
        x = torch.max_pool2d(self.second(x), 2).relu()
        return _in_full_precision(self.output, x.flatten(1)).relu()


class ResNet18(nn.Module):
    """A residual network of 18 layers, its blocks in the order norm - ReLU - convolution.

    Its embedding is the mean over all places of the last block: 512 dimensions. `units` and
    `padded` do not apply; 512 is asked for so that no other number is taken for granted.

    Reference: He, Zhang, Ren, Sun, Identity Mappings in Deep Residual Networks, 2016.
    """

    def __init__(self, image_shape: ImageShape, units: int, padded: bool = False) -> None:
        super().__init__()
        if units != 512:
            raise UserError("resnet18 must have 512 units", repr(units), "Write --set units=512")
        widths = (64, 64, 128, 256, 512)
        self.first = nn.Conv2d(image_shape[0], widths[0], 3, padding=1, bias=False)
        blocks: list[nn.Module] = []
        for before, width in itertools.pairwise(widths):
            blocks += [_Block(before, width, 1 if before == width else 2), _Block(width, width, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, images: Tensor) -> Tensor:
        """Return the embeddings (count, 512)."""
        x = self.first(images.contiguous(memory_format=torch.channels_last))
        return self.blocks(x).float().mean((-2, -1))


class _Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first_norm = nn.BatchNorm2d(before)
        self.first = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        # The shortcut must have the shape of the block's output.
        self.shortcut = (
            nn.Conv2d(before, width, 1, stride=stride, bias=False) if stride > 1 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        active = self.first_norm(x).relu()
        kept = self.shortcut(active) if self.shortcut else x
        return kept + self.second(self.second_norm(self.first(active)).relu())


def _in_full_precision(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer in float32: distances of points in bfloat16 have too few digits."""
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.float())


EMBEDDINGS: dict[str, Callable[[ImageShape, int, bool], nn.Module]] = {
    "convolutional": ConvolutionalEmbedding,
    "resnet18": ResNet18,
}
