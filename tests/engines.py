"""The engines and what they compute, for the tests that compare one with another.

A family is a relaxation that more than one engine serves.
"""

import contextlib
import functools

import numpy as np
import pytest
import torch

import softorder as so
from inside import extension_module
from tolerances import as_numpy

needs_native = pytest.mark.skipif(extension_module.extension is None, reason="no native kernel")
METRICS = {"abs": 1.0, "square": 2.0}
FAMILIES = {
    "abs": so.SoftSort,
    "square": functools.partial(so.SoftSort, metric="square"),
    "neuralsort": so.NeuralSort,
}
# The dense engine comes last: it is the reference.
KERNELS = ["native", "portable", "tiled", "dense"]
_SERVING = {"abs": KERNELS, "square": KERNELS, "neuralsort": ["native", "tiled", "dense"]}
# How many positions a native block holds; up to UNCUT a run of "abs" is one (native/softsort.hpp).
BLOCK = 4096
UNCUT = 1 << 17


def _by_name(kernel, *values):
    marks = needs_native if kernel == "native" else ()
    return pytest.param(kernel, *values, id="-".join([kernel, *values]), marks=marks)


def _engines(choose):
    """Parametrise a test over the chosen engines of each family."""
    cases = [_by_name(k, family) for family in FAMILIES for k in choose(_SERVING[family])]
    return pytest.mark.parametrize(("kernel", "family"), cases)


every_engine = _engines(lambda serving: serving)
beside_dense = _engines(lambda serving: serving[:-1])
fast_engine = _engines(lambda serving: serving[:2])
every_family = pytest.mark.parametrize("family", FAMILIES)
# Of SoftSort alone, with one of these metrics.
every_kernel = pytest.mark.parametrize("kernel", [_by_name(k) for k in KERNELS])
fast_kernel = pytest.mark.parametrize("kernel", [_by_name(k) for k in KERNELS[:2]])
every_metric = pytest.mark.parametrize("metric", METRICS)


def make(family, tau):
    """Return the relaxation of a family."""
    return FAMILIES[family](tau)


def tensor(x, **kwargs):
    """Return a float64 tensor."""
    return torch.tensor(np.asarray(x), dtype=torch.float64, **kwargs)


PRODUCTS = {
    "P @ v": lambda x, how, v: how(x) @ v[..., None, :].mT,
    "P @ v, 2 features": lambda x, how, v: how(x) @ torch.stack([v, v**2], -1),
    "P @ v, 3 features": lambda x, how, v: how(x) @ torch.stack([v, v**2, v.sin()], -1),
    "P @ v, 17 features": lambda x, how, v: how(x) @ (v[..., None] * torch.arange(17)),
    "P.T @ u": lambda x, how, v: how(x).T @ v[..., None],
    "P.T @ u, 3 features": lambda x, how, v: how(x).T @ torch.stack([v, v**2, v.sin()], -1),
    "rank": lambda x, how, v: so.rank(x, how),
    "argsort": lambda x, how, v: so.argsort(x, how),
    "log_prob": lambda x, how, v: how(x).log_prob(v.argsort(-1)),
    "entropy": lambda x, how, v: how(x).entropy(),
    "sort": lambda x, how, v: so.sort(x, how),
    "sort by": lambda x, how, v: so.sort(v, how, by=x),
    "sort_scores": lambda x, how, v: how(x).sort_scores(),
    "topk": lambda x, how, v: so.topk(x, max(1, x.shape[-1] * 2 // 3), how),
    "topk_mask": lambda x, how, v: so.topk_mask(x, max(1, x.shape[-1] * 2 // 3), how),
    "quantile": lambda x, how, v: so.quantile(x, [0.1, 0.77], how),
    "straight_through": lambda x, how, v: how(x).straight_through() @ v[..., None],
}


def weigh(y):
    """Return sum(y * fixed uneven weights)."""
    return (y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)).sum()


def arguments(shape, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, v = (torch.randn(shape, generator=rng, dtype=dtype) for _ in range(2))
    tau = torch.rand(shape[:-1], generator=rng, dtype=dtype) + 0.3
    return x, v, tau


def results(kernel, product, x, v, tau, family, wanted=(True, True, True)):
    """Return a product and its gradients by scores, v and tau; None where there is none."""
    with so.config(kernel=kernel):
        leaves = [
            t.detach().clone().requires_grad_(w) for t, w in zip((x, v, tau), wanted, strict=True)
        ]
        y = PRODUCTS[product](leaves[0], make(family, leaves[2]), leaves[1])
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        if not y.requires_grad:
            return [y, *[None] * len(inputs)]
        return [y, *torch.autograd.grad(weigh(y), inputs, allow_unused=True)]


def assert_alike(ours, theirs, tolerance, least=0.0):
    """Assert equality up to the tolerance times the largest element, or `least` if that is more."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is None:
            continue
        assert a.dtype == b.dtype
        a, b = as_numpy(a), as_numpy(b)
        largest = np.abs(b[np.isfinite(b)]).max(initial=least)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)


@contextlib.contextmanager
def threads(number):
    """Let torch, and the native engine with it, have so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
