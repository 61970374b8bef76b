"""Large handwritten numbers: digits side by side, generated on the fly."""

from __future__ import annotations

import torch
from torch import Tensor

from softorder_experiments.data.augment import cut_out
from softorder_experiments.data.datasets import Pool
from softorder_experiments.errors import UserError

_BASE = 10


class LargeNumbers:
    """Draws numbers of l handwritten digits, each value from 0 to 10^l - 1 equally likely.

    Args:
        pool: Images of single digits, labelled 0 to 9.
        digits: The number of digits side by side (l); l = 4 on MNIST gives images of 112 x 28.
        shift: Move each digit by up to this many pixels, in both directions.
    """

    def __init__(self, pool: Pool, digits: int, shift: int = 0) -> None:
        self.digits, self.shift = digits, shift
        self._white = pool.white
        self._counts = torch.bincount(pool.labels, minlength=_BASE)
        if len(self._counts) != _BASE or not self._counts.all():
            raise UserError(
                "the data set must have images of every digit from 0 to 9",
                f"image counts {self._counts.tolist()} by label",
                "Choose digits or mnist with --data",
            )
        # Sorted by label, the images of one digit are a range.
        images = pool.images[pool.labels.argsort(stable=True)]
        self._shape = images.shape[1:]
        self._images = torch.nn.functional.pad(images, (shift,) * 4)
        self._starts = self._counts.cumsum(0) - self._counts

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of a number's image."""
        channels, height, width = self._shape
        return channels, height, width * self.digits

    def draw(
        self, shape: tuple[int, ...], generator: torch.Generator, share: slice = slice(None)
    ) -> tuple[Tensor, Tensor]:
        """Return images (*shape, channels, height, width) from 0 to 1, and values of that shape.

        `share` selects a part of the first dimension. The random draws are always those of the
        whole, so that several processes together produce what one process would.
        """
        digits = torch.randint(_BASE, (*shape, self.digits), generator=generator)[share]
        chance = torch.rand(*shape, self.digits, generator=generator)[share]
        # float32 can round up to the count itself.
        within = (chance * self._counts[digits]).long().minimum(self._counts[digits] - 1)
        images = self._images[self._starts[digits] + within]  # (..., l, channels, height, width)
        if self.shift:
            images = self._move(images, generator, shape, share)
        side_by_side = images.movedim(-4, -2).flatten(-2)
        powers = _BASE ** torch.arange(self.digits - 1, -1, -1)
        return side_by_side.float().div_(self._white), (digits * powers).sum(-1)

    def _move(
        self, padded: Tensor, generator: torch.Generator, shape: tuple[int, ...], share: slice
    ) -> Tensor:
        """Cut each image out of its padded version at a random place."""
        _, height, width = self._shape
        places = torch.randint(2 * self.shift + 1, (2, *shape, self.digits), generator=generator)
        rows, columns = places[:, share].flatten(1)
        moved = cut_out(padded.flatten(0, -4), rows, columns, (height, width))
        return moved.reshape(*padded.shape[:-2], height, width)
