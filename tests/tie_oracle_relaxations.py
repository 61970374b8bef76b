"""The relaxations of the tie oracle, each its formula in torch."""

import itertools
import math

import numpy as np
import torch

INF = math.inf
# A level that is this close to another is a kink.
KINK = 1e-9


def _softsort(s, order, tau, p, metric):
    """softmax(-d(x_i, s_j) / tau), with x = s[order]."""
    x = s.gather(1, order)
    gap = x[:, :, None] - s[:, None, :]
    same = gap.detach() == 0
    if metric is not None:
        a = x[:, :, None].expand_as(gap)[~same]
        b = s[:, None, :].expand_as(gap)[~same]
        distance = torch.zeros_like(gap).masked_scatter(~same, metric(a, b))
    elif p == 1:
        place = order.argsort(1)[:, None, :]
        position = torch.arange(order.shape[1])[None, :, None]
        distance = torch.where(same, torch.sign(place - position) * gap, gap.abs())
    else:
        distance = torch.where(same, 0.0, torch.where(same, 1.0, gap).abs() ** p)
    return torch.log_softmax(-distance / tau[:, None, None], 2)


def _neuralsort(s, order, tau, p, metric):
    """softmax([(n + 1 - 2 i) s - A_s 1] / tau), A_s = |s_j - s_k|; torch has sign(0) = 0."""
    n = s.shape[1]
    scale = n + 1 - 2 * torch.arange(1, n + 1, dtype=torch.float64)
    spread = (s[:, :, None] - s[:, None, :]).abs().sum(2)
    logits = scale[None, :, None] * s[:, None, :] - spread[:, None, :]
    return torch.log_softmax(logits / tau[:, None, None], 2)


def _softrank(s, order, tau, p, metric):
    """Log of the probability that item i is the r-th largest, with noise of variance tau.

    Given the noise z of item i, in standard deviations, item j wins with probability
    Phi((s_j - s_i) / sigma - z), and the number of winners is a sum of independent coins. The
    trapezoidal rule integrates over z; for a smooth function it is exact to rounding.
    """
    n = s.shape[1]
    z = torch.arange(-14.0, 14.1, 0.2, dtype=torch.float64)
    density = 0.2 * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    u = (s[:, None, :, None] - s[:, :, None, None]) / tau.sqrt()[:, None, None, None] - z
    itself = torch.eye(n, dtype=torch.bool)[:, :, None]
    wins = torch.where(itself, 0.0, torch.special.ndtr(u))
    loses = torch.where(itself, 1.0, torch.special.ndtr(-u))
    number = torch.zeros(*s.shape, len(z), n, dtype=torch.float64)
    number[..., :1] = 1.0
    for j in range(n):
        more = torch.cat([torch.zeros_like(number[..., :1]), number[..., :-1]], -1)
        number = number * loses[:, :, j, :, None] + more * wins[:, :, j, :, None]
    chance = torch.einsum("ojzr,z->orj", number, density)
    return torch.where(chance > 0, torch.where(chance > 0, chance, 1.0).log(), -INF)


def _transport(s, order, tau, p, metric):
    """Log of the doubly stochastic P that maximises <P, y z^T> + tau * entropy, converged.

    y are evenly spaced targets from 1 to 0, z the standardised scores. P_i is the softmax over j
    of (y_i z_j + g_j) / tau, with g such that columns sum to 1. g is found without a gradient; one
    Newton step from there, with a fixed Jacobian, changes no value and has its derivative.
    """
    n = s.shape[1]
    if bool((s == s[:, :1]).all()):
        return torch.full((len(s), n, n), -math.log(max(n, 1)), dtype=torch.float64)
    z = (s - s.mean(1, keepdim=True)) / s.std(1, unbiased=False, keepdim=True)
    gain = torch.linspace(1.0, 0.0, n, dtype=torch.float64)[None, :, None] * z[:, None, :]
    scale = tau[:, None, None]
    potential, inverse = _column_potential(gain[0].detach(), float(tau[0].detach()))
    columns = torch.log_softmax((gain + potential) / scale, 2).exp().sum(1)
    potential = potential - (columns - 1.0) @ inverse
    return torch.log_softmax((gain + potential[:, None, :]) / scale, 2)


def _column_potential(gain, tau):
    """Return g with unit column sums of softmax_j((gain_ij + g_j) / tau), and d g / d column.

    A damped Newton method for the convex function sum_i tau logsumexp_j(...) - sum_j g_j, after
    some iterations of Sinkhorn.
    """

    def objective(g):
        return tau * torch.logsumexp((gain + g) / tau, 1).sum() - g.sum()

    g = torch.zeros(gain.shape[1], dtype=torch.float64)
    for _ in range(100):
        g = g - tau * torch.logsumexp(torch.log_softmax((gain + g) / tau, 1), 0)
    for _ in range(200):
        matrix = torch.softmax((gain + g) / tau, 1)
        error = matrix.sum(0) - 1.0
        # diag(sums of columns) - P^T P, whose rows sum to 0: nothing large is subtracted.
        beside = (matrix.T @ matrix).fill_diagonal_(0.0)
        hessian = (torch.diag(beside.sum(0)) - beside) / tau
        # A constant added to g changes nothing: the first stays as it is.
        inverse = torch.zeros_like(hessian)
        inverse[1:, 1:] = torch.linalg.inv(hessian[1:, 1:])
        if error.abs().max() < 1e-13:
            return g, inverse
        step, size = inverse @ error, 1.0
        while objective(g - size * step) > objective(g) + 1e-15 and size > 1e-6:
            size /= 2
        g = g - size * step
    if error.abs().max() > 1e-11:
        raise RuntimeError("The transport did not converge; use a larger epsilon.")
    return g, inverse


