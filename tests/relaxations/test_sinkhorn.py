"""Sinkhorn against its oracle and the exact assignment, and its samples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import operator_oracles as oracles
import softorder as so
from inside import doubly_stochastic
from tolerances import (
    ITERATED,
    LIMIT,
    ROUNDED_AGAIN,
    STOPPED,
    VALUES,
    assert_close,
    gradcheck,
    gradgradcheck,
)

matrices = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.integers(-8, 8).map(lambda i: i / 4), min_size=n * n, max_size=n * n).map(
        lambda x: np.reshape(x, (n, n)).astype(np.float64)
    )
)


@given(matrices, st.sampled_from([0.1, 1.0, 10.0]), st.sampled_from([1, 2, 20]))
def test_a_number_of_iterations_is_the_oracles(matrix, tau, iterations):
    expected = oracles.sinkhorn_matrix(matrix, tau, iterations)
    how = so.Sinkhorn(tau, iterations)
    assert_close(how(matrix).matrix(), expected, ITERATED)
    assert_close(how(torch.tensor(matrix)).matrix(), expected, ITERATED)


@given(matrices, st.sampled_from([0.5, 1.0, 10.0]))
def test_a_tolerance_reaches_the_limit(matrix, tau):
    P = so.Sinkhorn(tau, tolerance=1e-12)(matrix)
    assert_close(P.matrix(), oracles.sinkhorn_limit(matrix, tau), STOPPED[1e-12])


@pytest.mark.parametrize("size", [1.0, 1e3])
@pytest.mark.parametrize("tau", [1.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_sums_are_one_within_the_tolerance(size, tau, dtype, generator):
    matrix = size * torch.randn(4, 12, 12, generator=generator, dtype=dtype)
    asked = 1e-4
    P = so.Sinkhorn(tau, tolerance=asked)(matrix)
    ones = torch.ones(4, 12, dtype=dtype)
    for axis in (-1, -2):
        assert (P.matrix().sum(axis) - ones).abs().max() <= ROUNDED_AGAIN * asked
    assert P.marginal_error().shape == (4,)
    assert P.marginal_error().max() <= ROUNDED_AGAIN * asked


def test_a_fixed_number_reports_its_error_and_nothing_overflows(generator):
    matrix = 1e3 * torch.randn(5, 5, generator=generator)
    P = so.Sinkhorn(1e-3)(matrix)
    p = P.matrix()
    assert torch.isfinite(p).all()
    assert_close(p.sum(-1), torch.ones(5), VALUES)
    assert_close(P.marginal_error(), (p.sum(0) - 1).abs().max(), VALUES)
    (g,) = torch.autograd.grad(so.Sinkhorn(1e-3)(matrix.requires_grad_()).matrix().sum(), matrix)
    assert torch.isfinite(g).all()


def test_a_tolerance_that_is_not_reached_is_a_warning_with_the_error(generator, monkeypatch):
    monkeypatch.setattr(doubly_stochastic, "_MOST_STEPS", 1)
    with pytest.warns(RuntimeWarning, match=r"tolerance 1e-14; got an error of .* after 1 steps"):
        so.Sinkhorn(0.1, tolerance=1e-14)(torch.randn(5, 5, generator=generator))


def test_hard_is_the_assignment_and_the_limit(generator):
    matrix = torch.randn(3, 2, 7, 7, generator=generator, dtype=torch.float64)
    P = so.Sinkhorn(1.0)(matrix)
    for i in range(3):
        for j in range(2):
            expected = linear_sum_assignment(matrix[i, j].numpy(), maximize=True)[1]
            assert P.order[i, j].tolist() == expected.tolist()
    assert_close(so.Sinkhorn(1e-4, tolerance=1e-9)(matrix).matrix(), P.hard().matrix(), LIMIT)
    v = torch.randn(3, 2, 7, 4, generator=generator, dtype=torch.float64)
    taken = v.gather(-2, P.order[..., None].expand(3, 2, 7, 4))
    assert torch.equal(P.hard() @ v, taken)
    assert torch.equal((P.straight_through() @ v).detach(), taken)


def test_derivatives(generator):
    matrix = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)

    def soft(matrix, tau):
        P = so.Sinkhorn(tau, iterations=4)(matrix)
        return P.matrix(), P.log_prob(torch.tensor([2, 0, 1])), P.entropy()

    assert gradcheck(soft, (matrix, tau))
    assert gradgradcheck(lambda m, t: so.Sinkhorn(t, iterations=4)(m).matrix(), (matrix, tau))
    # At a tolerance the derivatives are those of the limit.
    for tolerance in (1e-3, 1e-10):
        how = so.Sinkhorn(0.5, tolerance=tolerance)
        assert gradcheck(lambda m, how=how: how(m).matrix(), matrix)
    limit, many = so.Sinkhorn(0.5, tolerance=1e-10), so.Sinkhorn(0.5, iterations=300)
    ours, theirs = (
        torch.autograd.functional.hessian(lambda m, how=how: how(m).matrix()[0, 0], matrix[0])
        for how in (limit, many)
    )
    assert_close(ours, theirs, STOPPED[1e-10])


def test_large_matrices_are_computed_again_instead_of_kept(generator):
    kept = []
    matrix = torch.randn(200, 200, generator=generator, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        so.Sinkhorn(1.0, iterations=50)(matrix).matrix().square().sum().backward()
    assert sum(n >= 200 * 200 for n in kept) < 20


@pytest.mark.parametrize("size", [1e30, 1e300])
def test_a_tolerance_at_any_size(size, generator):
    matrix = size * torch.randn(5, 5, generator=generator, dtype=torch.float64)
    P = so.Sinkhorn(1.0, tolerance=1e-6)(matrix)
    assert_close(P.matrix(), P.hard().matrix(), LIMIT)


def test_vmap_compile_and_numpy_agree(generator):
    matrix = torch.randn(3, 4, 4, generator=generator, dtype=torch.float64)
    how = so.Sinkhorn(0.5, iterations=3)
    expected = how(matrix).matrix()
    assert_close(torch.func.vmap(lambda m: how(m).matrix())(matrix), expected, VALUES)
    compiled = torch.compile(
        lambda m: (how(m).matrix(), how(m).hard() @ m), fullgraph=True, backend="aot_eager"
    )
    assert_close(compiled(matrix)[0], expected, VALUES)
    assert_close(compiled(matrix)[1], how(matrix).hard() @ matrix, VALUES)
    assert_close(how(matrix.numpy()).matrix(), expected, VALUES)
    hard = torch.func.vmap(lambda m: how(m).hard().matrix())(matrix)
    assert_close(hard, how(matrix).hard().matrix(), VALUES)


def test_forbidden_pairs_nan_and_no_items(generator):
    matrix = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)
    forbidden = matrix.clone()
    forbidden[0, :, 1] = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])
    iterations = 200
    P = so.Sinkhorn(1.0, iterations)(forbidden)
    assert P.order[0, 0] == 1
    assert (P.matrix()[0, 1:, 1] == 0).all()
    # Without total support the error falls as slowly as this.
    assert P.marginal_error().max() < 2 / iterations
    spoiled = matrix.clone()
    spoiled[1, 2, 3] = torch.nan
    for how in (so.Sinkhorn(1.0), so.Sinkhorn(1.0, tolerance=1e-6)):
        p = how(spoiled).matrix()
        assert torch.isnan(p[1]).all()
        assert_close(p[0], how(matrix[:1]).matrix()[0], VALUES)
        assert how(spoiled).order[1].sort().values.tolist() == [0, 1, 2, 3]
        assert how(torch.zeros(2, 0, 0)).matrix().shape == (2, 0, 0)
        assert how(torch.zeros(2, 0, 0)).marginal_error().tolist() == [0.0, 0.0]
        assert how(torch.zeros(0, 3, 3)).matrix().shape == (0, 3, 3)


def test_half_precision_is_computed_in_full(generator):
    matrix = torch.randn(4, 4, generator=generator).half()
    p = so.Sinkhorn(0.1, tolerance=1e-6)(matrix).matrix()
    assert p.dtype == torch.float16
    assert_close(p, so.Sinkhorn(0.1, tolerance=1e-6)(matrix.double()).matrix(), VALUES)


def test_scores_are_an_error_that_names_optimal_transport():
    for operation in (so.sort, so.rank, so.median):
        with pytest.raises(TypeError, match=r"got Sinkhorn.*For scores: OptimalTransportSort\."):
            operation(np.ones(3), so.Sinkhorn())
    P = so.Sinkhorn()(np.eye(3))
    for wrong in (lambda: P.sorted, P.sort_scores, P.flip().sort_scores):
        with pytest.raises(TypeError, match=r"made of a matrix\. Apply it to what is to be moved"):
            wrong()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"iterations": 0}, ValueError, "iterations must be at least 1"),
        ({"iterations": 2.5}, TypeError, "iterations must be an integer"),
        ({"tolerance": 0.0}, ValueError, "tolerance must be positive"),
        ({"tolerance": "small"}, TypeError, "tolerance must be a positive number"),
        ({"tau": -1.0}, ValueError, "tau must be positive"),
    ],
)
def test_wrong_settings(arguments, error, message):
    with pytest.raises(error, match=message):
        so.Sinkhorn(**arguments)


def test_wrong_matrices():
    with pytest.raises(ValueError, match=r"shape \(\.\.\., n, n\); got shape \(2, 3\)"):
        so.Sinkhorn()(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"must not hold \+inf"):
        so.Sinkhorn()(np.array([[np.inf, 0.0], [0.0, 1.0]]))
    with pytest.raises(TypeError, match="floating dtype"):
        so.Sinkhorn()(np.ones((3, 3), dtype=int))
    with pytest.raises(ValueError, match=r"tau .* must broadcast"):
        so.Sinkhorn(np.ones(5))(np.ones((2, 3, 3)))
    with pytest.raises(ValueError, match="every tau must be positive"):
        so.Sinkhorn(np.array([1.0, -1.0]))(np.ones((2, 3, 3)))
    with pytest.raises(ValueError, match="tolerance= looks at values"):
        torch.func.vmap(lambda m: so.Sinkhorn(tolerance=1e-3)(m).matrix())(torch.ones(2, 3, 3))


def test_gumbel_sinkhorn_samples_matchings(generator):
    """Cold samples of a matrix of zeros are uniform permutations; noise=0 gives the matrix."""
    P = so.gumbel_sinkhorn(torch.zeros(3, 3), 0.05, shape=(4000,), generator=generator)
    assert P.shape == (4000, 3, 3)
    share = torch.bincount((P.order * torch.tensor([9, 3, 1])).sum(-1), minlength=27) / 4000
    share = share[share > 0]
    assert len(share) == 6
    assert (share - 1 / 6).abs().max() < 5 * (1 / 6 * 5 / 6 / 4000) ** 0.5
    matrix = torch.randn(2, 3, 3, generator=generator)
    exact = so.gumbel_sinkhorn(matrix, so.Sinkhorn(0.5), noise=0.0)
    assert_close(exact.matrix(), so.Sinkhorn(0.5)(matrix).matrix(), VALUES)
    seeds = [torch.Generator().manual_seed(5) for _ in range(2)]
    a, b = (so.gumbel_sinkhorn(matrix, generator=g).matrix() for g in seeds)
    assert torch.equal(a, b)
    with pytest.raises(TypeError, match="generator"):
        so.gumbel_sinkhorn(np.eye(3), generator=torch.Generator())
