"""ApproximateRank against its oracle, and in parts."""

import numpy as np
import pytest
import torch
from hypothesis import given

import operator_oracles as oracles
import softorder as so
import strategies as our
from inside import pairwise
from tolerances import GRADIENTS, VALUES, assert_close


@given(our.masked_scores(infinite=True), our.temperatures)
@pytest.mark.parametrize("descending", [False, True])
def test_the_ranks_are_the_oracles(descending, masked, tau):
    s, mask = masked
    expected = oracles.approximate_rank(s, tau, mask, descending)
    how = so.ApproximateRank(tau)
    assert_close(so.rank(s, how, mask=mask, descending=descending), expected, VALUES)
    soft = so.rank(torch.tensor(s), how, mask=torch.tensor(mask), descending=descending)
    assert_close(soft, expected, VALUES)


def test_the_largest_has_rank_one_as_the_paper_defines_rank():
    x = torch.tensor([1.0, 9.0, 5.0])
    ranks = so.rank(x, so.ApproximateRank(1e-3), descending=True)
    assert ranks.tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("how", [so.ApproximateRank(0.3), so.SoftRank(0.3)])
def test_parts_change_nothing(how, generator, monkeypatch):
    x = torch.randn(3, 40, generator=generator, dtype=torch.float64)

    def value_and_gradient():
        y = so.rank(x.requires_grad_(), how)
        return y, torch.autograd.grad((y * torch.cos(y.detach())).sum(), x)[0]

    whole = value_and_gradient()
    monkeypatch.setattr(pairwise, "TILE", 3 * 40 * 7)
    parts = value_and_gradient()
    assert_close(parts[0], whole[0], VALUES)
    assert_close(parts[1], whole[1], GRADIENTS)


def test_memory_is_linear(generator):
    """What is kept for the backward pass of 6,000 items: nothing of 36 million entries."""
    kept = []
    x = torch.randn(6000, generator=generator, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        so.rank(x, so.ApproximateRank(0.1)).sum().backward()
    assert 0 < max(kept) <= pairwise.TILE


def test_it_has_no_matrix_and_says_who_has():
    x = np.ones(3)
    for operation in (so.argsort, so.median, so.sort):
        with pytest.raises(TypeError, match=r"got ApproximateRank.*Use one of these: .*NeuralSort"):
            operation(x, so.ApproximateRank())
    with pytest.raises(TypeError, match=r"needs a relaxation that has ranks.*ApproximateRank"):
        so.rank(x, so.FastSoftSort())
    with pytest.raises(TypeError, match=r"sorted values.*FastSoftSort.*FastSoftSort has"):
        so.sort(x, so.FastSoftRank())
