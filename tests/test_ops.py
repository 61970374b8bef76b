"""The operations: against the oracle, and in the limit against their namesakes."""

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
import softorder as so
import strategies as our
from tolerances import ITERATED, LIMIT, VALUES, assert_close, gradcheck

COLD = 1e-6
directions = st.booleans()


# ---------------------------------------------------------------- against the oracle


@given(our.masked_scores(), our.temperatures, our.powers, directions)
def test_values_are_the_oracles(masked, tau, p, up):
    s, mask = masked
    how, t = so.SoftSort(tau, p), (lambda x: torch.tensor(x))
    ours = {
        "sort": lambda x, m: so.sort(x, how, mask=m, descending=up),
        "argsort": lambda x, m: so.argsort(x, how, mask=m, descending=up),
        "rank": lambda x, m: so.rank(x, how, mask=m, descending=up),
        "topk": lambda x, m: so.topk(x, 1, how, mask=m, largest=up),
        "topk_mask": lambda x, m: so.topk_mask(x, 1, how, mask=m, largest=up),
        "quantile": lambda x, m: so.quantile(x, 0.3, how, mask=m),
    }
    expected = {
        "sort": oracles.softsort_sort(s, tau, p, mask, descending=up),
        "argsort": oracles.softsort_argsort(s, tau, p, mask, descending=up),
        "rank": oracles.softsort_rank(s, tau, p, mask, descending=up),
        "topk": oracles.softsort_topk(s, 1, tau, p, mask, largest=up),
        "topk_mask": oracles.softsort_topk_mask(s, 1, tau, p, mask, largest=up),
        "quantile": oracles.softsort_quantile(s, 0.3, tau, p, mask),
    }
    for name, operation in ours.items():
        assert_close(operation(s, mask), expected[name], VALUES)
        assert_close(operation(t(s), t(mask)), expected[name], VALUES)


@given(our.scores(min_size=1, infinite=True), our.temperatures, directions)
def test_infinities_are_the_oracles(s, tau, up):
    assert_close(
        so.sort(s, tau, descending=up),
        oracles.softsort_sort(s, tau, 1.0, descending=up),
        VALUES,
    )
    assert_close(so.rank(s, tau), oracles.softsort_rank(s, tau, 1.0), VALUES)


@given(st.data(), our.scores(min_size=1), our.temperatures)
def test_sort_by_keys_is_the_oracles(data, s, tau):
    values = data.draw(our.vectors(len(s)))
    expected = oracles.softsort_sort(s, tau, 1.0, values=values)
    assert_close(so.sort(values, tau, by=s), expected, VALUES)


@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("metric", ["abs", "square"])
def test_knn_weights_are_the_oracles(k, metric, generator):
    query = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    neighbors = torch.randn(7, 3, generator=generator, dtype=torch.float64)
    power = {"abs": 1.0, "square": 2.0}[metric]
    expected = np.stack(
        [oracles.knn_weights(x, neighbors.numpy(), k, 0.7, power) for x in query.numpy()]
    )
    assert_close(so.knn(query, neighbors, k, so.SoftSort(0.7, metric)), expected, VALUES)


# ---------------------------------------------------------------- in the limit


@pytest.fixture
def x(generator):
    return torch.randn(3, 8, 5, generator=generator)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_argsort_go_to_torchs(x, dim, descending):
    expected = torch.sort(x, dim=dim, descending=descending)
    torch.testing.assert_close(so.sort(x, COLD, dim=dim, descending=descending), expected.values)
    soft = so.argsort(x, COLD, dim=dim, descending=descending)
    torch.testing.assert_close(soft, expected.indices.to(x.dtype))


def test_the_issues_example():
    scores = torch.tensor([2.0, 5.0, 4.0])
    assert torch.equal(so.sort(scores, 1e-6), torch.sort(scores).values)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_rank_goes_to_scipys_with_ties(x, dim):
    x[0, 2] = x[0, 5]
    expected = scipy.stats.rankdata(x.numpy(), axis=dim)
    np.testing.assert_allclose(so.rank(x, COLD, dim=dim).numpy(), expected, rtol=LIMIT)
    down = scipy.stats.rankdata(-x.numpy(), axis=dim)
    np.testing.assert_allclose(so.rank(x, COLD, dim=dim, descending=True).numpy(), down, rtol=LIMIT)


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_goes_to_torchs(x, dim, largest):
    expected = torch.topk(x, 3, dim=dim, largest=largest)
    torch.testing.assert_close(so.topk(x, 3, COLD, dim=dim, largest=largest), expected.values)
    chosen = torch.zeros_like(x).scatter(dim, expected.indices, 1.0)
    soft = so.topk_mask(x, 3, COLD, dim=dim, largest=largest)
    torch.testing.assert_close(soft, chosen)


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, [0.5], [0.9, 0.0, 0.31], torch.tensor([0.2, 0.7])])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("keepdim", [False, True])
def test_quantile_goes_to_torchs(x, q, dim, keepdim):
    expected = torch.quantile(x, torch.as_tensor(q), dim=dim, keepdim=keepdim)
    soft = so.quantile(x, q, COLD, dim=dim, keepdim=keepdim)
    torch.testing.assert_close(soft, expected)


