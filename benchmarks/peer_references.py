"""The operators of other packages from their definitions; see `references`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from benchmarks import references

Layer = tuple[torch.Tensor, torch.Tensor]
"""Two lists of wires to compare: those that receive the smaller value, then the larger."""


def softsort_rank(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Rank by the mean position of each item under SoftSort's matrix, with |.|."""
    ordered = torch.sort(x, dim=-1).values
    P = torch.softmax(-(ordered.unsqueeze(-1) - x.unsqueeze(-2)).abs() / tau, dim=-1)
    position = torch.arange(1, x.shape[-1] + 1).to(x.dtype)
    return ((position @ P) / P.sum(-2))[..., rows]


def neuralsort(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort ascending by NeuralSort."""
    return references.neuralsort(x, tau, x.shape[-1] - 1 - rows)


def network_sort(x: torch.Tensor, tau: float, rows: torch.Tensor, kind: str) -> torch.Tensor:
    """Sort by comparators that swap two values with the Cauchy probability of an inversion."""
    for (low, high), keep in _run(x, tau, kind):
        x = _mix(x, low, high, keep)
    return x[..., rows]


def network_rank(x: torch.Tensor, tau: float, rows: torch.Tensor, kind: str) -> torch.Tensor:
    """Rank by the mean output position of an item, passed back through the network."""
    rank = torch.arange(1, x.shape[-1] + 1).to(x.dtype).expand_as(x)
    for (low, high), keep in reversed(list(_run(x, tau, kind))):
        rank = _mix(rank, low, high, keep)
    return rank[..., rows]


def _run(x: torch.Tensor, tau: float, kind: str) -> Iterator[tuple[Layer, torch.Tensor]]:
    """Yield the layers, each with the probabilities that its comparators do not swap."""
    layers = {"odd_even": _odd_even, "bitonic": _bitonic}[kind]
    for low, high in layers(x.shape[-1]):
        keep = 0.5 + torch.atan((x[..., high] - x[..., low]) / tau) / math.pi
        yield (low, high), keep
        x = _mix(x, low, high, keep)


def _mix(
    x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, keep: torch.Tensor
) -> torch.Tensor:
    """Swap the values of pairs of wires with probability 1 - keep."""
    a, b = x[..., low], x[..., high]
    mixed = torch.cat([keep * a + (1 - keep) * b, keep * b + (1 - keep) * a], dim=-1)
    return x.index_copy(-1, torch.cat([low, high]), mixed)


def _odd_even(n: int) -> Iterator[Layer]:
    """Compare neighbours, starting from even and odd wires in turns, in n layers."""
    for layer in range(n):
        low = torch.arange(layer % 2, n - 1, 2)
        yield low, low + 1


def _bitonic(n: int) -> Iterator[Layer]:
    """Merge runs of 2, 4, ... wires, every other one descending; only the last n of 2^k exist."""
    levels = math.ceil(math.log2(n))
    absent = 2**levels - n
    wire = torch.arange(2**levels)
    for level in range(levels):
        for distance in (2**power for power in range(level, -1, -1)):
            first = wire[(wire & distance == 0) & (wire >= absent)]
            second = first + distance
            down = first & 2 ** (level + 1) != 0
            low, high = torch.where(down, second, first), torch.where(down, first, second)
            yield low - absent, high - absent


def transport_sort(x: torch.Tensor, epsilon: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort ascending by 50 iterations from zero, to targets from 0 to 1."""
    return (_standard_plan(x, epsilon) @ x.unsqueeze(-1)).squeeze(-1)[..., rows]


def transport_rank(x: torch.Tensor, epsilon: float, rows: torch.Tensor) -> torch.Tensor:
    """Rank by the mean position of each item under the same plan."""
    return _mean_position(_standard_plan(x, epsilon))[..., rows]


def _standard_plan(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Return the plan (batch, targets, n) of the standardized scores; the cost is half a square."""
    logits, share = _problem(_standardized(x), 2 * epsilon, x.shape[-1])
    return references.balance(logits, torch.zeros_like(logits[..., 0]), share, iterations=50)


def squashed_sort(x: torch.Tensor, epsilon: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort ascending by the limit of the transport of squashed scores."""
    return (_squashed_plan(x, epsilon, x.shape[-1]) @ x.unsqueeze(-1)).squeeze(-1)[..., rows]


def squashed_rank(
    x: torch.Tensor, epsilon: float, rows: torch.Tensor, targets: int | None = None
) -> torch.Tensor:
    """Rank by the mean position of each item under the same plan, optionally with fewer targets."""
    return _mean_position(_squashed_plan(x, epsilon, targets or x.shape[-1]))[..., rows]


def _squashed_plan(x: torch.Tensor, epsilon: float, targets: int) -> torch.Tensor:
    """Return the plan for the logistic function of the standardized scores, at its limit.

    500 iterations give the starting point of Newton's method. Only its last step carries a
    gradient: by the implicit function theorem, that of the limit.
    """
    logits, share = _problem(torch.sigmoid(_standardized(x)), epsilon, targets)
    sums = torch.cat([share, torch.ones(x.shape[-1], dtype=x.dtype)])
    with torch.no_grad():
        plan = references.balance(logits, torch.zeros_like(logits[..., 0]), share, iterations=500)
        potential = plan.log() - logits
        for _ in range(3):
            potential = potential + _newton_step((logits + potential).exp(), sums)
    return (logits + potential + _newton_step((logits + potential).exp(), sums)).exp()


def _newton_step(plan: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Return the Newton step of the log plan towards the given sums of rows and columns.

    By the pseudoinverse, because a constant can move between the potentials of rows and columns.
    """
    both = torch.cat([plan.sum(-1), plan.sum(-2)], dim=-1)
    fixed = plan.detach()
    jacobian = torch.diag_embed(both.detach())
    m = plan.shape[-2]
    jacobian[..., :m, m:] = fixed
    jacobian[..., m:, :m] = fixed.mT
    step = torch.linalg.pinv(jacobian, hermitian=True) @ (sums - both).unsqueeze(-1)
    return step[..., :m, :] + step[..., m:, :].mT


def _problem(z: torch.Tensor, epsilon: float, targets: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return -(y_i - z_j)^2 / epsilon for targets y from 0 to 1, and the sum of each row."""
    y = torch.linspace(0, 1, targets, dtype=z.dtype)
    share = torch.full_like(y, z.shape[-1] / targets)
    return -((y.unsqueeze(-1) - z.unsqueeze(-2)) ** 2) / epsilon, share


def _mean_position(plan: torch.Tensor) -> torch.Tensor:
    """Return the mean over targets, which represent evenly spaced positions from 1 to n."""
    targets, n = plan.shape[-2:]
    return torch.linspace(1, n, targets, dtype=plan.dtype) @ plan


def _standardized(x: torch.Tensor) -> torch.Tensor:
    """Return scores of mean 0 and standard deviation 1."""
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
