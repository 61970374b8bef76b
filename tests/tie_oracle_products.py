"""The products of the tie oracle, of a case that has its matrix."""

import math

import torch


def double(a):
    """Return a detached float64 copy."""
    return torch.as_tensor(a, dtype=torch.float64).detach().clone()


def _apply(case):
    valid = case.layout.valid.reshape(-1, *[1] * (case.extra.dim() - 2))
    return torch.einsum("oij,oj...->oi...", case.p, torch.where(valid, case.extra, 0.0))


def _transposed(case):
    taken = torch.arange(case.layout.n) < case.layout.count
    taken = taken.reshape(-1, *[1] * (case.extra.dim() - 2))
    return torch.einsum("oij,oi...->oj...", case.p, torch.where(taken, case.extra, 0.0))


def _average_position(case, positions):
    total = case.p.sum(1)
    average = torch.einsum("oij,i->oj", case.p, positions) / torch.where(total > 0, total, 1.0)
    return torch.where(case.layout.valid, average, 0.0)


def _rank(case):
    positions = case.layout.count - torch.arange(case.layout.n, dtype=torch.float64)
    return _average_position(case, positions)


def _rank_descending(case):
    return _average_position(case, 1 + torch.arange(case.layout.n, dtype=torch.float64))


def _argsort(case):
    index = torch.arange(case.layout.n, dtype=torch.float64)
    return case.ascending(torch.einsum("oij,j->oi", case.p, index))


def _sort_descending(case):
    soft = torch.einsum("oij,oj->oi", case.p, case.scores)
    return case.by_position(soft[:, case.layout.rows])


def _sort(case):
    return case.ascending(_sort_descending(case))


def sorted_scores(case):
    return case.by_position(case.block.gather(1, case.orders))


def _topk_mask(case):
    return case.p[:, : case.extra].sum(1)


def _topk(case):
    return _sort_descending(case)[:, : case.extra]


def _quantile(case):
    return _interpolate(_sort(case), case.layout.count, case.extra)


def _interpolate(ascending, count, q):
    """Interpolate between neighbouring positions, (number of orders, ...) as q has dimensions."""
    q = double(q)
    if count == 0:
        return torch.full((len(ascending), *q.shape), math.nan, dtype=torch.float64)
    at = q * (count - 1)
    low = at.floor()
    part = at - low
    below = ascending[:, low.long()]
    above = ascending[:, (low.long() + 1).clamp(max=count - 1)]
    return torch.where(part == 0, below, (1 - part) * below + part * above)


def _log_prob(case):
    rows = torch.arange(case.layout.count)
    items = torch.as_tensor(case.extra, dtype=torch.long)[: case.layout.count]
    return case.log_p[:, rows, items].sum(1)


def _entropy(case):
    return -(case.p * torch.where(torch.isfinite(case.log_p), case.log_p, 0.0)).sum(2)


def _matrix(case):
    return case.p


def _log_matrix(case):
    return case.log_p


def _knn(case):
    return _topk_mask(case) / max(min(case.extra, case.layout.count), 1)


MATRIX_PRODUCTS = {
    "apply": _apply,
    "transposed": _transposed,
    "rank": _rank,
    "rank_descending": _rank_descending,
    "argsort": _argsort,
    "sort": _sort,
    "sorted": sorted_scores,
    "topk_mask": _topk_mask,
    "topk": _topk,
    "quantile": _quantile,
    "log_prob": _log_prob,
    "entropy": _entropy,
    "matrix": _matrix,
    "log_matrix": _log_matrix,
    "knn": _knn,
}
