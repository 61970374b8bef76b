"""Plackett-Luce: likelihoods against a loop, draws against likelihoods, in NumPy and torch."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import softorder as so
from inside import NUMPY, TORCH, find_wiring
from softorder.torch import PlackettLuce
from tolerances import GRADIENTS, VALUES, as_numpy, assert_close, gradcheck, gradgradcheck

INF, NAN = math.inf, math.nan
SCORES = [0.3, -1.2, 0.9, 0.1]
OTHER = [-0.4, 0.5, 0.2, 0.0]
DRAWS = 100_000
SIGNIFICANCE = 1e-3
FRAMEWORKS = ["numpy", "torch"]

both = pytest.mark.parametrize("framework", FRAMEWORKS)


def array(x, framework, dtype="float64"):
    x = np.asarray(x)
    if x.dtype.kind == "f" and framework == "numpy":
        return x.astype(dtype)
    x = torch.as_tensor(x)
    if framework == "numpy":
        return x.numpy()
    return x.to(getattr(torch, dtype)) if x.is_floating_point() else x


def source(framework, seed=20200713):
    if framework == "numpy":
        return np.random.default_rng(seed)
    return torch.Generator().manual_seed(seed)


def permutations(n):
    return np.array(list(itertools.permutations(range(n)))).reshape(-1, n)


def log_sum_exp(x):
    largest = max(x)
    return largest + math.log(math.fsum(math.exp(each - largest) for each in x))


def oracle(scores, permutation, mask=None):
    """The definition: one item after the other, each from the best kind of those that are left."""
    left = [j for j in range(len(scores)) if mask is None or mask[j]]
    if any(math.isnan(scores[j]) for j in left):
        return NAN
    total = 0.0
    for item in permutation[: len(left)]:
        if item not in left:
            return -INF
        best = max(scores[j] for j in left)
        kind = [j for j in left if scores[j] == best] if math.isinf(best) else left
        kind = [j for j in kind if math.isinf(best) or scores[j] != -INF]
        if item not in kind:
            return -INF
        weights = {j: 0.0 if math.isinf(best) else scores[j] for j in kind}
        total += weights[item] - log_sum_exp(list(weights.values()))
        left.remove(item)
    return total


def oracle_rows(scores, permutation, mask=None):
    """The oracle for batches: permutation (..., n), the others broadcast to its shape."""
    permutation = np.asarray(permutation)
    scores = np.broadcast_to(scores, permutation.shape)
    mask = np.broadcast_to(True if mask is None else mask, permutation.shape)
    out = [oracle(scores[i], permutation[i], mask[i]) for i in np.ndindex(permutation.shape[:-1])]
    return np.array(out).reshape(permutation.shape[:-1])


def check_frequencies(drawn, log_p, table):
    """Compare how often each permutation of the table was drawn with its likelihood."""
    drawn, chance = as_numpy(drawn).reshape(-1, table.shape[-1]), np.exp(as_numpy(log_p))
    base = table.shape[-1] ** np.arange(table.shape[-1])
    seen = np.sum((drawn @ base)[:, None] == table @ base, axis=0)
    assert seen.sum() == len(drawn)
    assert np.all(seen[chance == 0] == 0)
    expected = chance[chance > 0] * len(drawn)
    statistic = np.sum((seen[chance > 0] - expected) ** 2 / expected)
    assert statistic < scipy.stats.chi2.isf(SIGNIFICANCE, max(len(expected) - 1, 1))


# --- likelihoods -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_log_prob_is_the_definition(framework, dtype):
    table = permutations(4)
    scores = array(SCORES, framework, dtype)
    actual = so.PlackettLuce(scores).log_prob(array(table, framework))
    assert_close(actual, oracle_rows(as_numpy(scores), table), VALUES)


@both
def test_log_prob_sums_to_one_over_all_permutations(framework):
    for scores in (SCORES, [INF, 0.0, INF, -INF], [0.0, 50.0, -50.0, 1.0]):
        log_p = so.PlackettLuce(array(scores, framework)).log_prob(
            array(permutations(4), framework)
        )
        assert_close(np.exp(as_numpy(log_p)).sum(), 1.0, 1e-12)


@both
def test_batches_sample_dimensions_and_a_shared_vector(framework):
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(3, 2, 5))
    drawn = rng.permuted(np.broadcast_to(np.arange(5), (7, 3, 2, 5)), axis=-1)
    law = so.PlackettLuce(array(scores, framework))
    assert_close(
        law.log_prob(array(drawn, framework)), oracle_rows(scores, drawn), VALUES["float64"]
    )
    shared = np.array([4, 2, 0, 1, 3])
    expected = oracle_rows(scores, np.broadcast_to(shared, scores.shape))
    assert_close(law.log_prob(array(shared, framework)), expected, VALUES["float64"])


@both
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_any_dimension(framework, dim):
    rng = np.random.default_rng(2)
    last = rng.normal(size=(3, 4, 5))
    mask = rng.random(last.shape) < 0.7
    scores, masked = (array(np.moveaxis(x, -1, dim), framework) for x in (last, mask))
    law = so.PlackettLuce(scores, dim=dim, mask=masked)
    reference = so.PlackettLuce(array(last, framework), mask=array(mask, framework))
    drawn = law.sample((6,), generator=source(framework))
    expected = as_numpy(reference.sample((6,), generator=source(framework)))
    axis = dim if dim < 0 else dim - 3
    np.testing.assert_array_equal(as_numpy(drawn), np.moveaxis(expected, -1, axis))
    assert_close(
        law.log_prob(drawn), oracle_rows(last, expected.astype(int), mask), VALUES["float64"]
    )
    np.testing.assert_array_equal(
        as_numpy(law.mode), np.moveaxis(as_numpy(reference.mode), -1, dim)
    )
    soft = law.rsample((6,), generator=source(framework))
    same = reference.rsample((6,), generator=source(framework))
    assert_close(soft.matrix(), same.matrix(), VALUES["float64"])


@both
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_log_weights_may_lie_far_apart(framework, dtype):
    rng = np.random.default_rng(3)
    scores = np.array([1e4, -1e4, 0.0, 0.5, -1e4, 1e4, 3e3])
    drawn = rng.permuted(np.broadcast_to(np.arange(7), (50, 7)), axis=-1)
    drawn = np.concatenate([drawn, [[0, 5, 6, 3, 2, 4, 1]]])
    law = so.PlackettLuce(array(scores, framework, dtype))
    actual = law.log_prob(array(drawn, framework))
    assert_close(actual, oracle_rows(scores, drawn), VALUES)
    assert_close(actual[-1], oracle(scores, drawn[-1]), VALUES)


@both
def test_a_common_offset_changes_nothing(framework):
    table = permutations(4)
    scores = np.array([0.5, -1.25, 1.0, 0.0])
    law = so.PlackettLuce(array(scores + 2.0**20, framework, "float32"))
    assert_close(law.log_prob(array(table, framework)), oracle_rows(scores, table), VALUES)


@both
def test_infinite_log_weights(framework):
    scores = [INF, -INF, 0.3, INF, -0.2]
    table = permutations(5)
    law = so.PlackettLuce(array(scores, framework))
    log_p = as_numpy(law.log_prob(array(table, framework)))
    np.testing.assert_allclose(log_p, oracle_rows(scores, table), rtol=1e-12)
    assert np.isfinite(log_p).sum() == 2 * 2
    for ends in ([INF] * 4, [-INF] * 4):
        flat = so.PlackettLuce(array(ends, framework)).log_prob(array(permutations(4), framework))
        assert_close(flat, np.full(24, -math.log(24)), VALUES["float64"])


@both
def test_a_mask_is_as_if_the_others_were_not_there(framework):
    table = permutations(5)
    scores = np.array([0.3, NAN, -1.0, INF, 0.8])
    mask = np.array([True, False, True, False, True])
    law = so.PlackettLuce(array(scores, framework), mask=array(mask, framework))
    log_p = as_numpy(law.log_prob(array(table, framework)))
    np.testing.assert_allclose(log_p, oracle_rows(scores, table, mask), rtol=1e-12)
    assert np.exp(log_p).sum() == pytest.approx(2)  # the two masked items in either order
    drawn = as_numpy(law.sample((1000,), generator=source(framework)))
    np.testing.assert_array_equal(drawn[:, 3:], [[1, 3]] * 1000)
    none = so.PlackettLuce(array(scores, framework), mask=array(np.zeros(5, bool), framework))
    assert as_numpy(none.log_prob(array(table[7], framework))) == 0
    np.testing.assert_array_equal(as_numpy(none.sample()), np.arange(5))


@both
def test_a_nan_spoils_its_row_alone(framework):
    scores = np.array([[0.0, NAN, 1.0], [0.5, 0.2, 0.1], [INF, NAN, -INF]])
    law = so.PlackettLuce(array(scores, framework))
    for permutation in permutations(3):
        log_p = as_numpy(law.log_prob(array(permutation, framework)))
        assert np.isnan(log_p[[0, 2]]).all()
        assert_close(log_p[1], oracle(scores[1], permutation), 1e-12)
    drawn = as_numpy(law.sample((20,), generator=source(framework)))
    np.testing.assert_array_equal(np.sort(drawn), np.broadcast_to(np.arange(3), drawn.shape))
    if framework == "torch":
        leaf = array(scores, "torch").requires_grad_()
        so.PlackettLuce(leaf).log_prob(torch.tensor([1, 0, 2])).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad[1].isfinite().all()


def test_derivatives(generator):
    scores = torch.randn(2, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    drawn = so.PlackettLuce(scores).sample((3,), generator=generator)
    masked = torch.tensor([[True, True, False, True, True]])
    valid_first = so.PlackettLuce(scores, mask=masked).sample((3,), generator=generator)
    for mask, permutation in ((None, drawn), (masked, valid_first)):

        def log_prob(s, mask=mask, permutation=permutation):
            return so.PlackettLuce(s, mask=mask).log_prob(permutation)

        assert gradcheck(log_prob, scores, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(log_prob, scores, check_batched_grad=True)


def test_the_gradient_where_log_weights_lie_far_apart():
    scores = torch.tensor([0.3, -INF, 1e4, 0.9, INF, -1e4], dtype=torch.float64)
    leaf = scores.clone().requires_grad_()
    so.PlackettLuce(leaf).log_prob(torch.tensor([4, 3, 2, 5, 0, 1])).backward()
    # Two surprises: 3 comes before 2, and 5 before 0. Each place gives one-hot minus softmax.
    expected = torch.tensor([-1.0, 0.0, -1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    assert leaf.grad is not None
    assert_close(leaf.grad, expected, GRADIENTS)


def test_an_impossible_permutation_has_no_gradient():
    scores = torch.tensor([0.3, INF, 0.1], requires_grad=True)
    log_p = so.PlackettLuce(scores).log_prob(torch.tensor([0, 1, 2]))
    assert log_p == -INF
    log_p.backward()
    assert scores.grad is not None
    assert torch.equal(scores.grad, torch.zeros(3))


@pytest.mark.parametrize("masked", [False, True])
def test_compile_and_vmap(masked, generator):
    scores = torch.randn(3, 6, generator=generator, requires_grad=True)
    mask = torch.tensor([True] * 4 + [False, True]) if masked else None
    drawn = so.PlackettLuce(scores, mask=mask).sample(generator=generator)

    def log_prob(s, permutation):
        return so.PlackettLuce(s, 0.5, mask=mask).log_prob(permutation)

    expected = log_prob(scores, drawn)
    (gradient,) = torch.autograd.grad(expected.sum(), scores)
    compiled = torch.compile(log_prob, fullgraph=True, backend="aot_eager")(scores, drawn)
    assert_close(compiled, expected, VALUES)
    assert_close(torch.autograd.grad(compiled.sum(), scores)[0], gradient, GRADIENTS)
    assert_close(torch.func.vmap(log_prob)(scores, drawn), expected, VALUES)
    per_row = torch.func.vmap(torch.func.grad(log_prob))(scores, drawn)
    assert_close(per_row, gradient, GRADIENTS)


def test_draws_under_compile_and_vmap():
    scores = torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.2, 0.1]])
    compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    draw = compiled(lambda s: so.PlackettLuce(s).sample((4,)))
    assert torch.equal(draw(scores).sort(-1).values, torch.arange(3).expand(4, 2, 3))
    soft = compiled(lambda s: so.PlackettLuce(s).rsample((4,)).matrix())
    assert_close(soft(scores).sum(-1), torch.ones(4, 2, 3), VALUES)
    each = torch.func.vmap(lambda s: so.PlackettLuce(s).sample((4,)), randomness="different")
    assert torch.equal(each(scores).sort(-1).values, torch.arange(3).expand(2, 4, 3))


# --- draws -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "scores",
    [SCORES, [INF, 0.5, INF, -0.5], [-INF, 0.0, -INF, -INF], [1e4, 0.0, 1e4, 0.0]],
    ids=["finite", "first", "last", "far"],
)
def test_draws_follow_the_likelihood(framework, scores):
    table = permutations(4)
    law = so.PlackettLuce(array(scores, framework))
    drawn = law.sample((DRAWS,), generator=source(framework))
    assert str(drawn.dtype).removeprefix("torch.") == "int64"
    check_frequencies(drawn, law.log_prob(array(table, framework)), table)


@both
def test_single_precision_does_not_lose_the_noise(framework):
    """Noise added to 1e8 in float32 would vanish, and ties would fall in the items' own order."""
    law = so.PlackettLuce(array([1e8, 1e8, 1e8], framework, "float32"))
    drawn = law.sample((DRAWS,), generator=source(framework))
    check_frequencies(drawn, np.full(6, -math.log(6)), permutations(3))


