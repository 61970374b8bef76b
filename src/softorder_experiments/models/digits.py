"""The paper's network for large handwritten numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class DigitNetwork(nn.Module):
    """The paper's network for images of numbers: two convolutions, one hidden layer, one output.

    conv 5x5x32 - ReLU - max-pool 2 - conv 5x5x64 - ReLU - max-pool 2 - FC 64 - ReLU - FC 1, all
    'same', for images of any size. `forward` takes (..., channels, height, width), gives (...).
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.first = nn.Conv2d(channels, 32, 5, padding="same")
        self.second = nn.Conv2d(32, 64, 5, padding="same")
        self.hidden = nn.Linear(64 * (height // 4) * (width // 4), 64)
        self.output = nn.Linear(64, 1)
        # This layout makes convolutions on the CPU a quarter faster.
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def forward(self, images: Tensor) -> Tensor:
        """Return a score for each image."""
        batch = images.shape[:-3]
        x = images.flatten(0, -4).contiguous(memory_format=torch.channels_last)
        # ReLU and maximum commute, and after pooling there are four times fewer values.
        x = torch.max_pool2d(self.first(x), 2).relu()
        x = torch.max_pool2d(self.second(x), 2).relu()
        # bfloat16 has only 256 levels, too few to tell numbers apart.
        with torch.autocast(x.device.type, enabled=False):
            return self.output(self.hidden(x.float().flatten(1)).relu()).view(batch)


class MedianNetwork(nn.Module):
    """Two identical networks: one scores numbers to find the median, one predicts their values.

    Both speak in units of `unit`: what comes out is that many times what the networks say.
    """

    def __init__(self, image_shape: tuple[int, int, int], unit: float = 1.0) -> None:
        super().__init__()
        self.unit = unit
        self.scores = DigitNetwork(image_shape)
        self.values = DigitNetwork(image_shape)

    def forward(
        self, images: Tensor, weigh: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return a score and a value for each image (..., n, channels, height, width).

        With `weigh`, which makes weights (samples, ..., n) of the scores, the value is that of the
        weighted mean of the images: (samples, ...).
        """
        scores = self.unit * self.scores(images)
        if weigh is not None:
            images = torch.einsum("s...n,...nchw->s...chw", weigh(scores), images)
        return scores, self.unit * self.values(images)


def truncated_normal(network: nn.Module) -> None:
    """Draw weights as the authors did: normal, deviation 0.1, cut at two deviations; biases 0.1."""
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.constant_(parameter, 0.1)
        else:
            nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)


def he_normal(network: nn.Module) -> None:
    """Draw weights that keep the scale of what passes through ReLU layers; biases 0."""
    for name, parameter in network.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.kaiming_normal_(parameter, nonlinearity="relu")


INITIALIZATIONS = {"truncated-normal": truncated_normal, "he-normal": he_normal}


@torch.no_grad()
def centre(network: nn.Module) -> None:
    """Shift the weights of each inner unit of a `DigitNetwork` to mean 0, in `hidden` by channel.

    What comes out of a ReLU is never negative, so the mean of a unit's weights moves its sum for
    all images alike: Adam sends three of four hidden units below zero for every image, and from
    there none returns.
    """
    second = network.get_parameter("second.weight")
    second -= second.mean((1, 2, 3), keepdim=True)
    hidden = network.get_parameter("hidden.weight").unflatten(1, (len(second), -1))
    hidden -= hidden.mean(-1, keepdim=True)
