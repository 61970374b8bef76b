"""NeuralSort: the paper's formula to the last digits, and what the SoftSort paper proves of it."""

import itertools
import subprocess
import sys

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import operator_oracles
import softorder as so
import strategies as our
from engines import needs_native, tensor, threads, weigh
from tolerances import (
    FORMULA_GRADIENTS,
    FORMULA_VALUES,
    GRADIENTS,
    SQUARE_VALUES,
    VALUES,
    as_numpy,
    assert_close,
)

pytestmark = pytest.mark.usefixtures("tiny_tiles", "no_kernel_is_left_over")


@given(our.scores(infinite=True), our.temperatures)
def test_the_matrix_is_the_oracles(s, tau):
    expected = operator_oracles.neuralsort_matrix(s, tau)
    assert_close(so.NeuralSort(tau)(tensor(s)).matrix(), expected, VALUES)
    assert_close(so.NeuralSort(tau)(s).matrix(), expected, VALUES)


@given(our.masked_scores(infinite=True), our.temperatures)
def test_products_with_masks_and_infinities_are_the_oracles(masked, tau):
    s, mask = masked
    P = operator_oracles.neuralsort_matrix(s, tau, mask)
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
    np.testing.assert_allclose(operator_oracles.neuralsort_logits(s), logits)
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


@pytest.mark.parametrize("kernel", [pytest.param("native", marks=needs_native), "tiled", "dense"])
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
            value, slope = FORMULA_VALUES[kernel], FORMULA_GRADIENTS[kernel]
            tolerance = [value, slope, value, slope]
        else:
            # The temperature is rounded too.
            tolerance = [VALUES["float32"], *[GRADIENTS["float32"]] * 3]
        for a, b, scale, least in zip(found, expected, tolerance, natural, strict=True):
            largest = max(np.abs(b).max(), least)
            np.testing.assert_allclose(
                as_numpy(a).reshape(-1), b, rtol=0, atol=scale * largest, err_msg=str(dtype)
            )


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


def test_one_far_score_leaves_the_others_in_place_in_float32():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(False):
        scores = jax.numpy.array([1e8, 0.0, 1.0, 2.0], dtype="float32")
        found = np.asarray(so.NeuralSort(1.0)(scores).matrix())
    assert_close(found, operator_oracles.neuralsort_matrix([1e8, 0.0, 1.0, 2.0], 1.0), VALUES)


@pytest.mark.parametrize(("n", "tau"), [(1000, 0.01), (3000, 0.001)])
def test_rows_of_many_scores_in_float32_are_those_in_float64(n, tau):
    jax = pytest.importorskip("jax")
    scores = np.random.default_rng(0).normal(size=n).astype(np.float32)
    rows = [0, n // 2, n - 1]
    expected = so.NeuralSort(tau)(scores.astype(np.float64)).rows(rows)
    with jax.enable_x64(False):
        found = np.asarray(so.NeuralSort(tau)(jax.numpy.asarray(scores)).rows(rows))
    np.testing.assert_allclose(found, expected, rtol=0, atol=GRADIENTS["float32"])


def test_gradients_do_not_change_with_create_graph():
    x = tensor([1e8, 0.0, 1.0, 2.0], requires_grad=True)
    y = so.NeuralSort(1.0)(x) @ tensor([0.0, 1.0, -1.0, 2.0])
    plain, graph = (
        torch.autograd.grad(y[2], x, retain_graph=True, create_graph=create)[0]
        for create in (False, True)
    )
    assert_close(graph, plain, GRADIENTS)
