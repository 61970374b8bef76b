"""The baselines: the formulas as the papers print them, and torch.sort."""

from __future__ import annotations

from collections.abc import Callable

import torch

from softorder_experiments import formulas


def softsort(
    x: torch.Tensor, tau: float, distance: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Sort softly by the paper's three lines, which build the n x n matrix."""
    return _apply(formulas.softsort(x, tau, distance), x)


def neuralsort(
    x: torch.Tensor, tau: float, distances: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Sort softly by the formula of Grover et al. (2019), which builds two n x n matrices."""
    return _apply(formulas.neuralsort(x, tau, distances), x)


def sort(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Sort with torch.sort; there is no temperature."""
    return torch.sort(x, dim=-1).values


def _apply(P: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (P @ x.unsqueeze(-1)).squeeze(-1)
