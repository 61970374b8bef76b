"""SoftRank against its oracle, against sampling, and what the paper approximates."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

import operator_oracles as oracles
import softorder as so
import strategies as our
from softorder.kernels import contests
from tolerances import GRADIENTS, VALUES, assert_close


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
    assert_close(so.SoftRank(tau)(s, mask=mask).matrix(), expected, 1e-10)
    P = so.SoftRank(tau)(torch.tensor(s), mask=torch.tensor(mask))
    assert_close(P.matrix(), expected, 1e-10)


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
    monkeypatch.setattr(contests, "TILE", 1)
    parts = value_and_gradient()
    assert_close(parts[0], whole[0], VALUES)
    assert_close(parts[1], whole[1], GRADIENTS)


def test_the_recursion_moves_positions_and_items_last(generator):
    x = torch.randn(3, 4, 2, generator=generator)
    moved = so.SoftRank(1.0).recursion(x, dim=1)
    assert moved.shape == (3, 2, 4, 4)
    assert moved.dtype == torch.float32
    assert_close(moved, so.SoftRank(1.0).recursion(x.movedim(1, -1)), VALUES)
