"""Predict the median of handwritten numbers, trained on its value alone (Table 2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy import stats
from torch import Tensor, nn

import softorder as so
from softorder_experiments.config import require
from softorder_experiments.models import MedianNetwork
from softorder_experiments.paper_numbers import paper_numbers
from softorder_experiments.relaxations import temperature
from softorder_experiments.tasks.base import Metrics, Processes
from softorder_experiments.tasks.numbers import NumbersConfig, NumbersTask

# For optimal transport: the best of 0.001, 0.01 and 0.1 after 500 steps on the digits.
EPSILON = 0.1


def printed_temperatures(relaxation: str, stochastic: bool) -> dict[int, float]:
    """Return the paper's tau by n; for a relaxation that is not in the paper, SoftSort's."""
    table = paper_numbers()["temperatures"]
    by_method = {(row["relaxation"], row["stochastic"]): row["tau"] for row in table["rows"]}
    taus = by_method.get((relaxation, stochastic)) or by_method["softsort", stochastic]
    return {n: float(tau) for n, tau in zip(table["n"], taus, strict=True)}


@dataclass(frozen=True)
class MedianConfig(NumbersConfig):
    """The configuration of `median`.

    Args:
        of_soft_image: Predict the value of the softly chosen image, as the paper prints it. The
            authors' code, and our default, softly chooses among the predicted values.
        unit: The factor on the networks' outputs, which start near 1.
    """

    of_soft_image: bool = False
    unit: float = 1.0

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "unit", 0 < self.unit < float("inf"), "positive")
        require(self, "n", self.n % 2 == 1, "odd, to have a middle", "--n")


def paper(given: Mapping[str, Any]) -> MedianConfig:
    """Return the paper's setting, whose temperature depends on method and n."""
    n = given.get("n", 5)
    by_n = printed_temperatures(given.get("relaxation", "softsort"), given.get("stochastic", False))
    # For other n, use the temperature of the next larger n in the paper.
    tau = by_n[min((size for size in by_n if size >= n), default=max(by_n))]
    tau = temperature(given, tau, EPSILON)
    return MedianConfig(preset="paper", data="mnist", n=n, tau=tau, batch=5, lr=0.001)


def short(given: Mapping[str, Any]) -> MedianConfig:
    """Return our own setting, tuned for 10 epochs."""
    return dataclasses.replace(
        paper(given),
        preset="short",
        epochs=10,
        batch=20,
        lr=0.005,
        # Outputs in hundreds, and tau a tenth of the range: otherwise the scores hardly move.
        unit=100.0,
        tau=temperature(given, 1000.0, EPSILON),
        averaging=0.998,
        initialization="he-normal",
        centred=True,
        precision="bf16-mixed",
    )


def embedded(given: Mapping[str, Any]) -> MedianConfig:
    """Return a setting for the data set digits; it takes a few minutes on a laptop."""
    return dataclasses.replace(
        short(given),
        preset="embedded",
        data="digits",
        digits=2,
        epochs=200,
        unit=1.0,
        tau=temperature(given, 10.0, EPSILON),
        precision="32-true",
        shift=1,
        validation_batches=20,
        test_batches=100,
    )


PRESETS = {"paper": paper, "short": short, "embedded": embedded}