@both
def test_the_first_place_is_a_softmax(framework):
    scores = np.random.default_rng(4).normal(size=6)
    drawn = so.PlackettLuce(array(scores, framework)).sample((DRAWS,), generator=source(framework))
    first = np.bincount(as_numpy(drawn)[:, 0].astype(int), minlength=6)
    expected = scipy.special.softmax(scores) * DRAWS
    assert scipy.stats.chisquare(first, expected).pvalue > SIGNIFICANCE


@both
def test_a_masked_draw_is_that_of_the_valid_items(framework):
    mask = np.array([True, False, True, True])
    law = so.PlackettLuce(array([0.3, NAN, -0.5, 0.9], framework), mask=array(mask, framework))
    drawn = law.sample((DRAWS,), generator=source(framework))
    table = np.array([[*p, 1] for p in itertools.permutations([0, 2, 3])])
    check_frequencies(drawn, law.log_prob(array(table, framework)), table)


@both
def test_the_same_seed_gives_the_same_draws(framework):
    law = so.PlackettLuce(array(np.zeros((2, 30)), framework))
    one, two, three = (
        as_numpy(law.sample((3,), generator=source(framework, seed))) for seed in (1, 1, 2)
    )
    assert one.shape == (3, 2, 30)
    assert (one == two).all()
    assert (one != three).any()
    # Batch rows and draws have noise of their own; so has a call without a generator.
    assert (one[0] != one[1]).any()
    assert (one[:, 0] != one[:, 1]).any()
    assert (as_numpy(law.sample()) != as_numpy(law.sample())).any()


