"""`softorder.torch.PlackettLuce` is a distribution of torch."""

import pytest
import torch

import softorder as so
from plackett_luce_oracle import INF, NAN, OTHER, SCORES, exact_kl, source
from softorder.torch import PlackettLuce
from tolerances import SAMPLED, VALUES, assert_close


def test_the_distribution_agrees_with_the_core():
    scores = torch.randn(3, 2, 5)
    mask = torch.rand(3, 2, 5) < 0.8
    law, core = PlackettLuce(scores, 0.5, mask=mask), so.PlackettLuce(scores, 0.5, mask=mask)
    assert isinstance(law, torch.distributions.Distribution)
    assert (law.batch_shape, law.event_shape) == ((3, 2), (5,))
    assert law.has_rsample
    drawn = law.sample((7,), generator=source("torch"))
    assert torch.equal(drawn, core.sample((7,), generator=source("torch")))
    assert torch.equal(law.log_prob(drawn), core.log_prob(drawn))
    assert torch.equal(law.mode, core.mode)
    soft, same = (each.rsample((7,), generator=source("torch")) for each in (law, core))
    assert torch.equal(soft.matrix(), same.matrix())
    assert law.sample().shape == (3, 2, 5)
    assert "PlackettLuce(scores: torch.Size([3, 2, 5]))" in repr(law)


def test_the_distribution_expands():
    scores, tau = torch.randn(2, 1, 4), torch.tensor([[0.5], [1.0]])
    mask = torch.tensor([True, True, False, True])
    law = PlackettLuce(scores, tau, mask=mask, validate_args=False)
    wide = law.expand((5, 2, 3))
    assert type(wide) is PlackettLuce
    assert (wide.batch_shape, wide.event_shape) == ((5, 2, 3), (4,))
    assert not wide._validate_args
    drawn = wide.sample((6,))
    assert drawn.shape == (6, 5, 2, 3, 4)
    assert torch.equal(wide.log_prob(drawn), law.log_prob(drawn))
    assert wide.rsample().shape == (5, 2, 3, 4, 4)
    independent = torch.distributions.Independent(wide, 2)
    assert independent.log_prob(drawn).shape == (6, 5)


def test_the_distribution_checks_what_it_is_given():
    # torch.compile switches the default off for the whole process.
    law = PlackettLuce(torch.zeros(2, 3), validate_args=True)
    for wrong in ([0, 0, 1], [1, 2, 3]):
        with pytest.raises(ValueError, match="within the support"):
            law.log_prob(torch.tensor(wrong))
    with pytest.raises(ValueError, match="event_shape"):
        law.log_prob(torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="to satisfy the constraint"):
        PlackettLuce(torch.tensor([0.0, NAN]), validate_args=True)
    assert PlackettLuce(torch.tensor([0.0, NAN]), validate_args=False).sample().shape == (2,)
    with_nan, mask = torch.tensor([0.0, NAN]), torch.tensor([True, False])
    masked = PlackettLuce(with_nan, mask=mask, validate_args=True)
    assert masked.log_prob(torch.tensor([0, 1])) == 0
    infinite = PlackettLuce(torch.tensor([0.0, INF]), validate_args=True)
    assert infinite.log_prob(torch.tensor([1, 0])) == 0
    assert torch.equal(
        PlackettLuce.support.check(torch.tensor([[0, 2, 1], [0, 2, 2]])),
        torch.tensor([True, False]),
    )


def test_kl_divergence_is_registered():
    p = torch.tensor([SCORES, OTHER], dtype=torch.float64, requires_grad=True)
    q = torch.tensor(OTHER, dtype=torch.float64)
    estimate = torch.distributions.kl_divergence(PlackettLuce(p), PlackettLuce(q))
    assert estimate.shape == (2,)
    assert estimate[0].item() == pytest.approx(exact_kl(p[0], q).item(), abs=SAMPLED[100])
    assert estimate[1] == 0
    estimate.sum().backward()
    assert p.grad is not None
    assert p.grad.isfinite().all()


def test_the_distribution_compiles():
    scores, permutation = torch.randn(3, 4), torch.tensor([2, 0, 3, 1])
    compiled = torch.compile(
        lambda s, p: PlackettLuce(s, validate_args=False).log_prob(p), fullgraph=True
    )
    expected = so.PlackettLuce(scores).log_prob(permutation)
    assert_close(compiled(scores, permutation), expected, VALUES)
