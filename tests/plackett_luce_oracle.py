"""Plackett-Luce by its definition: a loop over the items, and sums over all permutations."""

import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import softorder as so
from tolerances import as_numpy

INF, NAN = math.inf, math.nan
SCORES = [0.3, -1.2, 0.9, 0.1]
OTHER = [-0.4, 0.5, 0.2, 0.0]
DRAWS = 100_000
SIGNIFICANCE = 1e-3
FRAMEWORKS = ["numpy", "torch"]
both = pytest.mark.parametrize("framework", FRAMEWORKS)


def array(x, framework, dtype="float64"):
    x = np.asarray(x)
    if x.dtype.kind == "f" and framework == "numpy":
        return x.astype(dtype)
    x = torch.as_tensor(x)
    if framework == "numpy":
        return x.numpy()
    return x.to(getattr(torch, dtype)) if x.is_floating_point() else x


def source(framework, seed=20200713):
    if framework == "numpy":
        return np.random.default_rng(seed)
    return torch.Generator().manual_seed(seed)


def permutations(n):
    return np.array(list(itertools.permutations(range(n)))).reshape(-1, n)


def log_sum_exp(x):
    largest = max(x)
    return largest + math.log(math.fsum(math.exp(each - largest) for each in x))


def oracle(scores, permutation, mask=None):
    """The definition: one item after the other, each from the best kind of those that are left."""
    left = [j for j in range(len(scores)) if mask is None or mask[j]]
    if any(math.isnan(scores[j]) for j in left):
        return NAN
    total = 0.0
    for item in permutation[: len(left)]:
        if item not in left:
            return -INF
        best = max(scores[j] for j in left)
        kind = [j for j in left if scores[j] == best] if math.isinf(best) else left
        kind = [j for j in kind if math.isinf(best) or scores[j] != -INF]
        if item not in kind:
            return -INF
        weights = {j: 0.0 if math.isinf(best) else scores[j] for j in kind}
        total += weights[item] - log_sum_exp(list(weights.values()))
        left.remove(item)
    return total


def oracle_rows(scores, permutation, mask=None):
    """The oracle for batches: permutation (..., n), the others broadcast to its shape."""
    permutation = np.asarray(permutation)
    scores = np.broadcast_to(scores, permutation.shape)
    mask = np.broadcast_to(True if mask is None else mask, permutation.shape)
    out = [oracle(scores[i], permutation[i], mask[i]) for i in np.ndindex(permutation.shape[:-1])]
    return np.array(out).reshape(permutation.shape[:-1])


def check_frequencies(drawn, log_p, table):
    """Compare how often each permutation of the table was drawn with its likelihood."""
    drawn, chance = as_numpy(drawn).reshape(-1, table.shape[-1]), np.exp(as_numpy(log_p))
    base = table.shape[-1] ** np.arange(table.shape[-1])
    seen = np.sum((drawn @ base)[:, None] == table @ base, axis=0)
    assert seen.sum() == len(drawn)
    assert np.all(seen[chance == 0] == 0)
    expected = chance[chance > 0] * len(drawn)
    statistic = np.sum((seen[chance > 0] - expected) ** 2 / expected)
    assert statistic < scipy.stats.chi2.isf(SIGNIFICANCE, max(len(expected) - 1, 1))


def all_log_probs(scores):
    return so.PlackettLuce(scores).log_prob(torch.as_tensor(permutations(4)))


def exact_kl(p, q):
    log_p, log_q = all_log_probs(p), all_log_probs(q)
    return (log_p.exp() * (log_p - log_q)).sum()