@both
@pytest.mark.parametrize("how", [0.3, so.SoftSort(0.5, "square"), so.NeuralSort(0.7)], ids=repr)
def test_rsample_relaxes_scores_with_noise(framework, how):
    scores = array(np.random.default_rng(5).normal(size=(2, 5)), framework)
    soft = so.PlackettLuce(scores, how).rsample((3,), generator=source(framework))
    noise = find_wiring(scores).gumbel((3, 2, 5), scores, source(framework))
    expected = so.as_relaxation(how)(scores + noise)
    assert isinstance(soft, so.SoftPermutation)
    assert soft.shape == (3, 2, 5, 5)
    assert_close(soft.matrix(), expected.matrix(), VALUES["float64"])
    drawn = so.PlackettLuce(scores, how).sample((3,), generator=source(framework))
    np.testing.assert_array_equal(as_numpy(soft.order), as_numpy(drawn))


@both
def test_the_hard_order_of_soft_draws_follows_the_likelihood(framework):
    table = permutations(4)
    law = so.PlackettLuce(array(SCORES, framework, "float32"), 0.1)
    soft = law.rsample((DRAWS,), generator=source(framework))
    check_frequencies(soft.hard().order, law.log_prob(array(table, framework)), table)


def test_rsample_has_gradients(generator):
    scores = torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    seed = generator.get_state()

    def soft(s, t):
        generator.set_state(seed)
        return so.PlackettLuce(s, t).rsample((2,), generator=generator).matrix()

    assert gradcheck(soft, (scores, tau))
    exact = so.PlackettLuce(scores).rsample((2,), generator=generator).straight_through()
    (exact @ torch.arange(4.0, dtype=torch.float64)).sum(0)[0].backward()
    assert scores.grad is not None
    assert scores.grad.abs().sum() > 0


