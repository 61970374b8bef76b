"""OptimalTransportSort against its oracle: scaling, targets, tolerance."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import operator_oracles as oracles
import softorder as so
import strategies as our
from tolerances import (
    COLD_LIMIT,
    GRADIENTS,
    ITERATED,
    ROUNDED_AGAIN,
    STOPPED,
    VALUES,
    assert_close,
    gradcheck,
)

strengths = st.sampled_from([0.03, 0.1, 1.0, 10.0])


@given(our.masked_scores(infinite=True), strengths)
def test_the_matrix_is_the_oracles(masked, epsilon):
    s, mask = masked
    how = so.OptimalTransportSort(epsilon, tolerance=1e-9)
    expected = oracles.transport_matrix(s, epsilon, mask)
    assert_close(how(s, mask=mask).matrix(), expected, STOPPED[1e-9])
    assert_close(how(torch.tensor(s), mask=torch.tensor(mask)).matrix(), expected, STOPPED[1e-9])


@given(our.scores(min_size=1, infinite=True), strengths, st.integers(1, 12))
def test_shared_targets_are_the_oracles(s, epsilon, m):
    n = int(np.isfinite(s).sum())
    groups = np.arange(n) * m // max(n, 1)
    sizes = [int((groups == g).sum()) for g in np.unique(groups)]
    P = so.OptimalTransportSort(epsilon, tolerance=1e-9, targets=m)(s)
    expected = oracles.transport_matrix(s, epsilon, sizes=sizes or None)
    assert_close(P.matrix(), expected, STOPPED[1e-9])
    v = np.cos(np.arange(len(s)))
    assert_close(P @ v, P.matrix() @ v, VALUES)
    assert_close(P.T @ v, P.matrix().T @ v, VALUES)
    assert_close(P.rows([0, -1]), P.matrix()[[0, -1]], VALUES)
    assert_close(P.apply(v, rows=[-1]), (P.matrix() @ v)[[-1]], VALUES)


def test_the_scores_are_shifted_and_scaled_to_mean_0_and_deviation_1(generator):
    x = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    how = so.OptimalTransportSort(0.1)
    P = how(x).matrix()
    assert_close(how(1e4 * x).matrix(), P, ITERATED)
    assert_close(how(x - 77.0).matrix(), P, ITERATED)
    standard = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    assert_close(how(standard).matrix(), P, ITERATED)
    # The formula itself, balanced by Sinkhorn: logits y_i z_j / epsilon, y from 1 down to 0.
    y = torch.linspace(1, 0, 8, dtype=torch.float64)
    balanced = so.Sinkhorn(0.1, tolerance=1e-12)(y[:, None] * standard[:, None, :])
    close = so.OptimalTransportSort(0.1, tolerance=1e-12)(x)
    assert_close(close.matrix(), balanced.matrix(), STOPPED[1e-12])


def test_equal_scores_have_no_direction():
    P = so.OptimalTransportSort(0.01)(np.full(3, 0.1)).matrix()
    assert_close(P, np.full((3, 3), 1 / 3), VALUES)


@pytest.mark.parametrize("epsilon", [1e-3, 0.03, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1.0, 1e3])
def test_rows_and_columns_sum_to_one_within_the_tolerance(epsilon, dtype, size, generator):
    x = size * torch.randn(3, 20, generator=generator, dtype=dtype)
    asked = 1e-4
    P = so.OptimalTransportSort(epsilon, tolerance=asked)(x)
    for axis in (-1, -2):
        assert (P.matrix().sum(axis) - 1).abs().max() <= ROUNDED_AGAIN * asked
    assert P.marginal_error().max() <= ROUNDED_AGAIN * asked


def test_a_fixed_number_of_iterations_reports_its_error(generator):
    x = torch.randn(2, 10, generator=generator, dtype=torch.float64)
    P = so.OptimalTransportSort(0.01, iterations=3)(x)
    assert_close(P.matrix().sum(-1), torch.ones(2, 10), VALUES)
    expected = (P.matrix().sum(-2) - 1).abs().amax(-1)
    assert expected.min() > 1e-4
    assert_close(P.marginal_error(), expected, VALUES)


@pytest.mark.parametrize("iterations", [1, 2, 50])
def test_the_limit_needs_no_iterations(iterations, generator):
    """They begin at the potentials of the exact sort."""
    x = torch.randn(3, 12, generator=generator, dtype=torch.float64)
    how = so.OptimalTransportSort(1e-9, iterations=iterations)
    assert_close(so.sort(x, how), x.sort(-1).values, VALUES)
    assert how(x).marginal_error().max() < VALUES["float64"]


@pytest.mark.parametrize("epsilon", [1e-8, 1e-12, 1e-17, 1e-30])
@pytest.mark.parametrize("stopping", [{}, {"tolerance": 1e-6}])
def test_ties_at_any_strength(epsilon, stopping):
    """The numbers that cancel must not be as large as 1 / epsilon."""
    x = torch.tensor([1.0, 1.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    how = so.OptimalTransportSort(epsilon, **stopping)
    assert_close(so.sort(x, how), x.sort().values, VALUES)
    assert_close(how(x).matrix().sum(-1), torch.ones(5), VALUES)


def test_quantiles_with_few_targets_are_exact_in_the_limit(generator):
    x = torch.randn(3, 101, generator=generator, dtype=torch.float64)
    q = (0.0, 0.1, 0.5, 0.77, 1.0)
    how = so.OptimalTransportSort(1e-9, targets=q)
    expected = torch.quantile(x, torch.tensor(q, dtype=torch.float64), dim=-1)
    assert_close(so.quantile(x, list(q), how), expected, COLD_LIMIT)
    mask = torch.rand(3, 101, generator=generator) < 0.5
    masked = so.quantile(x, list(q), how, mask=mask)
    for i in range(3):
        alone = torch.quantile(x[i][mask[i]], torch.tensor(q, dtype=torch.float64))
        assert_close(masked[:, i], alone, COLD_LIMIT)
    infinite = x.clone()
    infinite[:, 0] = torch.inf
    assert_close(so.quantile(infinite, 0.5, how), torch.quantile(infinite, 0.5, dim=-1), COLD_LIMIT)


def test_few_targets_never_build_the_matrix(generator):
    """O(n m): nothing of n x n is kept or computed."""
    kept = []
    x = torch.randn(3000, generator=generator, requires_grad=True)
    how = so.OptimalTransportSort(0.1, iterations=5, targets=[0.25, 0.5])
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        so.quantile(x, [0.25, 0.5], how).sum().backward()
    assert max(kept) <= 10 * 3000
    assert x.grad.abs().max() > 0
    large = torch.randn(10**5, generator=generator)
    assert torch.isfinite(so.median(large, so.OptimalTransportSort(0.1, targets=[0.5])))


def test_ranks_with_few_targets(generator):
    x = torch.randn(60, generator=generator, dtype=torch.float64)
    ranks = so.rank(x, so.OptimalTransportSort(1e-9, targets=6))
    exact = x.argsort().argsort() + 1
    # Each rank is the mean of its group of ten.
    assert_close(ranks, ((exact - 1) // 10) * 10 + 5.5, COLD_LIMIT)
    full = so.rank(x, so.OptimalTransportSort(0.1, tolerance=1e-6, targets=60))
    assert_close(full, so.rank(x, so.OptimalTransportSort(0.1, tolerance=1e-6)), VALUES)


def test_derivatives_at_convergence(generator):
    x = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor([0.2, 0.5], dtype=torch.float64, requires_grad=True)
    assert gradcheck(
        lambda x, e: so.sort(x, so.OptimalTransportSort(e, tolerance=1e-13)), (x, epsilon)
    )
    few = so.OptimalTransportSort(0.3, iterations=4, targets=2)
    assert gradcheck(lambda x: (so.sort(x, few), so.rank(x, few)), x)


def test_batch_rows_do_not_feel_each_other(generator):
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    how = so.OptimalTransportSort(0.05)
    y = so.sort(x, how)
    for i in range(4):
        assert_close(y[i], so.sort(x[i], how), GRADIENTS)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon must be positive"),
        ({"targets": 0}, ValueError, "number of targets must be at least 1"),
        ({"targets": "all"}, TypeError, "targets must be an integer or a sequence"),
        ({"targets": [0.5, 1.5]}, ValueError, r"quantiles in \[0, 1\]"),
        ({"targets": []}, ValueError, r"quantiles in \[0, 1\]"),
        ({"targets": True}, TypeError, "targets must be an integer or a sequence"),
        ({"iterations": -1}, ValueError, "iterations must be at least 1"),
        ({"tolerance": -1.0}, ValueError, "tolerance must be positive"),
    ],
)
def test_wrong_settings(arguments, error, message):
    with pytest.raises(error, match=message):
        so.OptimalTransportSort(**arguments)
