"""The relaxations that have a matrix, by name."""

from __future__ import annotations

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