def test_a_temperature_for_each_row(generator):
    scores = torch.zeros(2, 4)
    tau = torch.tensor([1e-3, 1e6])
    soft = so.PlackettLuce(scores, tau).rsample((5,), generator=generator)
    assert_close(soft.matrix()[:, 0], soft.hard().matrix()[:, 0], 1e-2)
    assert_close(soft.matrix()[:, 1], torch.full((5, 4, 4), 0.25), 1e-3)


@both
def test_mode_is_the_likeliest(framework):
    table = permutations(4)
    law = so.PlackettLuce(array(SCORES, framework))
    log_p = as_numpy(law.log_prob(array(table, framework)))
    np.testing.assert_array_equal(as_numpy(law.mode), table[log_p.argmax()])


@both
@pytest.mark.parametrize("n", [0, 1])
def test_no_item_and_one_item(framework, n):
    law = so.PlackettLuce(array(np.zeros((2, n)), framework))
    drawn = law.sample((3,), generator=source(framework))
    assert tuple(drawn.shape) == (3, 2, n)
    assert_close(law.log_prob(drawn), np.zeros((3, 2)), 0)
    assert law.rsample((3,)).shape == (3, 2, n, n)
    assert tuple(law.mode.shape) == (2, n)
    assert_close(law.kl_divergence(law), np.zeros(2), 0)
    assert tuple(law.sample((0,)).shape) == (0, 2, n)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype, generator):
    scores = torch.tensor(SCORES, dtype=dtype, requires_grad=True)
    law = so.PlackettLuce(scores)
    table = permutations(4)
    log_p = law.log_prob(torch.as_tensor(table))
    assert log_p.dtype == dtype
    exact = oracle_rows(as_numpy(scores), table)
    assert_close(log_p, exact, VALUES)
    log_p.sum().backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype
    check_frequencies(law.sample((DRAWS,), generator=generator), exact, table)
    assert law.rsample().dtype == dtype
    assert law.kl_divergence(law).dtype == dtype