def _pairwise_ranks(above):
    """Return a function of the block's scores: 1 + sum over j != i of above(s_i - s_j, tau)."""

    def ranks(s, tau):
        others = ~torch.eye(s.shape[1], dtype=torch.bool)
        chance = above(s[:, :, None] - s[:, None, :], tau[:, None, None])
        return 1 + torch.where(others, chance, 0.0).sum(2)

    return ranks


def _fast_ranks(kl):
    """Return a function of the block's scores: projection of s / epsilon onto the ranks.

    For "kl" it is exp of the projection, in the sense of KL, onto the logarithms of the ranks. The
    ranks are those among the finite items, 1, 2, and so on: what is infinite leaves them untouched.
    """

    def ranks(s, tau):
        n = s.shape[1]
        order = torch.argsort(s.detach(), 1, descending=True)
        w = (1 + torch.arange(n, dtype=torch.float64)).flip(0).expand_as(s)
        theta = s.gather(1, order) / tau[:, None]
        out = _project(theta, w.log(), True).exp() if kl else _project(theta, w, False)
        return out.gather(1, order.argsort(1))

    return ranks


def fast_sort(case, kl):
    """-projection of (n, ..., 1) / epsilon onto the permutahedron of -s: ascending positions."""
    n = case.block.shape[1]
    w = torch.arange(n, 0, -1, dtype=torch.float64) / case.tau[:, None]
    out = -_project(w, -case.block.gather(1, case.orders.flip(1)), kl)
    return case.ascending(case.by_position(out.flip(1)))


def _project(a, b, kl):
    """Project a onto the permutahedron of b; both decreasing, (number of orders, n).

    The result is a - v. v is constant on pools: mean(a) - mean(b) there, or with logsumexp in the
    place of the mean for "kl"; it does not increase from pool to pool.
    """
    level = torch.logsumexp if kl else torch.mean
    parts = [a[:, :0]]
    for first, last in _pools(a[0].tolist(), b[0].tolist(), kl):
        x, y = a[:, first:last], b[:, first:last]
        parts.append(x - level(x, 1, keepdim=True) + level(y, 1, keepdim=True))
    return torch.cat(parts, 1)


def _pools(a, b, kl):
    """Return the pools (first, last) of the isotonic solution by pooling adjacent violators."""

    def level(first, last):
        x, y = np.array(a[first:last]), np.array(b[first:last])
        if kl:
            return np.logaddexp.reduce(x) - np.logaddexp.reduce(y)
        return x.mean() - y.mean()

    pools = []
    for i in range(len(a)):
        pools.append((i, i + 1))
        while len(pools) > 1 and level(*pools[-2]) < level(*pools[-1]):
            (first, _), (_, last) = pools[-2], pools[-1]
            pools[-2:] = [(first, last)]
    cuts = [(first, cut, last) for first, last in pools for cut in range(first + 1, last)]
    cuts += [(*before, after[1]) for before, after in itertools.pairwise(pools)]
    if any(abs(level(i, j) - level(j, k)) < KINK for i, j, k in cuts):
        raise ValueError("The isotonic solution has a kink here; move the scores or epsilon.")
    return pools


def own_ranks(case, ranks, descending):
    """Return the ranks of a relaxation that has its own, (number of orders, n)."""
    layout = case.layout
    low, high = (layout.top, layout.bottom) if descending else (layout.bottom, layout.top)
    out = torch.zeros(len(case.orders), layout.n, dtype=torch.float64)
    out[:, low] = (1 + len(low)) / 2
    out[:, high] = len(low) + len(layout.finite) + (1 + len(high)) / 2
    block = -case.block if descending else case.block
    out[:, layout.finite] = len(low) + ranks(block, case.tau)
    return out


MATRICES = {
    "softsort": _softsort,
    "neuralsort": _neuralsort,
    "softrank": _softrank,
    "transport": _transport,
}


RANKS = {
    "softrank": _pairwise_ranks(lambda gap, tau: torch.special.ndtr(gap / (2 * tau).sqrt())),
    "approximate_rank": _pairwise_ranks(lambda gap, tau: torch.sigmoid(gap / tau)),
    "fast_soft_rank_l2": _fast_ranks(kl=False),
    "fast_soft_rank_kl": _fast_ranks(kl=True),
}


FAST_SORTS = {"fast_soft_sort_l2": False, "fast_soft_sort_kl": True}


WITH_SORT = {"softsort", *FAST_SORTS}
