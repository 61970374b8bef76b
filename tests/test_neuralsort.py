"""NeuralSort: the paper's formula, and each of its kernels against the others."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

import operator_oracles as oracles
import softorder as so
import strategies as our
from forks import is_true_in_a_forked_child, needs_fork, passes_in_a_fresh_process
from inside import NEURALSORT, PermutationRelaxation, extension_module, native, tiled
from tolerances import (
    GRADIENTS,
    SQUARE_VALUES,
    VALUES,
    as_numpy,
    assert_close,
    gradcheck,
    gradgradcheck,
)

needs_native = pytest.mark.skipif(native.extension is None, reason="no native kernel")
NATIVE = pytest.param("native", marks=needs_native)
KERNELS = [NATIVE, "tiled", "dense"]
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
fast_kernel = pytest.mark.parametrize("kernel", KERNELS[:2])


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 1 << 10)
    monkeypatch.setattr(tiled, "WASTE", 1 << 6)


def tensor(x, **kwargs):
    return torch.tensor(np.asarray(x), dtype=torch.float64, **kwargs)


def weigh(y):
    """Return sum(y * fixed uneven weights)."""
    return (y * torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)).sum()


def arguments(shape, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x, v = (torch.randn(shape, generator=rng, dtype=dtype) for _ in range(2))
    tau = torch.rand(shape[:-1], generator=rng, dtype=dtype) + 0.3
    return x, v, tau


PRODUCTS = {
    "P @ v": lambda x, how, v: how(x) @ v[..., None],
    "P @ v, 3 features": lambda x, how, v: how(x) @ torch.stack([v, v**2, v.sin()], -1),
    "P @ v, 17 features": lambda x, how, v: how(x) @ (v[..., None] * torch.arange(17)),
    "P.T @ u": lambda x, how, v: how(x).T @ v[..., None],
    "P.T @ u, 3 features": lambda x, how, v: how(x).T @ torch.stack([v, v**2, v.sin()], -1),
    "sort": lambda x, how, v: so.sort(x, how),
    "sort_scores": lambda x, how, v: how(x).sort_scores(),
    "rank": lambda x, how, v: so.rank(x, how),
    "quantile": lambda x, how, v: so.quantile(x, [0.1, 0.77], how),
    "topk_mask": lambda x, how, v: so.topk_mask(x, max(1, x.shape[-1] // 3), how),
    "log_prob": lambda x, how, v: how(x).log_prob(v.argsort(-1)),
    "entropy": lambda x, how, v: how(x).entropy(),
}
product = pytest.mark.parametrize("product", PRODUCTS)


def results(kernel, product, x, v, tau, **settings):
    """Return a product and its gradients by scores, v and tau; None where there is none."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, v, tau)]
    with so.config(kernel=kernel):
        y = PRODUCTS[product](leaves[0], so.NeuralSort(leaves[2]), leaves[1])
        return [y, *torch.autograd.grad(weigh(y), leaves, allow_unused=True)]


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


# ---------------------------------------------------------------- the formula


@given(our.scores(infinite=True), our.temperatures)
def test_the_matrix_is_the_oracles(s, tau):
    expected = oracles.neuralsort_matrix(s, tau)
    assert_close(so.NeuralSort(tau)(tensor(s)).matrix(), expected, VALUES)
    assert_close(so.NeuralSort(tau)(s).matrix(), expected, VALUES)


@given(our.masked_scores(infinite=True), our.temperatures)
def test_products_with_masks_and_infinities_are_the_oracles(masked, tau):
    s, mask = masked
    P = oracles.neuralsort_matrix(s, tau, mask)
    v = np.cos(np.arange(len(s)) * 1.7)
    u = np.where(np.arange(len(s)) < mask.sum(), v, 0)
    for kernel in (None, "tiled", "dense"):
        with so.config(kernel=kernel):
            ours = so.NeuralSort(tau)(tensor(s), mask=torch.tensor(mask))
            numpys = so.NeuralSort(tau)(s, mask=mask)
            for given, matrix in ((numpys, P), (numpys.T, P.T)):
                assert_close(given @ (v if given is numpys else u), matrix @ v, VALUES)
            assert_close(ours @ tensor(v), P @ v, VALUES)
            assert_close(ours.T @ tensor(u), P.T @ u, VALUES)