def test_median_is_the_mean_of_the_middle_two_for_even_n():
    assert so.median(torch.tensor([1.0, 4.0, 2.0, 8.0]), COLD) == 3.0
    assert so.median(torch.tensor([1.0, 4.0, 2.0]), COLD) == 2.0
    assert so.median(torch.ones(2, 3, 4), dim=1, keepdim=True).shape == (2, 1, 4)


def test_torchs_median_is_the_lower_of_the_middle_two(generator):
    x = torch.randn(5, 6, generator=generator)
    lower = so.quantile(x, 0.5, COLD, interpolation="lower")
    torch.testing.assert_close(lower, x.median(-1).values)


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "nearest", "midpoint"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_interpolation_is_torchs(interpolation, n, generator):
    x = torch.randn(3, n, generator=generator)
    q = torch.tensor([0.0, 0.1, 0.125, 0.25, 0.375, 0.5, 0.625, 0.7, 1.0])
    expected = torch.quantile(x, q, dim=-1, interpolation=interpolation)
    soft = so.quantile(x, q.tolist(), COLD, interpolation=interpolation)
    torch.testing.assert_close(soft, expected)


@pytest.mark.parametrize("interpolation", ["lower", "higher", "midpoint"])
def test_interpolation_does_not_look_at_a_neighbour_without_weight(interpolation):
    s = np.array([-np.inf, 1.0, 2.0, np.inf])
    found = so.quantile(s, [0.4, 1 / 3], COLD, interpolation=interpolation)
    np.testing.assert_allclose(
        found, [{"lower": 1, "higher": 2, "midpoint": 1.5}[interpolation], 1]
    )


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("q", [0.3, [0.1, 0.9]])
def test_without_a_dimension_a_quantile_is_that_of_all(x, q, keepdim):
    expected = torch.quantile(x, torch.as_tensor(q), dim=None, keepdim=keepdim)
    soft = so.quantile(x, q, COLD, dim=None, keepdim=keepdim)
    torch.testing.assert_close(soft, expected)
    mask = x[..., :1] > 0
    valid = torch.quantile(x[mask.expand(x.shape)], torch.as_tensor(q))
    soft = so.quantile(x, q, COLD, dim=None, mask=mask)
    torch.testing.assert_close(soft, valid)
    assert so.median(x, COLD, dim=None).shape == ()


def test_the_top_zero_are_none(x):
    for dim in (0, 1, -1):
        top = so.topk(x, 0, 0.5, dim=dim)
        assert top.shape == torch.topk(x, 0, dim=dim).values.shape
        assert torch.equal(so.topk_mask(x, 0, 0.5, dim=dim), torch.zeros_like(x))
    leaf = x.clone().requires_grad_()
    (so.topk(leaf, 0, 0.5).sum() + so.topk_mask(leaf, 0, 0.5).sum()).backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().max() == 0
    assert so.topk(torch.ones(2, 0), 0).shape == (2, 0)


def test_a_number_is_its_own_sort(framework):
    x, mask = np.array(3.0), np.array(True)
    how = so.SoftSort(0.5)
    ours = {
        "sort": lambda x, m: so.sort(x, how, mask=m),
        "topk": lambda x, m: so.topk(x, 1, how, mask=m),
        "quantile": lambda x, m: so.quantile(x, 0.3, how, mask=m),
        "keepdim": lambda x, m: so.quantile(x, 0.3, how, keepdim=True, mask=m),
        "median": lambda x, m: so.median(x, how, dim=0, mask=m),
        "rank": lambda x, m: 3 * so.rank(x, how, mask=m),
        "argsort": lambda x, m: 3 + so.argsort(x, how, mask=m),
        "topk_mask": lambda x, m: 3 * so.topk_mask(x, 1, how, mask=m),
    }
    for name, operation in ours.items():
        y = framework.value(operation, x, mask)
        assert y.shape == (), name
        assert y == 3.0, name
        assert framework.value(lambda x, f=operation: f(x, None), x) == 3.0
    _, (g,) = framework.pull(lambda x: so.sort(x, how), [x], np.array(1.0))
    assert g == 1.0
    for call in (lambda: so.sort(x, dim=1), lambda: so.quantile(x, 0.5, dim=1)):
        with pytest.raises(ValueError, match=r"dim must lie in \[-1, 0\]"):
            call()


