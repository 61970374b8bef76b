"""The relaxations that have a matrix, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import softorder as so
from softorder_experiments.errors import choose

RELAXATIONS: dict[str, type[so.PermutationRelaxation]] = {
    "softsort": so.SoftSort,
    "neuralsort": so.NeuralSort,
    "optimal-transport": so.OptimalTransportSort,
    "softrank": so.SoftRank,
}


def relaxation(name: str, tau: float) -> so.PermutationRelaxation:
    """Return a relaxation at a temperature, whatever its paper calls it: it is the first field."""
    return choose("relaxation", name, RELAXATIONS)(tau)  # pyright: ignore[reportCallIssue]


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