def test_the_logits_of_four_scores_symbol_by_symbol():
    """(n + 1 - 2i) s_j - sum_k |s_j - s_k| for s1 >= s2 >= s3 >= s4, n = 4."""
    s = s1, s2, s3, s4 = 2.5, 1.25, 1.0, -0.75
    logits = np.array(
        [
            [s2 + s3 + s4, -s1 + 2 * s2 + s3 + s4, -s1 - s2 + 4 * s3 + s4, -s1 - s2 - s3 + 6 * s4],
            [-2 * s1 + s2 + s3 + s4, -s1 + s3 + s4, -s1 - s2 + 2 * s3 + s4, -s1 - s2 - s3 + 4 * s4],
            [-4 * s1 + s2 + s3 + s4, -s1 - 2 * s2 + s3 + s4, -s1 - s2 + s4, -s1 - s2 - s3 + 2 * s4],
            [-6 * s1 + s2 + s3 + s4, -s1 - 4 * s2 + s3 + s4, -s1 - s2 - 2 * s3 + s4, -s1 - s2 - s3],
        ]
    )
    np.testing.assert_allclose(oracles.neuralsort_logits(s), logits)
    largest = logits.max(-1, keepdims=True)
    assert (largest[:, 0] == np.diag(logits)).all()
    items = [2, 0, 3, 1]  # the scores come in any order
    for kernel, tau in itertools.product((None, "tiled", "dense"), (1.0, 0.2, 7.0)):
        with so.config(kernel=kernel):
            log_p = so.NeuralSort(tau)(np.array(s)[items]).log_matrix()
        ours = log_p - log_p.max(-1, keepdims=True)
        assert_close(ours, ((logits - largest) / tau)[:, items], VALUES)


def literal(s, v, g, tau):
    """Return y = P v, and the gradients of sum(g y) by s, v and tau: the paper's, in 50 digits."""
    with mpmath.workdps(50):
        n, s, v, g = len(s), *(mpmath.matrix([mpmath.mpf(float(a)) for a in x]) for x in (s, v, g))
        tau = mpmath.mpf(tau)
        total = [mpmath.fsum(abs(a - b) for b in s) for a in s]
        y, to_s, to_v, to_tau = [], [mpmath.mpf(0)] * n, [mpmath.mpf(0)] * n, mpmath.mpf(0)
        to_total = [mpmath.mpf(0)] * n
        for i in range(n):
            logits = [((n - 1 - 2 * i) * s[j] - total[j]) / tau for j in range(n)]
            weights = [mpmath.exp(logit - max(logits)) for logit in logits]
            z = mpmath.fsum(weights)
            p = [w / z for w in weights]
            y.append(mpmath.fsum(a * b for a, b in zip(p, v, strict=True)))
            by_logit = [g[i] * p[j] * (v[j] - y[i]) for j in range(n)]
            for j in range(n):
                to_v[j] += g[i] * p[j]
                to_tau -= by_logit[j] * logits[j] / tau
                to_s[j] += by_logit[j] * (n - 1 - 2 * i) / tau
                to_total[j] -= by_logit[j] / tau
        for j, k in itertools.product(range(n), repeat=2):
            sign = mpmath.sign(s[j] - s[k])
            to_s[j] += to_total[j] * sign
            to_s[k] -= to_total[j] * sign
        return [np.array([float(a) for a in x]) for x in (y, to_s, to_v, [to_tau])]


SCORES = {
    "normal": lambda rng: rng.normal(size=24),
    "tied": lambda rng: np.round(rng.normal(size=24) * 3) / 3,
    "far from zero": lambda rng: 1e6 + rng.normal(size=24),
    "an outlier": lambda rng: np.append(rng.normal(size=23), 1e4),
}


@every_kernel
@pytest.mark.parametrize("tau", [1e-9, 1e-3, 0.1, 1.0, 100.0, 1e6])
@pytest.mark.parametrize("kind", SCORES)
def test_values_and_gradients_are_the_literal_formula(kernel, tau, kind):
    """To the last digits: no cost is a difference of large numbers."""
    rng = np.random.default_rng(1)
    s = SCORES[kind](rng).astype(np.float32).astype(np.float64)
    v, g = rng.normal(size=(2, 24)).astype(np.float32).astype(np.float64)
    expected = literal(s, v, g, tau)
    for dtype in (torch.float64, torch.float32):
        leaves = [
            torch.tensor(a, dtype=t, requires_grad=True)
            for a, t in ((s, dtype), (v, dtype), (tau, torch.float64))
        ]
        with so.config(kernel=kernel):
            y = so.NeuralSort(leaves[2])(leaves[0]) @ leaves[1]
        found = [y, *torch.autograd.grad(y, leaves, torch.tensor(g, dtype=dtype))]
        # Of the size that a gradient has where neighbours overlap, as tied ones always do.
        overlap = 1.0 if kind in ("tied", "far from zero") else 1e-3
        natural = [0.0, overlap / tau, 0.0, overlap / tau]
        if dtype == torch.float64:
            loss = 1.0 if kernel == "native" else 8.0
            tolerance = [1e-14 * loss, 2e-13 * loss, 1e-14 * loss, 2e-13 * loss]
        else:
            # The temperature is rounded too.
            tolerance = [2e-6, 2e-5, 2e-5, 2e-5]
        for a, b, scale, least in zip(found, expected, tolerance, natural, strict=True):
            largest = max(np.abs(b).max(), least)
            np.testing.assert_allclose(
                as_numpy(a).reshape(-1), b, rtol=0, atol=scale * largest, err_msg=str(dtype)
            )


