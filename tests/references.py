"""SoftSort and its gradients in NumPy, for many items: oracles.py a few rows at a time."""

import numpy as np
import torch

import softorder as so
from engines import METRICS
from tolerances import ENGINE_GRADIENTS, ENGINE_VALUES, as_numpy, assert_close

DISTRIBUTIONS = ["uniform", "normal", "cauchy", "clustered", "tied"]


def draw(kind, n, seed=0):
    """Return n float64 scores that float32 holds exactly."""
    rng = np.random.default_rng(seed)
    if kind == "uniform":
        s = rng.uniform(size=n)
    elif kind == "normal":
        s = rng.normal(size=n)
    elif kind == "cauchy":
        s = rng.standard_cauchy(size=n)
    elif kind == "clustered":
        s = rng.uniform(size=n)
        s[n // 2] = 1000.0
    else:
        s = np.round(rng.normal(size=n) * n / 12) / n * 12
    return s.astype(np.float32).astype(np.float64)


def spacing(kind, n):
    """Return about how far apart neighbours are where most items are."""
    return {"uniform": 1 / n, "clustered": 1 / n}.get(kind, 2.5 / n)


def reference(s, v, g, tau, p=1.0):
    """Return y = P v and the gradients of sum(g * y) by s, v and tau; v, g (n, f).

    In float64 and a few rows at a time: oracles.py for many items.
    """
    n = len(s)
    order = np.argsort(-s, kind="stable")
    x = s[order]
    y, to_s, to_x, to_v, to_tau = np.empty_like(v), np.zeros(n), np.zeros(n), np.zeros_like(v), 0.0
    step = max(1, (1 << 20) // n)
    for at in range(0, n, step):
        i = slice(at, at + step)
        u = x[i, None] - s
        d = (np.abs(u) if p == 1 else u * u) / tau
        weights = np.exp(-d)
        weights /= weights.sum(-1, keepdims=True)
        y[i] = weights @ v
        to_v += weights.T @ g[i]
        inner = weights * (g[i] @ v.T - (g[i] * y[i]).sum(-1, keepdims=True))
        to_tau += (inner * d).sum() / tau
        inner *= np.where(u == 0, tie_slopes(x)[i, None], np.sign(u)) if p == 1 else 2 * u
        to_s += inner.sum(0) / tau
        to_x[i] = -inner.sum(-1) / tau
    # A position shares its gradient among all that are tied there.
    to_s[order] += averaged(x, to_x)
    return y, to_s, to_v, to_tau


def averaged(s, gradient):
    _, group, sizes = np.unique(s, return_inverse=True, return_counts=True)
    return (np.bincount(group, gradient) / sizes)[group]


def tie_slopes(x):
    """Return the mean slope of |x_i - s_j| at x_i = s_j over all orders of the ties of sorted x."""
    _, first, size = np.unique(-x, return_index=True, return_counts=True)
    place = np.arange(len(x)) - np.repeat(first, size)
    others = np.repeat(size, size) - 1
    return np.where(others == 0, 0.0, 1 - 2 * place / np.maximum(others, 1))


def run(kernel, s, v, g, tau, metric, dtype):
    """Return what `reference` returns, by softorder; v None sorts the scores themselves."""
    with so.config(kernel=kernel):
        s = torch.tensor(s, dtype=dtype, requires_grad=True)
        tau = torch.tensor(tau, dtype=torch.float64, requires_grad=True)
        g = torch.as_tensor(g, dtype=dtype)
        how = so.SoftSort(tau, metric)
        if v is None:
            y = so.sort(s, how, descending=True)
            return y, *torch.autograd.grad(y, (s, tau), g[..., 0])
        v = torch.tensor(v, dtype=dtype, requires_grad=True)
        y = how(s) @ v
        return y, *torch.autograd.grad(y, (s, v, tau), g)


def assert_gradient(actual, expected, tolerance, natural):
    """Assert equality relative to the largest, but not below what is left of nothing.

    `natural` is the size that a gradient has where neighbours overlap (that of g v over the scale).
    Where no weights overlap, all of it underflows, and what the largest element then is (1e-20,
    1e-300) says nothing; where they all overlap it is a difference of equal numbers.
    """
    actual, expected = as_numpy(actual), as_numpy(expected)
    largest = np.abs(expected).max(initial=0.0)
    scale = max(largest, 1e-3 * natural)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


def check(kernel, s, v, g, tau, metric, dtype):
    """Assert that a kernel gives the reference, at the accuracy that issue 3 promises."""
    p = METRICS[metric]
    y, to_s, to_v, to_tau = reference(s, s[:, None] if v is None else v, g, tau, p)
    values = ENGINE_VALUES[metric, dtype]
    gradients = ENGINE_GRADIENTS[metric, dtype]
    ours = run(kernel, s, v, g, tau, metric, getattr(torch, dtype))
    scale = tau ** (1 / p)
    natural = np.abs(s if v is None else v).max() * np.abs(g).max() / scale
    if v is None:
        assert_close(ours[0], y[..., 0], values)
        assert_gradient(ours[1], to_s + to_v[..., 0], gradients, natural)
    else:
        assert_close(ours[0], y, values)
        assert_gradient(ours[1], to_s, gradients, natural)
        assert_gradient(ours[2], to_v, gradients, 0.0)
    assert_gradient(ours[-1], to_tau, gradients, natural * scale / tau * len(s) ** 0.5)


def rows_of(s, x, tau, p):
    """Return the dense rows of P for the sorted scores x."""
    weights = np.exp(-(np.abs(np.asarray(x)[:, None] - s) ** p) / tau)
    return weights / weights.sum(-1, keepdims=True)