def test_quantile_does_not_look_at_an_infinite_neighbour_without_weight():
    s = np.array([1.0, 2.0, np.inf])
    assert so.quantile(s, 0.5, COLD) == 2.0
    assert so.quantile(s, 0.75, COLD) == np.inf
    assert so.quantile(s, 1.0, COLD) == np.inf


def test_quantile_differentiates_with_respect_to_q():
    q = torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)
    s = torch.tensor([3.0, 1.0, 2.0, 7.0], dtype=torch.float64)
    assert gradcheck(lambda q: so.quantile(s, q, 0.4), q)


def test_hard_knn_is_the_limit(generator):
    query = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    neighbors = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    nearest = torch.cdist(query, neighbors).topk(3, largest=False).indices
    expected = torch.zeros(6, 9, dtype=torch.float64).scatter(1, nearest, 1 / 3)
    assert_close(so.knn(query, neighbors, 3, 1e-7), expected, VALUES)


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_ranks_are_right_past_256(autocast):
    """They were off by 8 at n = 3,000."""
    x = (torch.arange(3000, dtype=torch.int16) + 0x3F00).view(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        for how in (1e-6, so.NeuralSort(1e-6), so.FastSoftRank(1e-6), so.ApproximateRank(1e-6)):
            ranks = so.rank(x, how)
            assert ranks.dtype == torch.float32
            torch.testing.assert_close(ranks, torch.arange(1.0, 3001.0))
        torch.testing.assert_close(so.argsort(x.flip(0), 1e-6), torch.arange(2999.0, -1.0, -1.0))


def test_float16_ranks_are_finite_past_65504():
    x = torch.zeros(70_000, dtype=torch.float16)
    x[123] = 1.0
    assert so.rank(x, 1e-3)[123] == 70_000
    assert so.argsort(x, 1e-3)[-1] == 123


# ---------------------------------------------------------------- sort by keys, kNN with labels


@pytest.mark.parametrize(
    ("shape", "keys", "dim"),
    [
        ((4, 3, 2), (4, 3), 1),
        ((4, 3, 2), (4, 3), -2),
        ((3, 4, 2), (3, 4), 0),
        ((4, 2, 3), (4, 3), -1),
        ((4, 3), (3,), -1),
        ((4, 3, 2), (3,), 1),
        ((3,), (4, 3), -1),
        ((4, 5, 3), (4, 5, 3), -1),
        ((4, 5, 3), (4, 1, 3), -1),
    ],
)
def test_sort_by_keys_with_features(shape, keys, dim, generator):
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    by = torch.randn(keys, generator=generator, dtype=torch.float64)
    # The items are the dimension of length 3; spell the batch out and gather.
    items = [i for i, n in enumerate(keys) if n == 3][-1]
    order = torch.sort(by, dim=items).indices
    place = [i for i, n in enumerate(shape) if n == 3][-1]
    last = x.movedim(place, -1)
    order = order.movedim(items, -1)
    if len(keys) < len(shape):
        lead = order.ndim - 1
        order = order.reshape(*order.shape[:-1], *[1] * (last.ndim - order.ndim), 3)
        assert lead <= last.ndim - 1
    expected = torch.take_along_dim(
        last.expand(*order.shape[:-1], 3) if last.ndim < order.ndim else last, order, -1
    )
    expected = expected.movedim(-1, dim)
    assert_close(so.sort(x, 1e-9, by=by, dim=dim), expected, VALUES)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("of_keys", [torch.float16, torch.float32, torch.float64])
def test_sort_by_keys_has_the_dtype_of_the_values(dtype, of_keys):
    by = torch.tensor([0.3, 0.1, 0.2], dtype=of_keys)
    y = so.sort(torch.tensor([1.0, 2.0, 3.0], dtype=dtype), 1e-3, by=by)
    assert y.dtype == dtype
    assert y.tolist() == [2.0, 3.0, 1.0]
    whole = so.sort(torch.tensor([1, 2, 3]), 1e-3, by=by)
    assert whole.dtype == of_keys


def test_sort_by_keys_with_a_mask():
    x = torch.tensor([[1.0, 10.0], [2.0, 20.0], [torch.nan, 0.0]])
    by = torch.tensor([5.0, 3.0, 4.0])
    y = so.sort(x, COLD, by=by, dim=0, mask=torch.tensor([True, True, False]))
    assert torch.equal(y, torch.tensor([[2.0, 20.0], [1.0, 10.0], [0.0, 0.0]]))


def test_knn_class_probabilities(generator):
    query = torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)
    neighbors = torch.randn(2, 9, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(9) % 3
    weights = so.knn(query, neighbors, 4, 0.5)
    assert_close(weights.sum(-1), torch.ones(2, 6), VALUES)
    chances = so.knn(query, neighbors, 4, 0.5, labels=labels)
    assert chances.shape == (2, 6, 3)
    for c in range(3):
        assert_close(chances[..., c], weights[..., labels == c].sum(-1), VALUES)
    wide = so.knn(query, neighbors, 4, 0.5, labels=labels.expand(2, 9), num_classes=5)
    assert_close(wide[..., :3], chances, VALUES)
    assert wide[..., 3:].abs().max() == 0


def test_knn_with_a_mask_is_knn_without_the_others(generator):
    query = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    neighbors = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1, 0], dtype=torch.bool)
    spoiled = torch.where(mask[:, None], neighbors, torch.nan)
    weights = so.knn(query, spoiled, 2, 0.5, mask=mask)
    assert_close(weights[:, mask], so.knn(query, neighbors[mask], 2, 0.5), ITERATED)
    assert weights[:, ~mask].abs().max() == 0
    few = so.knn(query, spoiled, 7, 0.5, mask=mask)
    assert_close(few.sum(-1), torch.ones(5), VALUES)


