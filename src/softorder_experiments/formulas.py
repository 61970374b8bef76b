"""The operators as the papers print them, with the n x n matrix, for comparison."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def softsort(scores: Tensor, tau: float, distance: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the SoftSort matrix (batch, n, n) by the paper's three lines."""
    ordered = torch.sort(scores, dim=-1, descending=True).values
    return torch.softmax(-distance(ordered.unsqueeze(-1) - scores.unsqueeze(-2)) / tau, dim=-1)


def distances_by_product(A: Tensor) -> Tensor:
    """Return A 1 in each column, as NeuralSort was published: O(n^3)."""
    ones = torch.ones(A.shape[-1], A.shape[-1], dtype=A.dtype, device=A.device)
    return A @ ones


def distances_by_sum(A: Tensor) -> Tensor:
    """Return A 1 as one column, as the SoftSort paper corrects it: O(n^2)."""
    return A.sum(-1, keepdim=True)


def neuralsort(scores: Tensor, tau: float, distances: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the NeuralSort matrix (batch, n, n) of Grover et al. (2019), from |s_j - s_k|."""
    s = scores.unsqueeze(-1)
    n = scores.shape[-1]
    scale = n + 1 - 2 * torch.arange(1, n + 1, dtype=s.dtype, device=s.device)
    return torch.softmax((s * scale - distances((s - s.mT).abs())).mT / tau, dim=-1)