def test_numpy_half_precision():
    scores = np.array(SCORES, dtype=np.float16)
    law = so.PlackettLuce(scores)
    assert law.log_prob(law.sample()).dtype == np.float16
    assert law.rsample().dtype == np.float16


# --- divergence ------------------------------------------------------------------------------


def all_log_probs(scores):
    return so.PlackettLuce(scores).log_prob(torch.as_tensor(permutations(4)))


def exact_kl(p, q):
    log_p, log_q = all_log_probs(p), all_log_probs(q)
    return (log_p.exp() * (log_p - log_q)).sum()


def within_errors(estimate, exact, each, chance, samples):
    """Compare with 5 standard errors; `each` has what one draw of each permutation would give."""
    chance = chance.reshape(-1, *[1] * (each.ndim - 1))
    mean = (chance * each).sum(0)
    assert_close(mean, exact, 1e-9)  # so that the estimator is unbiased, whatever was drawn
    error = ((chance * (each - mean) ** 2).sum(0) / samples).sqrt()
    assert ((estimate - exact).abs() <= 5 * error + 1e-12).all()
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
    assert estimate == pytest.approx(exact, rel=0.02)


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
    assert_close(there, same, 1e-12)
    exact = [
        [float(exact_kl(*map(torch.as_tensor, (p[j], q[i, j])))) for j in range(3)]
        for i in range(2)
    ]
    np.testing.assert_allclose(there, exact, atol=0.05)
    assert as_numpy(many.kl_divergence(one, generator=source(framework))).shape == (2, 3)
    assert (as_numpy(many.kl_divergence(many, generator=source(framework))) == 0).all()


