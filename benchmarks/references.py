"""Float64 references for the timed operators, written from their definitions in plain torch.

Each takes x (batch, n), a temperature, and the rows of the result to compute: positions for sorted
values, items for ranks. They are written for readability and need O(n^2) memory or more, except
`softsort` and `neuralsort` for a few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

Pool = Callable[[torch.Tensor], torch.Tensor]
"""The value of each block j..k of a decreasing (batch, n), (batch, j, k); arbitrary for k < j."""


def softsort(x: torch.Tensor, tau: float, rows: torch.Tensor, power: float) -> torch.Tensor:
    """Sort descending: softmax(-|sort(s)_i - s_j|^power / tau) s."""
    ordered = torch.sort(x, dim=-1, descending=True).values[..., rows]
    distance = (ordered.unsqueeze(-1) - x.unsqueeze(-2)).abs() ** power
    return _apply(torch.softmax(-distance / tau, dim=-1), x)


def neuralsort(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort descending: row i = 1..n is softmax(((n + 1 - 2i) s - A 1) / tau) s, A_jk = |s_j - s_k|.

    A 1 is computed by running sums, so that n may be large; the baselines form A explicitly.
    """
    n = x.shape[-1]
    s = torch.sort(x, dim=-1).values
    running = s.cumsum(-1)
    distances = (2 * torch.arange(n) + 2 - n) * s - 2 * running + running[..., -1:]
    scale = (n + 1 - 2 * (rows + 1)).unsqueeze(-1)
    logits = scale * s.unsqueeze(-2) - distances.unsqueeze(-2)
    return _apply(torch.softmax(logits / tau, dim=-1), s)


