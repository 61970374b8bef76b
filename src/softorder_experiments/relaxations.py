"""The relaxations that have a matrix, by name, and what a task that learns through one has."""

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
# Optimal transport standardizes the scores: its epsilon has no unit, and a temperature that suits
# the others, which compare the scores themselves, makes all of its entries alike.
_EPSILONS = (0.003, 0.01, 0.03, 0.1, 0.3)


@dataclass(frozen=True)
class RelaxedTraining(Training):
    """What every task has that learns through a relaxation.

    Args:
        relaxation: Of the permutation that sorts the scores.
        metric: SoftSort's distance of two scores: `abs`, `square`, or a power p of |a - b|.
        tau: The relaxation's temperature (for `optimal-transport` its epsilon).
        stochastic: Add Gumbel noise to the scores when training.
        samples: How many samples of the noise there are for each sequence or query.
    """

    relaxation: str = "softsort"
    metric: str = added("abs")
    tau: float = 1.0
    stochastic: bool = False
    samples: int = 5

    def __post_init__(self) -> None:
        """Check the values that stand on their own."""
        super().__post_init__()
        require(self, "tau", 0 < self.tau < float("inf"), "positive")
        require(self, "samples", self.samples >= 1, "at least 1")
        _metric(self.relaxation, self.metric)

    @property
    def method(self) -> str:
        """Return relaxation, metric and noise, as a part of a run's name."""
        metric = "" if self.metric == "abs" else f"-{self.metric}"
        return f"{self.relaxation}{metric}{'-stochastic' if self.stochastic else ''}"

    def new_relaxation(self) -> so.PermutationRelaxation:
        """Return the relaxation."""
        return relaxation(self.relaxation, self.tau, self.metric)


def relaxation(name: str, tau: float, metric: str = "abs") -> so.PermutationRelaxation:
    """Return a relaxation at a temperature, whatever its paper calls it: it is the first field."""
    kind, distance = look_up("relaxation", name, RELAXATIONS), _metric(name, metric)
    if kind is so.SoftSort:
        return so.SoftSort(tau, distance)  # pyright: ignore[reportArgumentType]
    return kind(tau)  # pyright: ignore[reportCallIssue]


def temperature(given: Mapping[str, Any], tau: float, epsilon: float) -> float:
    """Return a preset's tau; if it is given optimal transport, its epsilon instead."""
    return epsilon if given.get("relaxation") == "optimal-transport" else tau


def temperatures(name: str, taus: tuple[float, ...]) -> tuple[float, ...]:
    """Return the temperatures to search for a relaxation: the paper's, or else our epsilons."""
    return _EPSILONS if name == "optimal-transport" else taus


def _metric(name: str, metric: str) -> str | float:
    """Return what SoftSort takes for a metric; another relaxation has none."""
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
                "Write for example --set metric=square, or --set metric=1.5",
            )
    if name != "softsort" and metric != "abs":
        raise UserError(
            f"metric must be abs for {name}: only softsort has another",
            repr(metric),
            "Leave --set metric=... out, or write --relaxation softsort",
        )
    return value


@dataclass(frozen=True)
class Noisy(so.Relaxation):
    """A relaxation of scores with Gumbel noise, drawn anew each time: the paper's stochastic ones.

    Args:
        relaxation: What softens the noisy scores.
    """

    relaxation: so.PermutationRelaxation

    def permutation(self, scores: Any, *, dim: int = -1, mask: Any = None) -> so.SoftPermutation:
        """Relax the permutation that sorts scores with noise."""
        return so.PlackettLuce(scores, self.relaxation, dim=dim, mask=mask).rsample()