@both
def test_kl_is_infinite_where_other_cannot_follow(framework):
    p = so.PlackettLuce(array([0.0, 0.0, 0.0], framework))
    q = so.PlackettLuce(array([INF, 0.0, 0.0], framework))
    assert as_numpy(p.kl_divergence(q, generator=source(framework))) == INF
    assert np.isfinite(as_numpy(q.kl_divergence(p, generator=source(framework))))


# --- what the frameworks add -----------------------------------------------------------------


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
    assert_close(wiring.cumulative_logsumexp(array(x, wiring.name), -1), expected, 1e-15)
    across = wiring.cumulative_logsumexp(array(x.T, wiring.name), 0)
    assert_close(across, expected.T, 1e-15)


def test_derivatives_of_cumulative_logsumexp():
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 0.0, -2.0, 0.0, 3.0], dtype=torch.float64)

    def cumulate(x):
        # Empty sums, and cotangents that are zero: both are NaN in torch.logcumsumexp.
        x = torch.cat([torch.full((2,), -INF, dtype=x.dtype), x])
        return TORCH.cumulative_logsumexp(x, -1)[2:] * weights

    assert gradcheck(cumulate, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(cumulate, (x,), torch.zeros(5, dtype=torch.float64, requires_grad=True))


# --- torch.distributions ---------------------------------------------------------------------


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
    assert estimate[0].item() == pytest.approx(exact_kl(p[0], q).item(), abs=0.2)
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


# --- bad arguments ---------------------------------------------------------------------------


class OnlyRanks(so.Relaxation):
    def rank(self, scores, *, dim=-1, descending=False, mask=None):
        return scores


LAW = so.PlackettLuce(torch.zeros(2, 3))
ERRORS = {
    "integer scores": (
        lambda: so.PlackettLuce(torch.tensor([1, 2])),
        (TypeError, "scores must have a real floating dtype", "torch.int64", "Convert"),
    ),
    "a list": (
        lambda: so.PlackettLuce([1.0, 2.0]),
        (TypeError, "scores must be an array", "list", "Convert"),
    ),
    "no dimension": (
        lambda: so.PlackettLuce(torch.tensor(1.0)),
        (ValueError, "at least one dimension", "0-dimensional", "reshape"),
    ),
    "dim": (
        lambda: so.PlackettLuce(torch.zeros(2), dim=1),
        (ValueError, "dim must lie in [-1, 0]", "1", "Pass the dimension"),
    ),
    "how": (
        lambda: so.PlackettLuce(torch.zeros(2), "soft"),
        (TypeError, "how must be a temperature", "soft", "Pass for example 0.1"),
    ),
    "tau": (
        lambda: so.PlackettLuce(torch.zeros(2), -1.0),
        (ValueError, "tau must be positive", "-1", "hard()"),
    ),
    "no permutation": (
        lambda: so.PlackettLuce(torch.zeros(2), OnlyRanks()),
        (TypeError, "permutation matrix", "OnlyRanks, which has none", "SoftSort"),
    ),
    "mask": (
        lambda: so.PlackettLuce(torch.zeros(2), mask=torch.ones(2)),
        (TypeError, "mask must be boolean", "torch.float32", "Compare first"),
    ),
    "shape": (
        lambda: LAW.sample(5),
        (TypeError, "sequence of integers", "int 5", "(1000,)"),
    ),
    "negative shape": (
        lambda: LAW.rsample((-1,)),
        (ValueError, "must not be negative", "(-1,)", "0 or more"),
    ),
    "generator of numpy": (
        lambda: LAW.sample(generator=np.random.default_rng()),
        (TypeError, "generator must be", "Generator(PCG64)", "torch.Generator()"),
    ),
    "generator of torch": (
        lambda: so.PlackettLuce(np.zeros(2)).rsample(generator=torch.Generator()),
        (TypeError, "generator must be", "torch", "numpy.random.default_rng(0)"),
    ),
    "permutation of floats": (
        lambda: LAW.log_prob(torch.zeros(3)),
        (TypeError, "integer indices", "torch.float32", "argsort"),
    ),
    "no permutation at all": (
        lambda: LAW.log_prob(torch.tensor([0, 1, 1])),
        (ValueError, "each of 0..2 once", "[0, 1, 1]", "counted from 0"),
    ),
    "permutation too short": (
        lambda: LAW.log_prob(torch.tensor([0, 1])),
        (ValueError, "must have length 3", "2", "Check the dimension"),
    ),
    "permutation of another batch": (
        lambda: LAW.log_prob(torch.arange(3).expand(4, 3)),
        (ValueError, "broadcast with the batch shape (2,)", "(4,)", "Batch dimensions"),
    ),
    "permutation of another framework": (
        lambda: LAW.log_prob(np.arange(3)),
        (TypeError, "one framework", "permutation of numpy", "Convert"),
    ),
    "scalar permutation": (
        lambda: LAW.log_prob(torch.tensor(0)),
        (ValueError, "at least one dimension", "0-dimensional", "reshape"),
    ),
    "no samples": (
        lambda: LAW.kl_divergence(LAW, samples=0),
        (ValueError, "samples must be at least 1", "0", "1000"),
    ),
    "half a sample": (
        lambda: LAW.kl_divergence(LAW, samples=0.5),
        (TypeError, "samples must be an integer", "0.5", "1000"),
    ),
    "other is an array": (
        lambda: LAW.kl_divergence(torch.zeros(2, 3)),
        (TypeError, "other must be a PlackettLuce", "Tensor of shape (2, 3)", "Wrap"),
    ),
    "other has more items": (
        lambda: LAW.kl_divergence(so.PlackettLuce(torch.zeros(2, 4))),
        (ValueError, "same number of items, 3", "4", "dim="),
    ),
    "other has another batch": (
        lambda: LAW.kl_divergence(so.PlackettLuce(torch.zeros(5, 3))),
        (ValueError, "the batch shape of other", "(5,)", "Batch dimensions"),
    ),
    "other of another framework": (
        lambda: LAW.kl_divergence(so.PlackettLuce(np.zeros(3))),
        (TypeError, "one framework", "other.scores of numpy", "Convert"),
    ),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS.keys())
def test_errors_have_three_parts(case):
    call, (kind, expected, received, fix) = case
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    got, rest = text.index("; got "), text.rindex(". ")
    assert expected in text[:got]
    assert received in text[got:]
    assert fix in text[got:]
    assert got < rest


def test_repr():
    law = so.PlackettLuce(torch.zeros(2, 3), 0.5, dim=0, mask=torch.ones(3, dtype=torch.bool))
    assert repr(law) == (
        "PlackettLuce(shape=(2, 3), dtype=torch.float32, how=SoftSort(tau=0.5, metric='abs'), "
        "dim=-2, masked)"
    )