def hard_sort(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort by counting, for each item, the items before it: a permutation matrix times x."""
    row, column = x.unsqueeze(-1), x.unsqueeze(-2)
    n = x.shape[-1]
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    place = ((column < row) | ((column == row) & earlier)).sum(-1)
    return _apply((place.unsqueeze(-2) == rows.unsqueeze(-1)).to(x.dtype), x)


def pairwise_ranks(
    x: torch.Tensor,
    width: float,
    rows: torch.Tensor,
    chance: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Rank by the expected number of smaller items: 1 + sum over j != i of chance(gap / width)."""
    gap = x[..., rows].unsqueeze(-1) - x.unsqueeze(-2)
    return 0.5 + chance(gap / width).sum(-1)  # the sum includes chance(0) = 1/2 of the item itself


def softrank(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Rank by the mean rank under noise of variance tau in each score."""
    return pairwise_ranks(x, math.sqrt(2 * tau), rows, torch.special.ndtr)


def softrank_sort(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort by the probabilities that an item, with noise of variance tau, is the r-th smallest.

    Given its own noise, an item's comparisons are independent: the distribution of its wins has the
    coefficients of a product of linear factors. Its own noise is integrated over.
    """
    nodes, weights = np.polynomial.legendre.leggauss(160)
    noise = torch.tensor(9 * nodes).to(x.dtype)
    weight = torch.tensor(9 * weights) * torch.exp(-0.5 * noise**2) / math.sqrt(2 * math.pi)
    gap = (x.unsqueeze(-1) - x.unsqueeze(-2)) / math.sqrt(tau)
    n = x.shape[-1]
    win = torch.special.ndtr(gap.unsqueeze(-3) + noise[:, None, None]) * (1 - torch.eye(n))
    wins = torch.nn.functional.pad(torch.ones_like(win[..., :1]), (0, n - 1))
    for other in range(n):
        chance = win[..., other, None]
        wins = wins * (1 - chance) + torch.nn.functional.pad(wins, (1, 0))[..., :n] * chance
    P = torch.einsum("m,bmjr->brj", weight, wins)
    return _apply(P[:, rows], x)


def transport_sort(x: torch.Tensor, epsilon: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort ascending by 50 iterations of the transport to evenly spaced targets."""
    s = torch.sort(x, dim=-1, descending=True).values
    return _apply(_transport(s, epsilon, x.shape[-1]), s).flip(-1)[..., rows]


def transport_rank(
    x: torch.Tensor, epsilon: float, rows: torch.Tensor, targets: int
) -> torch.Tensor:
    """Rank ascending by the mean position of each item, under the plan with few targets."""
    n = x.shape[-1]
    s, order = torch.sort(x, dim=-1, descending=True)
    plan = _transport(s, epsilon, targets)
    member = _groups(n, targets)
    position = member @ torch.arange(n, 0, -1).to(x.dtype) / member.sum(-1)
    ranks = (plan * position.unsqueeze(-1)).sum(-2) / plan.sum(-2)
    return _by_item(ranks, order)[..., rows]


def _transport(s: torch.Tensor, epsilon: float, targets: int) -> torch.Tensor:
    """Return the plan (batch, targets, n): 50 iterations from the potentials of the exact sort.

    The starting potentials are those of unregularized transport, half-way between their bounds.
    """
    n = s.shape[-1]
    member = _groups(n, targets)
    size = member.sum(-1)
    y = member @ torch.linspace(1, 0, n, dtype=s.dtype) / size
    z = (s - s.mean(-1, keepdim=True)) / s.std(-1, correction=0, keepdim=True)
    step = -(y @ member).diff() * (z[..., 1:] + z[..., :-1]) / 2
    potential = torch.nn.functional.pad(step.cumsum(-1), (1, 0)) / epsilon
    start = potential @ member.T / size + size.log()
    return balance(y.unsqueeze(-1) * z.unsqueeze(-2) / epsilon, start, size, iterations=50)


def _groups(n: int, targets: int) -> torch.Tensor:
    """Return which of the n positions share a target: a matrix of 0 and 1, (targets, n)."""
    group = torch.arange(n) * targets // n
    return (group == group.unique().unsqueeze(-1)).double()


def sinkhorn(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Balance y x^T, with y from 1 down to 0, by 20 iterations, and apply it to x."""
    n = x.shape[-1]
    logits = torch.linspace(1, 0, n, dtype=x.dtype).unsqueeze(-1) * x.unsqueeze(-2) / tau
    one = torch.ones(n, dtype=x.dtype)
    return _apply(balance(logits, torch.zeros_like(x), one, iterations=20)[:, rows], x)


def balance(
    logits: torch.Tensor, g: torch.Tensor, row_sums: torch.Tensor, iterations: int
) -> torch.Tensor:
    """Normalize the columns of exp(logits) to 1 and the rows to their sums, alternately."""
    f = torch.zeros_like(logits[..., 0, :])
    for _ in range(iterations):
        f = -torch.logsumexp(logits + g.unsqueeze(-1), dim=-2)
        g = row_sums.log() - torch.logsumexp(logits + f.unsqueeze(-2), dim=-1)
    return (logits + f.unsqueeze(-2) + g.unsqueeze(-1)).exp()


def fast_soft_sort(x: torch.Tensor, epsilon: float, rows: torch.Tensor, pool: Pool) -> torch.Tensor:
    """Sort ascending by the projection of (n, ..., 1) / epsilon onto the permutations of -x."""
    target = _downwards(x) / epsilon
    return (_isotonic(pool(target) - pool(-torch.sort(x, dim=-1).values)) - target)[..., rows]


def fast_soft_rank(x: torch.Tensor, epsilon: float, rows: torch.Tensor) -> torch.Tensor:
    """Rank ascending by the Euclidean projection of x / epsilon onto the permutations of 1..n."""
    theta, order = torch.sort(x / epsilon, dim=-1, descending=True)
    solution = theta - _isotonic(means(theta) - means(_downwards(x)))
    return _by_item(solution, order)[..., rows]


def fast_soft_rank_kl(x: torch.Tensor, epsilon: float, rows: torch.Tensor) -> torch.Tensor:
    """Rank ascending by the entropic projection."""
    theta, order = torch.sort(x / epsilon, dim=-1, descending=True)
    solution = theta - _isotonic(log_sums(theta) - log_sums(_downwards(x).log()))
    return _by_item(solution.exp(), order)[..., rows]


def means(y: torch.Tensor) -> torch.Tensor:
    """Return the mean of each block: the pool of the Euclidean regularization."""
    total = torch.nn.functional.pad(y.cumsum(-1), (1, 0))
    index = torch.arange(y.shape[-1])
    length = (index - index.unsqueeze(-1) + 1).clamp(min=1)
    return (total[..., None, 1:] - total[..., :-1, None]) / length


def log_sums(y: torch.Tensor) -> torch.Tensor:
    """Return log sum exp of each block, whose first is its largest: the entropic pool."""
    first = y.unsqueeze(-1)
    empty = _empty(y.shape[-1])
    total = (y.unsqueeze(-2) - first).masked_fill(empty, -torch.inf).exp().cumsum(-1)
    return first + total.masked_fill(empty, 1.0).log()


def _isotonic(value: torch.Tensor) -> torch.Tensor:
    """Return the decreasing v_i = min over j <= i of max over k >= i of the value of block j..k."""
    empty = _empty(value.shape[-1])
    highest = value.masked_fill(empty, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    return highest.masked_fill(empty, torch.inf).amin(-2)


def _empty(n: int) -> torch.Tensor:
    """Return which blocks j..k are empty: (n, n)."""
    return torch.ones(n, n, dtype=torch.bool).tril(-1)


def _downwards(x: torch.Tensor) -> torch.Tensor:
    """Return n, ..., 1."""
    return torch.arange(x.shape[-1], 0, -1).to(x.dtype)


def _by_item(y: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Return the value of y at the position of each item."""
    return y.gather(-1, order.argsort(-1))


def _apply(P: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return P x for each row of the batch."""
    return (P @ x.unsqueeze(-1)).squeeze(-1)
