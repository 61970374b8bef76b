"""The relaxations with a matrix, by name, and the settings of tasks that learn through one."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import softorder as so
from softorder_experiments.config import Training, added, require
from softorder_experiments.errors import UserError, look_up

RELAXATIONS: dict[str, type[so.PermutationRelaxation]] = {
    "softsort": so.SoftSort,
    "neuralsort": so.NeuralSort,
    "optimal-transport": so.OptimalTransportSort,
    "softrank": so.SoftRank,
}
_METRICS = ("abs", "square")
# Optimal transport standardizes the scores, so that its epsilon has no unit. The others compare the
# scores themselves: their temperatures would make all entries of its matrix nearly equal.
_EPSILONS = (0.003, 0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class RelaxedTraining(Training):
    """The settings of every task that learns through a relaxation.

    Args:
        relaxation: The relaxation of the permutation that sorts the scores.
        metric: SoftSort's distance between scores: `abs`, `square`, or a power p of |a - b|.
        tau: The temperature of the relaxation (for `optimal-transport`, its epsilon).
        stochastic: Add Gumbel noise to the scores in training.
        samples: The number of noise samples per sequence or query.
    """

    relaxation: str = "softsort"
    metric: str = added("abs")
    tau: float = 1.0
    stochastic: bool = False
    samples: int = 5

    def __post_init__(self) -> None:
        """Check the values that can be checked without data."""
        super().__post_init__()
        require(self, "tau", 0 < self.tau < float("inf"), "positive")
        require(self, "samples", self.samples >= 1, "at least 1")
        _metric(self.relaxation, self.metric)

    @property
    def method(self) -> str:
        """Return relaxation, metric and noise, as a part of the run's name."""
        metric = "" if self.metric == "abs" else f"-{self.metric}"
        return f"{self.relaxation}{metric}{'-stochastic' if self.stochastic else ''}"

    def new_relaxation(self) -> so.PermutationRelaxation:
        """Return a new relaxation with these settings."""
        return relaxation(self.relaxation, self.tau, self.metric)


def relaxation(name: str, tau: float, metric: str = "abs") -> so.PermutationRelaxation:
    """Return a relaxation at a temperature, which is its first field under any name."""
    kind, distance = look_up("relaxation", name, RELAXATIONS), _metric(name, metric)
    if kind is so.SoftSort:
        return so.SoftSort(tau, distance)  # pyright: ignore[reportArgumentType]
    return kind(tau)  # pyright: ignore[reportCallIssue]


def temperature(given: Mapping[str, Any], tau: float, epsilon: float) -> float:
    """Return a preset's tau, or its epsilon if the relaxation is optimal transport."""
    return epsilon if given.get("relaxation") == "optimal-transport" else tau


def temperatures(name: str, taus: tuple[float, ...]) -> tuple[float, ...]:
    """Return the temperatures to search for a relaxation; for optimal transport, epsilons."""
    return _EPSILONS if name == "optimal-transport" else taus


def _metric(name: str, metric: str) -> str | float:
    """Return the metric as SoftSort takes it; other relaxations allow only `abs`."""
    if metric in _METRICS:
        value: str | float = metric
    else:
        value = 0.0
        with contextlib.suppress(ValueError):
            value = float(metric)
        if not 0 < value < float("inf"):
            raise UserError(
                "metric must be abs, square or a positive power of the distance",
                repr(metric),
                "Write for example --set metric=square or --set metric=1.5",
            )
    if name != "softsort" and metric != "abs":
        raise UserError(
            f"metric must be abs for {name}: only softsort has other metrics",
            repr(metric),
            "Leave --set metric=... out, or write --relaxation softsort",
        )
    return value


@dataclass(frozen=True)
class Noisy(so.Relaxation):
    """A stochastic relaxation as in the paper: it adds new Gumbel noise to the scores each time.

    Args:
        relaxation: The relaxation of the noisy scores.
    """

    relaxation: so.PermutationRelaxation

    def permutation(self, scores: Any, *, dim: int = -1, mask: Any = None) -> so.SoftPermutation:
        """Relax the permutation that sorts the noisy scores."""
        return so.PlackettLuce(scores, self.relaxation, dim=dim, mask=mask).rsample()