@pytest.mark.parametrize("outlier", [1e3, 1e5])
@pytest.mark.parametrize("shift", [0.0, 1e3])
def test_knn_does_not_lose_digits_far_from_the_origin(outlier, shift, generator):
    query = torch.randn(5, 3, generator=generator) + shift
    near = torch.randn(8, 3, generator=generator) + shift
    neighbors = torch.cat([near, near[:4] + outlier])
    exact = so.knn(query.double(), neighbors.double(), 2, 0.5)
    assert_close(so.knn(query, neighbors, 2, 0.5), exact, VALUES)


def test_knn_of_an_infinite_neighbour_is_knn_without_it():
    points = torch.tensor([[0.0], [1.0], [torch.inf]])
    weights = so.knn(torch.tensor([[0.9]]), points, 1, 0.1)
    assert_close(weights[:, :2], so.knn(torch.tensor([[0.9]]), points[:2], 1, 0.1), VALUES)
    assert weights[0, 2] == 0


def test_knn_labels_of_masked_neighbours_may_be_anything():
    points, mask = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([True, True, False])
    for anything in (-1, 99):
        labels = torch.tensor([0, 1, anything])
        chances = so.knn(torch.tensor([[1.0]]), points, 1, 0.1, labels=labels, mask=mask)
        assert chances.shape == (1, 2)


def test_knn_gradients(generator):
    query = torch.randn(3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    neighbors = torch.randn(5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda q, n: so.knn(q, n, 2, 0.8), (query, neighbors))


# ---------------------------------------------------------------- choosing a relaxation


class RanksOnly(so.Relaxation):
    """Offers ranks and nothing else."""

    def rank(self, x, *, dim, descending, mask):
        return ("ranked", dim, descending, mask)


class SortsOnly(so.Relaxation):
    """Offers sorted values and nothing else."""

    def sort(self, x, *, dim, descending, mask):
        return ("sorted", dim, descending, mask)


def test_an_operation_uses_what_a_relaxation_offers():
    x = np.ones(3)
    assert so.rank(x, RanksOnly(), descending=True) == ("ranked", -1, True, None)
    assert so.sort(x, SortsOnly(), dim=0) == ("sorted", 0, False, None)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: so.sort(x, RanksOnly()),
        lambda x: so.rank(x, SortsOnly()),
        lambda x: so.sort(x, SortsOnly(), by=x),
        lambda x: so.quantile(x, 0.5, RanksOnly()),
        lambda x: so.topk(x, 1, RanksOnly()),
        lambda x: so.topk_mask(x, 1, SortsOnly()),
        lambda x: so.argsort(x, SortsOnly()),
    ],
)
def test_what_a_relaxation_lacks_is_an_error_that_names_others(call):
    with pytest.raises(TypeError, match=r"has .*; got \w+Only, .* these: .*SoftSort"):
        call(np.ones(3))


@pytest.mark.parametrize("how", ["softsort", None, so.SoftSort, object(), [1.0]])
def test_something_that_is_no_relaxation_is_an_error(how):
    with pytest.raises(TypeError, match=r"how must be a temperature .*; got .*\. Pass"):
        so.sort(np.ones(3), how)


def test_as_relaxation():
    relax = so.SoftSort(0.1)
    assert so.as_relaxation(relax) is relax
    assert so.as_relaxation(0.1).tau == 0.1
    tau = torch.tensor(0.5)
    assert so.as_relaxation(tau).tau is tau
