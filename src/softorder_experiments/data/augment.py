"""Moves and mirrors images for training."""

from __future__ import annotations

import torch
from torch import Tensor


def cut_out(padded: Tensor, rows: Tensor, columns: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut a window out of each image (count, channels, height, width), from a row and a column."""
    height, width = size
    windows = padded.unfold(-2, height, 1).unfold(-2, width, 1)
    return windows[torch.arange(len(padded)), :, rows, columns]


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Move each image by up to `padding` pixels in both directions; fill with black."""
    *_, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    rows, columns = torch.randint(2 * padding + 1, (2, len(images)), generator=generator)
    return cut_out(padded, rows, columns, (height, width))


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image, left to right, with a chance of one half."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)
