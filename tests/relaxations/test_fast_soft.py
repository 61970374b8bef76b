"""FastSoftSort and FastSoftRank against their oracle, and against torchsort."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import operator_oracles as oracles
import softorder as so
import strategies as our
from inside import isotonic, on_cpu
from tolerances import (
    ONE_ROUNDING,
    TORCHSORT_GRADIENTS,
    TORCHSORT_VALUES,
    VALUES,
    assert_close,
    gradcheck,
    gradgradcheck,
)

strengths = st.sampled_from([1e-4, 0.01, 0.3, 1.0, 3.0, 100.0])
both = pytest.mark.parametrize("regularization", ["l2", "kl"])


@given(our.masked_scores(infinite=True), strengths)
@pytest.mark.parametrize("descending", [False, True])
@both
def test_sorts_and_ranks_are_the_oracles(regularization, descending, masked, epsilon):
    s, mask = masked
    cases = (
        (so.sort, so.FastSoftSort, oracles.fast_soft_sort),
        (so.rank, so.FastSoftRank, oracles.fast_soft_rank),
    )
    for operation, relaxation, oracle in cases:
        expected = oracle(s, epsilon, regularization, mask, descending)
        how = relaxation(epsilon, regularization)
        # theta = s / epsilon is rounded before anything else happens.
        tolerance = VALUES["float64"] + ONE_ROUNDING / epsilon
        assert_close(operation(s, how, mask=mask, descending=descending), expected, tolerance)
        x, valid = torch.tensor(s), torch.tensor(mask)
        assert_close(operation(x, how, mask=valid, descending=descending), expected, tolerance)


def _inputs():
    normal = torch.randn(20, 30, generator=torch.Generator().manual_seed(3))
    return {
        "random": normal,
        "tied": normal.mul(2).round().div(2),
        "extreme": 1e3 * normal,
        "tiny": 1e-3 * normal,
        "sorted": normal.sort(-1).values,
        "one": normal[:, :1],
    }


INPUTS = _inputs()


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 1.0, 10.0])
@both
def test_values_and_gradients_are_those_of_torchsort(regularization, epsilon, name):
    x = INPUTS[name]
    torchsort = pytest.importorskip("torchsort")
    cases = (
        (so.sort, so.FastSoftSort, torchsort.soft_sort),
        (so.rank, so.FastSoftRank, torchsort.soft_rank),
    )
    for operation, relaxation, theirs in cases:
        # In float64, in which torchsort's own rounding does not show.
        a, b = (x.double().requires_grad_() for _ in range(2))
        ours = operation(a, relaxation(epsilon, regularization))
        expected = theirs(b, regularization, epsilon)
        assert torch.isfinite(ours).all()
        seen = torch.isfinite(expected)
        # Its own results are differences of numbers of the size n / epsilon.
        assert_close(ours[seen], expected[seen], TORCHSORT_VALUES)
        single = operation(x, relaxation(epsilon, regularization))
        assert_close(single[seen], expected[seen], TORCHSORT_VALUES)
        if name == "tied" or not seen.all():
            continue
        weight = torch.cos(torch.arange(30.0, dtype=torch.float64))[: x.shape[-1]]
        g = torch.autograd.grad((ours * weight).sum(), a)[0]
        theirs_too = torch.autograd.grad((expected * weight).sum(), b)[0]
        assert torch.isfinite(g).all()
        seen = torch.isfinite(theirs_too)
        # Not relative to the largest: where all is exact here, its rounding is all there is.
        torch.testing.assert_close(g[seen], theirs_too[seen], **TORCHSORT_GRADIENTS)


def test_no_nan_where_torchsort_gives_nan():
    """Kl at strength 1e-4 in float32: its exponentials overflow."""
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ranks = so.rank(x, so.FastSoftRank(1e-4, "kl"))
    (g,) = torch.autograd.grad(ranks.square().sum(), x)
    assert torch.isfinite(ranks).all()
    assert torch.isfinite(g).all()
    expected = oracles.fast_soft_rank(x[0].detach().numpy(), 1e-4, "kl")
    assert_close(ranks[0], expected, VALUES)


@both
def test_ties_far_from_zero_and_tiny_strengths(regularization):
    for x, epsilon in ((1e17, 1.0), (1000.0, 1e-14), (1.0, 1e-17), (1.0, 1e-30)):
        ranks = so.rank(np.full(5, x), so.FastSoftRank(epsilon, regularization))
        assert_close(ranks, np.full(5, 3.0), VALUES)
    pairs = so.rank(np.array([1.0, 1.0, 2.0, 2.0, -0.0]), so.FastSoftRank(1e-30, regularization))
    assert_close(pairs, np.array([2.5, 2.5, 4.5, 4.5, 1.0]), VALUES)


@both
def test_second_derivatives_where_several_are_pooled(regularization, generator):
    """Kl is curved inside a pool; at this strength there are pools of several items."""
    x = torch.randn(2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    for operation, relaxation in ((so.rank, so.FastSoftRank), (so.sort, so.FastSoftSort)):
        how = relaxation(2.0, regularization)
        assert gradcheck(lambda x, how=how, f=operation: f(x, how), x)
        assert gradgradcheck(lambda x, how=how, f=operation: f(x, how), x)
    if regularization == "kl":
        (first,) = torch.autograd.grad(
            so.rank(x, so.FastSoftRank(2.0, "kl")).square().sum(), x, create_graph=True
        )
        (second,) = torch.autograd.grad((first * torch.arange(5)).sum(), x)
        assert second.abs().max() > 1e-3


@both
def test_native_and_portable_pools_are_the_same(regularization, generator, monkeypatch):
    x = torch.randn(3, 50, generator=generator, dtype=torch.float64)
    how = so.FastSoftSort(30.0, regularization), so.FastSoftRank(0.3, regularization)
    native = so.sort(x, how[0]), so.rank(x, how[1])
    monkeypatch.setattr(isotonic, "extension", None)
    portable = so.sort(x, how[0]), so.rank(x, how[1])
    for a, b in zip(native, portable, strict=True):
        assert_close(a, b, VALUES)


def test_a_strength_per_row_has_its_gradient(generator):
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    epsilon = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    for regularization in ("l2", "kl"):
        for operation, relaxation in ((so.rank, so.FastSoftRank), (so.sort, so.FastSoftSort)):
            how = relaxation(epsilon, regularization)
            alone = [
                operation(x[i], relaxation(float(epsilon[i].detach()), regularization))
                for i in range(3)
            ]
            assert_close(operation(x, how), torch.stack(alone), VALUES)

            def soft(e, r=relaxation, f=operation, reg=regularization):
                return f(x, r(e, reg))

            assert gradcheck(soft, epsilon)


def test_a_million_scores(generator):
    x = torch.randn(10**6, generator=generator, requires_grad=True)
    for operation, how in ((so.sort, so.FastSoftSort(1.0)), (so.rank, so.FastSoftRank(1e-6))):
        y = operation(x, how)
        (g,) = torch.autograd.grad(y.sum(), x)
        assert torch.isfinite(y).all()
        assert torch.isfinite(g).all()
    # A projection keeps the sum.
    total = so.rank(x.detach().double(), so.FastSoftRank(1e-6)).sum()
    assert_close(total, torch.tensor(10**6 * (10**6 + 1) / 2, dtype=torch.float64), VALUES)


def test_an_unknown_regularization_is_an_error_that_names_the_two():
    for relaxation in (so.FastSoftSort, so.FastSoftRank):
        with pytest.raises(ValueError, match=r"must be one of 'l2', 'kl'; got 'l1'"):
            relaxation(1.0, "l1")
        with pytest.raises(ValueError, match="epsilon must be positive"):
            relaxation(0.0)


def test_every_host_function_is_known_by_its_name():
    assert {name: f.__name__ for name, f in on_cpu.FUNCTIONS.items()} == {
        name: name for name in ("assign", "pool_kl", "pool_l2")
    }
    np.testing.assert_array_equal(on_cpu.assign(np.eye(3)[None, ::-1]), [[2, 1, 0]])


@both
def test_the_gradient_of_epsilon_beside_large_scores(regularization):
    """Ranks know differences alone; their derivatives must not be differences of large numbers."""
    x = torch.tensor([0.0, 0.25, 1.0, 1.5], dtype=torch.float64)
    found = []
    for far in (0.0, 2.0**27):
        epsilon = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        ranks = so.rank(x + far, so.FastSoftRank(epsilon, regularization))
        found.append(torch.autograd.grad(ranks[0], epsilon)[0])
    assert found[0].abs() > 0.01
    assert_close(found[1], found[0], VALUES["float64"])
