"""SoftRank against its oracle, against sampling, and what the paper approximates."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import operator_oracles as oracles
import softorder as so
import strategies as our
from inside import pairwise
from tolerances import GRADIENTS, LAST_DIGITS, LIMIT, VALUES, assert_close, gradcheck, gradgradcheck


@given(our.masked_scores(infinite=True), our.temperatures)
@pytest.mark.parametrize("descending", [False, True])
def test_expected_ranks_are_the_oracles(descending, masked, tau):
    s, mask = masked
    expected = oracles.softrank_expected(s, tau, mask, descending)
    how = so.SoftRank(tau)
    assert_close(so.rank(s, how, mask=mask, descending=descending), expected, VALUES)
    soft = so.rank(torch.tensor(s), how, mask=torch.tensor(mask), descending=descending)
    assert_close(soft, expected, VALUES)


@settings(max_examples=15)
@given(our.masked_scores(infinite=True), our.temperatures)
def test_the_matrix_is_the_oracles(masked, tau):
    s, mask = masked[0][:6], masked[1][:6]
    expected = oracles.softrank_distribution(s, tau, mask)
    assert_close(so.SoftRank(tau)(s, mask=mask).matrix(), expected, GRADIENTS["float64"])
    P = so.SoftRank(tau)(torch.tensor(s), mask=torch.tensor(mask))
    assert_close(P.matrix(), expected, GRADIENTS["float64"])


@given(our.masked_scores(), our.temperatures)
def test_the_recursion_is_the_oracles(masked, tau):
    s, mask = masked
    expected = oracles.softrank_recursion(s, tau, mask)
    assert_close(so.SoftRank(tau).recursion(s, mask=mask), expected, VALUES)
    recursion = so.SoftRank(tau).recursion(torch.tensor(s), mask=torch.tensor(mask))
    assert_close(recursion, expected, VALUES)


def test_three_equal_scores():
    x = torch.full((3,), 0.7, dtype=torch.float64)
    third = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    assert_close(so.SoftRank(1.0)(x).matrix(), third, VALUES)
    quarters = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)[:, None].expand(3, 3)
    assert_close(so.SoftRank(1.0).recursion(x), quarters, VALUES)


def test_the_matrix_agrees_with_a_million_samples():
    """Within 5 standard errors in each of its 25 entries."""
    rng = np.random.default_rng(7)
    s, tau, samples = np.array([0.2, -0.5, 1.0, 0.3, 0.25]), 0.4, 10**6
    order = np.argsort(-(s + np.sqrt(tau) * rng.normal(size=(samples, 5))), axis=1)
    counts = np.array([[(order[:, r] == j).mean() for j in range(5)] for r in range(5)])
    P = so.SoftRank(tau)(s).matrix()
    assert (np.abs(P - counts) <= 5 * np.sqrt(P * (1 - P) / samples)).all()
    assert_close(P.sum(0), np.ones(5), VALUES)
    assert_close(P.sum(1), np.ones(5), VALUES)


@pytest.mark.parametrize("n", [1, 2, 17, 60])
def test_many_tied_items_are_equally_likely_everywhere(n):
    """The hardest case for the quadrature: its distribution is the narrowest here."""
    assert_close(so.SoftRank(2.0)(np.zeros(n)).matrix(), np.full((n, n), 1 / n), VALUES)


def test_the_expected_rank_is_the_mean_of_the_matrix(generator):
    x = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    how = so.SoftRank(0.5)
    mean = how(x).T @ torch.arange(1, 8, dtype=torch.float64)
    assert_close(so.rank(x, how, descending=True), mean, VALUES)


def test_parts_change_nothing(generator, monkeypatch):
    x = torch.randn(2, 9, generator=generator, dtype=torch.float64, requires_grad=True)

    def value_and_gradient():
        y = so.SoftRank(0.5)(x).matrix()
        return y, torch.autograd.grad((y * torch.cos(9 * y.detach())).sum(), x)[0]

    whole = value_and_gradient()
    monkeypatch.setattr(pairwise, "TILE", 1)
    parts = value_and_gradient()
    assert_close(parts[0], whole[0], VALUES)
    assert_close(parts[1], whole[1], GRADIENTS)


def test_the_recursion_moves_positions_and_items_last(generator):
    x = torch.randn(3, 4, 2, generator=generator)
    moved = so.SoftRank(1.0).recursion(x, dim=1)
    assert moved.shape == (3, 2, 4, 4)
    assert moved.dtype == torch.float32
    assert_close(moved, so.SoftRank(1.0).recursion(x.movedim(1, -1)), VALUES)


def log_prob_and_slope(s, tau, permutation):
    x = torch.tensor(s, dtype=torch.float64, requires_grad=True)
    log_p = so.SoftRank(tau)(x).log_prob(torch.tensor(permutation))
    return log_p, torch.autograd.grad(log_p, x)[0]


@pytest.mark.parametrize(
    ("s", "tau", "permutation"),
    [
        ([13.0, 0.0], 0.5, [1, 0]),
        ([16.0, 0.0], 1.0, [1, 0]),
        ([17.0, 0.0], 1.0, [1, 0]),
        ([100.0, 0.0], 1.0, [1, 0]),
        ([2.0, 0.0, 0.5], 0.01, [1, 2, 0]),
        ([20.0, -9.0, 0.0], 1.0, [2, 0, 1]),
        ([0.0, 0.3, 9.0, 1.0], 0.1, [3, 0, 1, 2]),
        ([40.0, 0.0, 20.5, -12.0], 1.0, [3, 1, 2, 0]),
    ],
)
def test_log_prob_in_the_tails_is_the_oracles_in_value_and_slope(s, tau, permutation):
    """The quadrature once stopped at 8.25 deviations: an infinite loss, and NaN for a slope."""
    log_p, slope = log_prob_and_slope(s, tau, permutation)
    expected = oracles.softrank_log_prob(s, tau, permutation)
    assert_close(log_p, np.float64(expected), LAST_DIGITS)
    step, direction = mpmath.mpf("1e-10"), [1.0, 0.3, -0.7, 0.4][: len(s)]
    with mpmath.workdps(30):
        moved = [x + step * d for x, d in zip(s, direction, strict=True)]
        by_step = (oracles.softrank_log_prob(moved, tau, permutation) - expected) / step
    assert_close(slope.numpy() @ np.array(direction), np.float64(by_step), GRADIENTS["float64"])


@pytest.mark.parametrize("gap", [1e2, 1e4, 1e8, 1e100])
def test_log_prob_of_two_items_is_that_of_one_contest(gap):
    """Log Phi(-u) has the slope -(u + 1 / u) to within 2 / u^3."""
    log_p, slope = log_prob_and_slope([gap, 0.0], 0.5, [1, 0])
    assert_close(
        log_p, 2 * math.log(0.5) + 2 * mpmath_log_erfc(gap / math.sqrt(2)), VALUES["float64"]
    )
    assert_close(slope, np.array([-2.0, 2.0]) * (gap + 1 / gap), LIMIT)


def mpmath_log_erfc(x):
    return np.float64(mpmath.log(mpmath.erfc(x)))


@pytest.mark.parametrize("n", [5, 30])
def test_log_prob_of_many_items_far_apart_has_finite_slopes(n, generator):
    x = 100 * torch.randn(3, n, generator=generator, dtype=torch.float64)
    x.requires_grad_()
    permutation = torch.randperm(n, generator=generator)
    log_p = so.SoftRank(0.1)(x).log_prob(permutation)
    (slope,) = torch.autograd.grad(log_p.sum(), x)
    assert torch.isfinite(log_p).all()
    assert torch.isfinite(slope).all()
    # Only differences count.
    assert (slope.sum(-1).abs() <= GRADIENTS["float64"] * slope.abs().max()).all()


def test_the_log_matrix_is_the_logarithm_of_the_matrix(generator):
    x = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    P = so.SoftRank(2.0)(x)
    assert_close(P.log_matrix(), P.matrix().log(), VALUES)
    each = P.log_prob(P.order)
    chosen = P.log_matrix().gather(-1, P.order[..., None])[..., 0]
    assert_close(each, chosen.sum(-1), VALUES)


def test_rows_and_columns_of_the_log_matrix_sum_to_one_far_apart():
    P = so.SoftRank(1.0)(np.array([30.0, 0.0, 12.0, -14.0])).log_matrix()
    assert np.isfinite(P).all()
    assert_close(np.exp(P).sum(0), np.ones(4), VALUES)
    assert_close(np.exp(P).sum(1), np.ones(4), VALUES)


def test_the_log_matrix_has_first_and_second_derivatives(generator):
    x = 3 * torch.randn(3, generator=generator, dtype=torch.float64)
    inputs = (x.requires_grad_(), torch.tensor(0.4, dtype=torch.float64, requires_grad=True))
    gradcheck(lambda x, tau: so.SoftRank(tau)(x).log_matrix(), inputs, check_forward_ad=True)
    gradgradcheck(lambda x, tau: so.SoftRank(tau)(x).log_matrix(), inputs)


def test_parts_of_the_log_matrix_change_nothing(generator, monkeypatch):
    x = 5 * torch.randn(2, 4, generator=generator, dtype=torch.float64)
    x.requires_grad_()

    def value_and_gradient():
        y = so.SoftRank(0.5)(x).log_matrix()
        return y, torch.autograd.grad(y.sum(), x)[0]

    whole = value_and_gradient()
    monkeypatch.setattr(pairwise, "TILE", 1)
    parts = value_and_gradient()
    assert_close(parts[0], whole[0], VALUES)
    assert_close(parts[1], whole[1], GRADIENTS)
