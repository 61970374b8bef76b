"""The divergence of two Plackett-Luce distributions, and the sums and the noise beneath it."""

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import softorder as so
from inside import NUMPY, TORCH, cumulative_logsumexp
from plackett_luce_oracle import (
    DRAWS,
    INF,
    NAN,
    OTHER,
    SCORES,
    SIGNIFICANCE,
    all_log_probs,
    array,
    both,
    exact_kl,
    source,
)
from tolerances import (
    ONE_ROUNDING,
    SAMPLED,
    VALUES,
    as_numpy,
    assert_close,
    gradcheck,
    gradgradcheck,
)


def within_errors(estimate, exact, each, chance, samples):
    """Compare with 5 standard errors; `each` has what one draw of each permutation would give."""
    chance = chance.reshape(-1, *[1] * (each.ndim - 1))
    mean = (chance * each).sum(0)
    assert_close(mean, exact, VALUES)  # so that the estimator is unbiased, whatever was drawn
    error = ((chance * (each - mean) ** 2).sum(0) / samples).sqrt()
    assert ((estimate - exact).abs() <= 5 * error + VALUES["float64"]).all()
    assert (error < 0.2 * exact.abs().max()).all()  # or the test says nothing


def test_kl_and_its_derivatives_against_all_permutations(generator):
    p = torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)
    q = torch.tensor(OTHER, dtype=torch.float64, requires_grad=True)
    samples = 20_000
    estimate = so.PlackettLuce(p).kl_divergence(
        so.PlackettLuce(q), samples=samples, generator=generator
    )
    log_p, log_q = all_log_probs(p).detach(), all_log_probs(q).detach()
    ratio, chance = log_p - log_q, log_p.exp()
    exact = exact_kl(p, q)
    within_errors(estimate, exact.detach(), ratio, chance, samples)

    to_p, to_q = torch.autograd.grad(estimate, (p, q), create_graph=True)
    exact_p, exact_q = torch.autograd.grad(exact, (p, q))
    slope_p, slope_q = (torch.func.jacrev(all_log_probs)(s.detach()) for s in (p, q))
    within_errors(to_p, exact_p, slope_p * (1 + ratio[:, None]), chance, samples)
    within_errors(to_q, exact_q, -slope_q, chance, samples)

    curve = torch.stack([torch.autograd.grad(g, p, retain_graph=True)[0] for g in to_p])
    bend = torch.func.hessian(all_log_probs)(p.detach())
    outer = slope_p[:, :, None] * slope_p[:, None, :]
    each = bend + 2 * outer + ratio[:, None, None] * (bend + outer)
    exact_curve = torch.func.hessian(exact_kl)(p.detach(), q.detach())
    within_errors(curve, exact_curve, each, chance, samples)


def test_kl_in_numpy():
    p, q = np.array(SCORES), np.array(OTHER)
    exact = exact_kl(torch.as_tensor(p), torch.as_tensor(q)).item()
    estimate = so.PlackettLuce(p).kl_divergence(
        so.PlackettLuce(q), samples=DRAWS, generator=source("numpy")
    )
    assert estimate == pytest.approx(exact, rel=SAMPLED[DRAWS])


@both
def test_kl_broadcasts_and_minds_dim(framework):
    rng = np.random.default_rng(6)
    p, q = rng.normal(size=(3, 4)), rng.normal(size=(2, 3, 4))
    one, many = so.PlackettLuce(array(p, framework)), so.PlackettLuce(array(q, framework))
    first = so.PlackettLuce(array(np.moveaxis(q, -1, 0), framework), dim=0)
    there, same = (
        as_numpy(one.kl_divergence(other, samples=20_000, generator=source(framework)))
        for other in (many, first)
    )
    assert there.shape == (2, 3)
    assert_close(there, same, VALUES["float64"])
    exact = [
        [float(exact_kl(*map(torch.as_tensor, (p[j], q[i, j])))) for j in range(3)]
        for i in range(2)
    ]
    np.testing.assert_allclose(there, exact, atol=SAMPLED[4000])
    assert as_numpy(many.kl_divergence(one, generator=source(framework))).shape == (2, 3)
    assert (as_numpy(many.kl_divergence(many, generator=source(framework))) == 0).all()


@both
def test_kl_is_infinite_where_other_cannot_follow(framework):
    p = so.PlackettLuce(array([0.0, 0.0, 0.0], framework))
    q = so.PlackettLuce(array([INF, 0.0, 0.0], framework))
    assert as_numpy(p.kl_divergence(q, generator=source(framework))) == INF
    assert np.isfinite(as_numpy(q.kl_divergence(p, generator=source(framework))))


@pytest.mark.parametrize("wiring", [NUMPY, TORCH], ids=lambda w: w.name)
def test_gumbel_noise(wiring):
    like = array([0.0], wiring.name, "float32")
    noise = wiring.gumbel((DRAWS,), like, source(wiring.name))
    assert noise.dtype == like.dtype
    assert scipy.stats.kstest(as_numpy(noise), scipy.stats.gumbel_r.cdf).pvalue > SIGNIFICANCE


def test_gumbel_noise_is_finite_where_uniform_noise_is_zero(monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **kwargs: torch.zeros(shape))
    assert TORCH.gumbel((3,), torch.zeros(1), None).isfinite().all()


@pytest.mark.parametrize("wiring", [NUMPY, TORCH], ids=lambda w: w.name)
def test_cumulative_logsumexp(wiring):
    x = np.array([[-INF, -INF, -1e4, -1e4, 3.0, -INF, 2.0], [1e4, 0.0, -1e4, 1e4, 2e4, 0.0, NAN]])
    with np.errstate(invalid="ignore"):
        expected = np.logaddexp.accumulate(x, axis=-1)
    assert_close(cumulative_logsumexp(wiring, array(x, wiring.name)), expected, ONE_ROUNDING)


def test_derivatives_of_cumulative_logsumexp():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 0.0, -2.0, 0.0, 3.0], dtype=torch.float64)

    def cumulate(x):
        # Empty sums, and cotangents that are zero: both are NaN in torch.logcumsumexp.
        x = torch.cat([torch.full((2,), -INF, dtype=x.dtype), x])
        return cumulative_logsumexp(TORCH, x)[2:] * weights

    assert gradcheck(cumulate, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(cumulate, (x,), torch.zeros(5, dtype=torch.float64, requires_grad=True))
