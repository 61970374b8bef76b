"""What softorder is compared with: formulas as they are commonly written, torch.sort, torchsort."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch


def softsort(
    x: torch.Tensor, tau: float, distance: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Sort softly by the paper's three lines, which build the n x n matrix."""
    ordered = torch.sort(x, dim=-1, descending=True).values
    P = torch.softmax(-distance(ordered.unsqueeze(-1) - x.unsqueeze(-2)) / tau, dim=-1)
    return (P @ x.unsqueeze(-1)).squeeze(-1)


def distances_by_product(A: torch.Tensor) -> torch.Tensor:
    """Return A 1 in each column, as NeuralSort was published: O(n^3)."""
    return A @ torch.ones(A.shape[-1], A.shape[-1], dtype=A.dtype)


def distances_by_sum(A: torch.Tensor) -> torch.Tensor:
    """Return A 1 as one column, as the SoftSort paper corrects it: O(n^2)."""
    return A.sum(-1, keepdim=True)


def neuralsort(
    x: torch.Tensor, tau: float, distances: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Sort softly by the formula of Grover et al. (2019), which builds two n x n matrices."""
    s = x.unsqueeze(-1)
    n = x.shape[-1]
    A = (s - s.mT).abs()
    scale = n + 1 - 2 * torch.arange(1, n + 1, dtype=x.dtype)
    P = torch.softmax((s * scale - distances(A)).mT / tau, dim=-1)
    return (P @ s).squeeze(-1)


def sort(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Sort with torch.sort; there is no temperature."""
    return torch.sort(x, dim=-1).values


def torchsort_sort(x: torch.Tensor, strength: float) -> torch.Tensor:
    """Sort by the projection of Blondel et al. (2020), with torchsort."""
    import torchsort

    return torchsort.soft_sort(x, regularization="l2", regularization_strength=strength)


def torchsort_rank(x: torch.Tensor, strength: float) -> torch.Tensor:
    """Rank by the projection of Blondel et al. (2020), with torchsort."""
    import torchsort

    return torchsort.soft_rank(x, regularization="l2", regularization_strength=strength)


def torchsort_missing() -> str | None:
    """Return why torchsort cannot run here, or None."""
    return None if importlib.util.find_spec("torchsort") else "not installed"