class Median(NumbersTask[MedianConfig]):
    """Predict the median of images of numbers, trained only on medians of other images."""

    name = "median"
    about = "predict the median of handwritten numbers, trained on its value alone (Table 2)"
    config_type = MedianConfig
    presets = PRESETS
    selection = "mean_squared_error"

    @classmethod
    def score(cls, validation: Metrics) -> float:
        """Return the negative error, because the smallest error is the best."""
        return -super().score(validation)

    def new_network(self, image_shape: tuple[int, int, int]) -> MedianNetwork:
        """Return a pair of the paper's networks."""
        return MedianNetwork(image_shape, self.config.unit)

    def digit_networks(self, network: nn.Module) -> list[nn.Module]:
        """Return the two networks."""
        return list(network.children())

    def loss(self, network: nn.Module, step: int, processes: Processes) -> Tensor:
        """Return the mean squared error, in the units of the numbers."""
        share = processes.share(self.config.batch)
        images, numbers = self.sequences("train", step, processes, share)
        truth = numbers.median(dim=-1).values.float()
        if self.config.of_soft_image:
            _, values = network(images, self.weights)
            return (values - truth).square().mean()
        scores, values = network(images)
        return self.squared_error(self.weights(scores), values, truth).mean()

    def weights(self, scores: Tensor) -> Tensor:
        """Return the weight of each number as the median, per sample: (samples, ..., n)."""
        middle = self.config.n // 2
        if not self.config.stochastic:
            return self.relaxation(scores).rows(middle)[None]
        noisy = so.PlackettLuce(scores, self.relaxation).rsample((self.config.samples,))
        return noisy.rows(middle)

    def squared_error(self, weights: Tensor, values: Tensor, truth: Tensor) -> Tensor:
        """Return the error of each sample and sequence, as in the authors' code.

        Deterministic: the error of the expected value. Stochastic: the expected error.
        """
        if not self.config.stochastic:
            return ((weights * values).sum(-1) - truth).square()
        return (weights * (values - truth[..., None]).square()).sum(-1)

    def evaluate(self, network: nn.Module, split: str, processes: Processes) -> Metrics:
        """Return the errors of the predicted value of the number with the median score."""
        batches = self.batches(split)
        per_process = -(-batches // processes.count)
        found = torch.full((per_process, self.config.batch, 3), _NOTHING, device=processes.device)
        for row, batch in enumerate(range(processes.rank, batches, processes.count)):
            found[row] = self._predict(network, split, batch, processes)
        rows = processes.gather(found).flatten(0, 1)
        return regression_metrics(*rows[rows[:, 0] != _NOTHING].double().cpu().unbind(-1))

    def draw(self, network: nn.Module, record: Mapping[str, Any], path: Path) -> None:
        """Draw predicted against true medians, and the learning curve."""
        from softorder_experiments.figures import draw_medians

        alone = Processes(0, 1, next(network.parameters()).device, lambda tensor: tensor)
        batches = range(min(self.batches("test"), -(-_DRAWN // self.config.batch)))
        rows = torch.cat([self._predict(network, "test", batch, alone) for batch in batches])
        truth, predicted, _ = rows.cpu().unbind(-1)
        draw_medians(truth, predicted, record, path)

    def _predict(self, network: nn.Module, split: str, batch: int, processes: Processes) -> Tensor:
        """Return the true median, the predicted one, and the chosen number: (batch, 3)."""
        images, numbers = self.sequences(split, batch, processes)
        scores, values = network(images)
        chosen = scores.median(dim=-1, keepdim=True).indices
        truth = numbers.median(dim=-1, keepdim=True).values
        columns = (truth, values.gather(-1, chosen), numbers.gather(-1, chosen))
        return torch.cat([column.float() for column in columns], -1)


_DRAWN = 200  # points in a figure
_NOTHING = -1.0  # no number is negative


def regression_metrics(truth: Tensor, predicted: Tensor, chosen: Tensor) -> Metrics:
    """Return the errors of predicted values; `chosen` are the true values of the chosen numbers.

    The authors' table shows Spearman's rho in the column headed R^2.
    """
    error = (predicted - truth).square()
    constant = bool((predicted == predicted[0]).all() or (truth == truth[0]).all())
    rho = 0.0 if constant else float(stats.spearmanr(truth, predicted)[0])  # pyright: ignore[reportArgumentType]
    spread = (truth - truth.mean()).square().sum()
    return {
        "mean_squared_error": error.mean().item(),
        "spearman": rho,
        "spearman_squared": rho**2,
        "r_squared": (1 - error.sum() / spread.clamp(min=1e-12)).item(),
        "medians_found": (chosen == truth).double().mean().item(),
        "sequences": len(truth),
    }
