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
from inside import find_wiring
from plackett_luce_oracle import (
    DRAWS,
    INF,
    NAN,
    SCORES,
    SIGNIFICANCE,
    array,
    both,
    check_frequencies,
    oracle,
    oracle_rows,
    permutations,
    source,
)
from tolerances import (
    GRADIENTS,
    HOT_LIMIT,
    VALUES,
    as_numpy,
    assert_close,
    gradcheck,
    gradgradcheck,
)


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
        assert_close(np.exp(as_numpy(log_p)).sum(), 1.0, VALUES["float64"])


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
    np.testing.assert_allclose(log_p, oracle_rows(scores, table), rtol=VALUES["float64"])
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
    np.testing.assert_allclose(log_p, oracle_rows(scores, table, mask), rtol=VALUES["float64"])
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
        assert_close(log_p[1], oracle(scores[1], permutation), VALUES["float64"])
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
    assert_close(soft.matrix()[:, 0], soft.hard().matrix()[:, 0], VALUES)
    assert_close(soft.matrix()[:, 1], torch.full((5, 4, 4), 0.25), HOT_LIMIT)


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