# ---------------------------------------------------------------- what the SoftSort paper proves


@given(our.scores(min_size=1), our.temperatures)
def test_invariance_neuralsort_of_s_is_that_of_sorted_s_with_columns_permuted(s, tau):
    """f(s) = f(sort(s)) P_argsort(s); of tied scores any order will do."""
    order = np.argsort(-s, kind="stable")
    for kernel in (None, "tiled", "dense"):
        with so.config(kernel=kernel):
            of_sorted = so.NeuralSort(tau)(s[order]).matrix()
            found = so.NeuralSort(tau)(s).matrix()
        assert_close(found, of_sorted @ np.eye(len(s))[order], VALUES)


@st.composite
def equally_spaced(draw):
    """Return scores b - a k in any order, and a."""
    n, a = draw(st.integers(2, 12)), draw(st.sampled_from([0.125, 0.5, 1.25, 4.0]))
    places = draw(st.permutations(range(n)))
    return draw(st.sampled_from([-30.0, 0.0, 7.0])) - a * np.array(places, dtype=float), a


@given(equally_spaced(), st.sampled_from([0.2, 1.0, 5.0]))
def test_rows_of_equally_spaced_scores_are_gaussian_densities_of_variance_half_a_tau(spaced, tau):
    """The paper prints the variance a tau; by its own formula it is half of that."""
    from scipy.stats import norm

    s, a = spaced
    means = np.sort(s)[::-1, None]
    log_density = norm.logpdf(s, loc=means, scale=np.sqrt(a * tau / 2))
    expected = np.exp(log_density - log_density.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    for kernel in (None, "tiled", "dense"):
        with so.config(kernel=kernel):
            P = so.NeuralSort(tau)(s)
            assert_close(P.matrix(), expected, VALUES)
            assert_close(P @ np.cos(s), expected @ np.cos(s), VALUES)


@given(equally_spaced(), st.sampled_from([0.2, 1.0, 5.0]))
def test_softsort_square_at_a_tau_is_neuralsort_at_tau_for_equally_spaced_scores(spaced, tau):
    s, a = spaced
    square, neural = so.SoftSort(a * tau, "square")(s), so.NeuralSort(tau)(s)
    assert_close(square.matrix(), neural.matrix(), SQUARE_VALUES)
    assert_close(square @ np.cos(s), neural @ np.cos(s), SQUARE_VALUES)


def test_softsort_square_is_not_neuralsort_at_other_spacings_nor_in_its_gradient():
    equal = tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
    sums = [weigh(how(equal).matrix()) for how in (so.SoftSort(1.0, "square"), so.NeuralSort(1.0))]
    square, neural = (torch.autograd.grad(total, equal)[0] for total in sums)
    assert (square - neural).abs().max() > 0.01
    uneven = tensor([0.0, 1.0, 2.0, 5.0])
    square, neural = (
        how(uneven).matrix() for how in (so.SoftSort(1.0, "square"), so.NeuralSort(1.0))
    )
    assert (square - neural).abs().max() > 0.01


# ---------------------------------------------------------------- every product, every kernel


@fast_kernel
@product
@pytest.mark.parametrize("n", [1, 2, 3, 8, 17, 100])
def test_every_product_is_the_dense_one(kernel, product, n):
    given = arguments((n,), seed=n)
    ours, theirs = (results(k, product, *given) for k in (kernel, "dense"))
    assert_alike(ours, theirs, 1e-11, least=1e-3 if n == 1 else 0.0)


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param("native", torch.float32, marks=needs_native),
        pytest.param("native", torch.float64, marks=needs_native),
        ("tiled", torch.float64),
    ],
)
@pytest.mark.parametrize("product", ["P @ v, 3 features", "P.T @ u", "sort", "log_prob"])
@pytest.mark.parametrize("n", [257, 1030])
def test_long_rows_are_the_dense_ones(kernel, product, n, dtype, monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 1 << 18)
    x, v, tau = arguments((2, n), dtype, seed=n)
    for factor in (1 / 8, 100.0):
        given = x, v, tau * factor
        expected = results("dense", product, *(t.double() for t in given))
        found = results(kernel, product, *given)
        for table, a, b in zip([VALUES] + [GRADIENTS] * 3, found, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                # The rounding of dense logits, which are differences, is more than the table has.
                assert_close(a, b, max(table[str(dtype)[6:]], 1e-10))


@fast_kernel
@product
@pytest.mark.parametrize("shape", [(3, 5), (2, 0, 5), (2, 3, 5)])
def test_batches(kernel, product, shape):
    given = arguments(shape)
    ours, theirs = (results(k, product, *given) for k in (kernel, "dense"))
    assert_alike(ours, theirs, 1e-11)


@every_kernel
def test_values_broadcast_over_the_batch_and_the_batch_over_values(kernel):
    x, v, tau = arguments((2, 6))
    wide = torch.randn(4, 1, 6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for values in (v[0][:, None], wide, wide[0], wide.expand(4, 2, 6, 3)):
        found = []
        for k in (kernel, "dense"):
            leaves = [t.clone().requires_grad_() for t in (x, values, tau)]
            with so.config(kernel=k):
                P = so.NeuralSort(leaves[2])(leaves[0])
                y = torch.cat([P @ leaves[1], P.T @ leaves[1]])
            found.append([y, *torch.autograd.grad(weigh(y), leaves)])
        assert_alike(*found, 1e-10)


@needs_native
def test_strides_do_not_matter():
    x, v, tau = arguments((6, 8))
    for s, w in (
        (x.mT, v.mT),
        (x[:, ::2], v[:, ::2]),
        (x[0].expand(3, 8), v[0].expand(3, 8)),
        (x.flip(-1)[1:], v.flip(0)[1:]),
    ):
        for name in ("P @ v", "P.T @ u", "log_prob", "sort"):
            ours = PRODUCTS[name](s, so.NeuralSort(tau[0]), w)
            plain = PRODUCTS[name](s.contiguous(), so.NeuralSort(tau[0]), w.contiguous())
            assert torch.equal(ours, plain)
    leaf = x[:4, :4].clone().requires_grad_()
    (ours,) = torch.autograd.grad(weigh(so.sort(leaf, so.NeuralSort(0.5)).mT), leaf)
    with so.config(kernel="dense"):
        (theirs,) = torch.autograd.grad(weigh(so.sort(leaf, so.NeuralSort(0.5)).mT), leaf)
    assert_close(ours, theirs, 1e-11)


MASK = torch.tensor([[True] * 6, [False, True, True, False, True, True], [False] * 6])


@fast_kernel
@pytest.mark.parametrize("hole", [0.0, torch.nan, torch.inf, -torch.inf])
def test_masks(kernel, hole):
    x, v, tau = arguments((3, 6))
    x, v = torch.where(MASK, x, hole), torch.where(MASK, v, hole)
    found = []
    for k in (kernel, "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        s, w, t = leaves
        with so.config(kernel=k):
            how = so.NeuralSort(t)
            P = how(s, mask=MASK)
            y = torch.stack(
                [
                    so.sort(w, how, by=s, mask=MASK),
                    P.sort_scores(),
                    (P.T @ w.nan_to_num(0, 0, 0)[..., None])[..., 0],
                    so.rank(s, how, mask=MASK),
                    P.entropy(),
                    P.log_prob(P.order)[:, None].expand(3, 6),
                ]
            )
            first = torch.autograd.grad(weigh(y), leaves, create_graph=True)
            second = torch.autograd.grad(sum(weigh(g.square()) for g in first), leaves)
        found.append([y, *first, *second])
    assert_alike(*found, 1e-9)


@fast_kernel
def test_infinite_scores_and_a_row_with_nan(kernel):
    x, v, tau = arguments((4, 7))
    x[0, [1, 4]], x[0, 2], x[1] = torch.inf, -torch.inf, torch.inf
    x[2, 3] = torch.nan
    found = []
    for k in (kernel, "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        s, w, t = leaves
        with so.config(kernel=k):
            how = so.NeuralSort(t)
            P = how(s)
            y = torch.stack(
                [
                    so.sort(w, how, by=s),
                    (P.T @ w[..., None])[..., 0],
                    P.log_prob(P.order)[:, None].expand(4, 7),
                ]
            )
            z = so.sort(s, how)
            loss = weigh(y[:, [0, 1, 3]]) + weigh(torch.where(z.isfinite(), z, 0.0))
            found.append([y, z, *torch.autograd.grad(loss, leaves)])
            # An item of another block has no probability at all.
            assert P.log_prob(P.order.flip(-1))[0] == -torch.inf
    assert torch.isnan(found[0][0][:, 2]).all()
    assert_alike(*found, 1e-10)


@fast_kernel
def test_infinite_values(kernel):
    """Zero times infinity is zero; one that is reached with any weight above it is infinite."""
    x = torch.tensor([[0.0, 0.1, 200.0, 200.2, 400.0, -300.0, 50.0]], dtype=torch.float64)
    inf = torch.inf
    v = torch.tensor([[1.0, inf, 2.0, 3.0, -inf, 7.0, 0.0], [inf, -inf, 1.0, 2.0, 3.0, 4.0, 5.0]])
    for dtype in (torch.float64, torch.float32):
        found = []
        for k in (kernel, "dense"):
            leaves = [x.to(dtype).requires_grad_(), v.to(dtype)[..., None].requires_grad_()]
            with so.config(kernel=k):
                P = so.NeuralSort(0.8)(leaves[0])
                y = torch.cat([P @ leaves[1], P.T @ leaves[1]])
            g = torch.autograd.grad(weigh(torch.where(y.isfinite(), y, 0.0)), leaves)
            found.append([y, *g])
        assert torch.isinf(found[0][0]).any()
        assert torch.isfinite(found[0][0]).any()
        assert_alike(*found, GRADIENTS[str(dtype)[6:]])


@every_kernel
def test_v_may_be_wider_than_the_scores_or_whole_numbers(kernel):
    x, v, _ = arguments((2, 6), torch.float32)
    with so.config(kernel="dense"):
        expected = so.NeuralSort(0.5)(x.double()) @ v.double()[..., None]
    with so.config(kernel=kernel):
        P = so.NeuralSort(0.5)(x)
        assert (P @ v.double()[..., None]).dtype == torch.float64
        assert_close(P @ v.double()[..., None], expected, 1e-6)
        assert (so.NeuralSort(0.5)(x.double()) @ v[..., None]).dtype == torch.float64
        assert_close(P @ torch.arange(6), P @ torch.arange(6.0), 1e-6)
        assert_close(P.T @ torch.arange(6), P.T @ torch.arange(6.0), 1e-6)


@every_kernel
def test_empty_things(kernel):
    how = so.NeuralSort(0.5)
    with so.config(kernel=kernel):
        for shape in ((0,), (3, 0), (0, 0), (0, 4), (2, 0, 4)):
            x = torch.zeros(shape, requires_grad=True)
            y = so.sort(x, how)
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            assert y.shape == g.shape == shape
            assert (how(x).T @ x[..., None].expand(*shape, 0)).shape == (*shape, 0)
            log_p = how(x).log_prob(how(x).order)
            assert log_p.shape == shape[:-1]
            torch.autograd.grad(log_p.sum(), x, create_graph=True)
        x = torch.randn(3, 5, requires_grad=True)
        y = how(x) @ torch.zeros(3, 5, 0)
        assert y.shape == (3, 5, 0)
        y.sum().backward()
        assert not x.grad.any()


@needs_native
def test_numpy_gives_what_torch_gives():
    x, v, tau = arguments((2, 30))
    how, other = so.NeuralSort(tau), so.NeuralSort(tau.numpy())
    P, Q = how(x), other(x.numpy())
    assert type(Q._operator) is native.Native
    assert_close(Q @ v.numpy()[..., None], P @ v[..., None], 1e-13)
    assert_close(Q.T @ v.numpy()[..., None], P.T @ v[..., None], 1e-13)
    assert_close(so.sort(x.numpy(), other), so.sort(x, how), 1e-13)
    assert_close(Q.log_prob(P.order.numpy()), P.log_prob(P.order), 1e-13)
    assert_close(Q.entropy(), P.entropy(), 1e-12)


@needs_native
@pytest.mark.parametrize("few", [1, 1 << 30])
def test_a_few_rows_are_the_rows_of_all(few, monkeypatch):
    """Alone where they are few, out of all of them otherwise."""
    monkeypatch.setattr(native, "FEW", few)
    x, v, tau = arguments((2, 60))
    rows = torch.tensor([0, 7, 7, -1])
    found = []
    for kernel in ("native", "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        with so.config(kernel=kernel):
            P = so.NeuralSort(leaves[2])(leaves[0])
            y = P.apply(leaves[1], rows=rows)
            w = P.T.apply(leaves[1][:, :4], rows=rows)
        found.append([y, w, *torch.autograd.grad(weigh(y) + weigh(w), leaves)])
    assert_alike(*found, 1e-11)


@pytest.mark.parametrize("tau", [1e-6, 1e-2, 0.3])
@pytest.mark.parametrize("ends", [False, True])
def test_tiles_leave_out_nothing_that_counts(tau, ends):
    x, v, _ = arguments((2, 150))
    if ends:
        x[0, 3:30], x[1, 60:90] = torch.inf, -torch.inf
    found = []
    for kernel in ("tiled", "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v)]
        with so.config(kernel=kernel):
            P = so.NeuralSort(tau)(leaves[0])
            y = P @ leaves[1][..., None] + P.T @ leaves[1][..., None]
        if kernel == "tiled":
            windows = [window.stop - window.start for _, window in P._operator._bands()]
            assert max(windows) < 150
        found.append([y, *torch.autograd.grad(weigh(y), leaves)])
    assert_alike(found[0][:1], found[1][:1], 1e-12)
    # Infinite scores are tied: what cancels there is of the size of 1 / tau.
    assert_alike(found[0][1:], found[1][1:], 1e-11, least=1 / tau)


# ---------------------------------------------------------------- torch


@every_kernel
@pytest.mark.parametrize("name", ["P @ v, 3 features", "P.T @ u", "sort", "log_prob"])
def test_derivatives_of_every_kind(kernel, name, monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 16)
    inputs = [t.clone().requires_grad_() for t in arguments((4,))]

    def function(x, v, tau):
        with so.config(kernel=kernel):
            return PRODUCTS[name](x, so.NeuralSort(tau), v)

    assert gradcheck(function, inputs, check_forward_ad=True)
    assert gradgradcheck(function, inputs)


@every_kernel
def test_jacobians_and_forward_mode_agree(kernel):
    x, v, tau = arguments((6,))

    def function(x):
        how = so.NeuralSort(tau)
        return so.sort(x, how) + so.rank(x, how) + so.sort(v, how, by=x)

    with so.config(kernel="dense"):
        expected, second = jacrev(function)(x), hessian(lambda x: weigh(function(x)))(x)
    with so.config(kernel=kernel):
        assert_close(jacrev(function)(x), expected, 1e-10)
        assert_close(jacfwd(function)(x), expected, 1e-10)
        functional = torch.autograd.functional.jacobian
        assert_close(functional(function, x, vectorize=True), expected, 1e-10)
        assert_close(jvp(function, (x,), (v,))[1], expected @ v, 1e-10)
        assert_close(hessian(lambda x: weigh(function(x)))(x), second, 1e-8)


@every_kernel
def test_vmap_over_scores_values_and_temperatures(kernel):
    x, v, tau = arguments((3, 5))

    def function(x, v, tau):
        how = so.NeuralSort(tau)
        return so.sort(v, how, by=x) + so.rank(x, how)

    with so.config(kernel=kernel):
        for in_dims in itertools.product((0, None), repeat=3):
            if in_dims == (None, None, None):
                continue
            given = [t if d == 0 else t[0] for t, d in zip((x, v, tau), in_dims, strict=True)]
            rows = [
                [t[i] if d == 0 else t for t, d in zip(given, in_dims, strict=True)]
                for i in range(3)
            ]
            one_by_one = torch.stack([function(*row) for row in rows])
            assert_close(vmap(function, in_dims)(*given), one_by_one, 1e-10)
        P = so.NeuralSort(0.5)(x[0])  # made outside, used inside
        assert_close(vmap(lambda v: P @ v)(v), torch.stack([P @ row for row in v]), 1e-10)


@fast_kernel
def test_compiled_in_one_graph_forward_and_backward(kernel):
    torch._dynamo.reset()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 2] = False

    def function(x, v, tau):
        how = so.NeuralSort(tau)
        P = how(x)
        y = so.sort(x, how, mask=mask) + so.sort(v, how, by=x) + (P.T @ v[..., None])[..., 0]
        return y + so.rank(x, so.NeuralSort(0.5)) + P.log_prob(P.order)[:, None] + P.entropy()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = []
    with so.config(kernel=kernel):
        for f in (compiled, function):
            leaves = [t.clone().requires_grad_() for t in arguments((2, 6))]
            y = f(*leaves)
            found.append([y, *torch.autograd.grad(weigh(y), leaves)])
    assert_alike(*found, 1e-10)


@every_kernel
def test_autocast_inference_mode_and_subclasses(kernel):
    class Mine(torch.Tensor):
        pass

    x = arguments((2, 9), torch.float32)[0]
    how = so.NeuralSort(0.5)
    with so.config(kernel=kernel):
        plain = so.sort(x, how)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert_close(so.sort(x, how), plain, 1e-6)
        with torch.inference_mode():
            assert torch.equal(so.sort(x.clone(), how), plain)
        assert_close(so.sort(x.as_subclass(Mine), how), plain, 1e-6)
        assert torch.equal(so.sort(torch.nn.Parameter(x), how), plain)


# ---------------------------------------------------------------- many items, processes, threads


@contextlib.contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def row_of(x, r, tau):
    """Return row r of P over the positions, for scores in decreasing order."""
    gap = -np.diff(x, prepend=x[0])
    odd = 2 * np.arange(len(x)) + 1
    up = np.cumsum(odd[: len(x) - r - 1] * gap[r + 1 :])
    down = np.cumsum(odd[:r] * gap[1 : r + 1][::-1])[::-1]
    weights = np.exp(-np.concatenate([down, [0.0], up]) / tau)
    return weights / weights.sum()


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_hundred_thousand_items_lose_no_digits(dtype):
    n, tau = 100_000, 1e-3
    x = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=dtype)
    v = torch.randn(n, generator=torch.Generator().manual_seed(1), dtype=dtype)
    with threads(2):
        P = so.NeuralSort(tau)(x)
        y = as_numpy(P @ v)
    s = as_numpy(x)[P.order]
    for r in (0, 1, n // 3, n // 2, n - 1):
        expected = row_of(s, r, tau) @ as_numpy(v)[P.order]
        assert abs(y[r] - expected) <= VALUES[str(dtype)[6:]]


MEMORY = """
import resource, torch, softorder as so
torch.set_num_threads(2)
x = torch.rand(100_000, generator=torch.Generator().manual_seed(0)).requires_grad_()
so.sort(x[:100], so.NeuralSort(1e-3)).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
y = so.sort(x, so.NeuralSort(1e-3))
y.square().sum().backward()
so.rank(x, so.NeuralSort(1e-3)).square().mean().backward()
assert torch.isfinite(x.grad).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units")
def test_a_hundred_thousand_items_take_little_memory():
    """The matrix would take 40 GB."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert float(run.stdout) < 200  # MiB


@needs_native
@pytest.mark.parametrize("shape", [(20_000,), (3, 5000), (300, 50)])
def test_the_number_of_threads_does_not_change_a_bit(shape):
    x, v, tau = arguments(shape, torch.float32)
    x, found = (x * 1000).round() / 1000, []
    for number in (1, 2, 4, 8):
        with threads(number):
            found.append(results("native", "P @ v", x, v, tau))
            found[-1] += results("native", "P.T @ u", x, v, tau)
            found[-1] += results("native", "sort", x, v, tau)
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a is b is None or torch.equal(a, b)


def _a_forked_child_sorts_alike():
    x = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    how = so.NeuralSort(1.0)
    with threads(2):
        leaf = x.clone().requires_grad_()
        y = so.sort(leaf, how)
        y.square().sum().backward()
        expected = y.detach().numpy().tobytes()
        assert is_true_in_a_forked_child(
            lambda: so.sort(x, how).numpy().tobytes() == expected, seconds=20
        )


@needs_native
@needs_fork
def test_a_forked_child_gives_the_right_answer():
    assert passes_in_a_fresh_process(_a_forked_child_sorts_alike)


@needs_native
def test_eight_threads_at_once():
    jobs, expected, found = [50, 3000, 700, 100, 1, 17, 257, 1030], {}, {}

    def work(n, into):
        x = torch.randn(2, n, generator=torch.Generator().manual_seed(n), requires_grad=True)
        for _ in range(3):
            y = so.sort(x, so.NeuralSort(0.1))
            (g,) = torch.autograd.grad(weigh(y), x)
        into[n] = y.detach(), g

    with threads(2):
        for n in jobs:
            work(n, expected)
        pool = [threading.Thread(target=work, args=(n, found)) for n in jobs]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
    for n in jobs:
        assert all(torch.equal(a, b) for a, b in zip(found[n], expected[n], strict=True))


INSTRUCTION_SETS = """
import sys, torch
import softorder as so
from softorder._extension import extension

assert extension.instruction_set() == sys.argv[1]
torch.manual_seed(0)
worst = 0.0
for n, features in ((1, 1), (7, 2), (300, 1), (300, 3), (1001, 1)):
    x, v = torch.randn(1, n, dtype=torch.float64), torch.randn(1, n, features, dtype=torch.float64)
    for tau in (0.1, 3.0, 1000.0):
        found = []
        for kernel in ("native", "dense"):
            leaves = [t.clone().requires_grad_() for t in (x, v, torch.tensor([tau]).double())]
            with so.config(kernel=kernel):
                P = so.NeuralSort(leaves[2])(leaves[0])
                y, z = P @ leaves[1], P.T @ leaves[1]
            gradients = torch.autograd.grad((y * y.detach().cos()).sum() + (z * z).mean(), leaves)
            found.append([y.detach(), z.detach(), *gradients])
        for a, b in zip(*found, strict=True):
            worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)))
print(worst)
assert worst < 1e-9
"""


@needs_native
@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same(name):
    child = subprocess.run(
        [sys.executable, "-c", INSTRUCTION_SETS, name],
        env={**os.environ, "SOFTORDER_INSTRUCTIONS": name},
        capture_output=True,
        text=True,
    )
    if "SOFTORDER_INSTRUCTIONS must be one of" in child.stderr:
        pytest.skip(f"this machine has no {name}")
    assert child.returncode == 0, child.stdout + child.stderr


# ---------------------------------------------------------------- the choice


def kernel_of(x):
    return type(so.NeuralSort(0.1)(x)._operator).__name__


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_is_chosen_by_name(kernel):
    classes = {"native": "Native", "tiled": "Tiled", "dense": "Dense"}
    with so.config(kernel=kernel):
        assert kernel_of(torch.randn(3)) == classes[kernel]


def test_left_alone_the_choice_is_automatic(monkeypatch):
    if native.extension is not None:
        assert kernel_of(torch.randn(3)) == kernel_of(torch.randn(3000)) == "Native"
    assert kernel_of(torch.empty(3, device="meta")) == "Dense"
    assert kernel_of(torch.empty(3000, device="meta")) == "Tiled"
    monkeypatch.setattr(extension_module, "extension", None)
    assert kernel_of(torch.randn(3)) == "Dense"
    assert kernel_of(torch.randn(3000)) == "Tiled"
    x = torch.randn(600)
    assert_close(so.sort(x, so.NeuralSort(1e-6)), x.sort().values, 1e-6)


def test_the_portable_kernel_does_not_serve():
    parts = r'kernel="portable" serves SoftSort.*got another relaxation.*Use kernel="tiled"'
    with so.config(kernel="portable"), pytest.raises(ValueError, match=parts):
        so.NeuralSort(0.1)(torch.randn(3))


def test_a_relaxation_without_a_native_kernel_says_so():
    class Mine(PermutationRelaxation):
        def weights(self, scores):
            return NEURALSORT.rows(scores, 1.0)

    assert type(Mine()(torch.randn(3))._operator).__name__ == "Dense"
    parts = r'kernel="native" serves .*NeuralSort.*got another relaxation.*Use kernel="tiled"'
    with so.config(kernel="native"), pytest.raises(ValueError, match=parts):
        Mine()(torch.randn(3))


def test_a_native_kernel_that_is_not_there(monkeypatch):
    if native.extension is not None:
        with so.config(kernel="native"), pytest.raises(ValueError, match=r"meta.*tiled"):
            so.NeuralSort(0.1)(torch.empty(3, device="meta"))
    monkeypatch.setattr(extension_module, "extension", None)
    with so.config(kernel="native"), pytest.raises(RuntimeError, match=r"Reinstall.*tiled"):
        so.NeuralSort(0.1)(torch.randn(3))


@every_kernel
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_changing_an_input_in_place_is_noticed(kernel, changed):
    leaves = [t.clone().requires_grad_() for t in arguments((2, 5))]
    given = [leaf * 1 for leaf in leaves]
    with so.config(kernel=kernel):
        y = so.NeuralSort(given[2])(given[0]) @ given[1][..., None]
        expected = torch.autograd.grad(weigh(y), leaves, retain_graph=True)
        with torch.no_grad():
            given[changed].add_(1.0)
        try:
            found = torch.autograd.grad(weigh(y), leaves)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)  # noqa: PT017
        else:  # a kernel that keeps copies may answer, if the answer is right
            assert_alike(found, expected, 1e-12)


@given(st.data(), our.scores(min_size=1), st.sampled_from([0.3, 1.0, 4.0]))
def test_ties_average_their_gradients_alike(data, s, tau):
    v, g = data.draw(our.vectors(len(s))), data.draw(our.vectors(len(s)))
    found = []
    for kernel in (None, "dense"):
        leaves = [tensor(a, requires_grad=True) for a in (s, v)]
        with so.config(kernel=kernel):
            y = so.NeuralSort(tau)(leaves[0]) @ leaves[1]
        found.append([y, *torch.autograd.grad(y, leaves, tensor(g))])
    assert_alike(*found, 1e-11, least=1 + np.abs(v).max() * np.abs(g).max() * len(s) / tau)


# ---------------------------------------------------------------- no difference of large sums


def test_one_far_score_leaves_the_others_in_place_in_float32():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        scores = jax.numpy.array([1e8, 0.0, 1.0, 2.0], dtype="float32")
        found = np.asarray(so.NeuralSort(1.0)(scores).matrix())
    assert_close(found, oracles.neuralsort_matrix([1e8, 0.0, 1.0, 2.0], 1.0), VALUES)


def test_tiles_leave_out_nothing_beside_a_far_score():
    """The sums that find where weights end lost the small gaps: averages were off by 0.3."""
    x = torch.cat([tensor([1e16]), -1e-3 * torch.arange(2000, dtype=torch.float64)])
    found = []
    for kernel in ("tiled", "dense"):
        with so.config(kernel=kernel):
            found.append(so.NeuralSort(1e-3)(x) @ torch.arange(2001, dtype=torch.float64))
    assert_close(*found, VALUES)


@pytest.mark.parametrize(("n", "tau"), [(1000, 0.01), (3000, 0.001)])
def test_rows_of_many_scores_in_float32_are_those_in_float64(n, tau):
    jax = pytest.importorskip("jax")
    scores = np.random.default_rng(0).normal(size=n).astype(np.float32)
    rows = [0, n // 2, n - 1]
    expected = so.NeuralSort(tau)(scores.astype(np.float64)).rows(rows)
    with jax.enable_x64(False):
        found = np.asarray(so.NeuralSort(tau)(jax.numpy.asarray(scores)).rows(rows))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_gradients_do_not_change_with_create_graph():
    x = tensor([1e8, 0.0, 1.0, 2.0], requires_grad=True)
    y = so.NeuralSort(1.0)(x) @ tensor([0.0, 1.0, -1.0, 2.0])
    plain, graph = (
        torch.autograd.grad(y[2], x, retain_graph=True, create_graph=create)[0]
        for create in (False, True)
    )
    assert_close(graph, plain, GRADIENTS)
