"""Gradients at ties are the mean over all orders: every relaxation, product, engine, framework.

`tie_oracle.py` breaks ties in every possible way, by brute force.
"""

import functools

import numpy as np
import pytest

import softorder as so
import tie_oracle
from catalog import bent
from frameworks import framework
from tolerances import CANCELLED, COMPOSITE, TIES

pytestmark = pytest.mark.usefixtures("small_tiles")

NAN, INF = np.nan, np.inf

# Scores, and which of them take part.
SCORES = {
    "a pair": ([1.0, 1.0, 0.0, -0.6], None),
    "two groups": ([0.5, -1.0, 0.5, 2.0, -1.0, 0.5], None),
    "four": ([0.0, 0.3, -0.0, 0.0, -0.2, 0.0], None),
    "all": ([0.0, 0.0, 0.0], None),
    "masked and infinite": (
        [0.5, INF, 0.5, NAN, -1.0, 0.5, INF, -INF, -1.0],
        [True, True, True, False, True, True, True, True, False],
    ),
}
V = np.cos(np.arange(9.0))
PRODUCTS = {
    "apply": lambda x, how, v, **kw: how(x, **kw) @ v,
    "transposed": lambda x, how, u, **kw: how(x, **kw).T @ u,
    "rank": lambda x, how, _, **kw: so.rank(x, how, **kw),
    "rank_descending": lambda x, how, _, **kw: so.rank(x, how, descending=True, **kw),
    "argsort": lambda x, how, _, **kw: so.argsort(x, how, **kw),
    "sort": lambda x, how, _, **kw: so.sort(x, how, **kw),
    "sorted": lambda x, how, _, **kw: how(x, **kw).sorted,
    "topk_mask": lambda x, how, k, **kw: so.topk_mask(x, k, how, **kw),
    "topk": lambda x, how, k, **kw: so.topk(x, k, how, **kw),
    "quantile": lambda x, how, q, **kw: so.quantile(x, q, how, **kw),
    "log_prob": lambda x, how, items, **kw: how(x, **kw).log_prob(items),
    "entropy": lambda x, how, _, **kw: how(x, **kw).entropy(),
    "matrix": lambda x, how, _, **kw: how(x, **kw).matrix(),
}
OF_RANKS = ("rank", "rank_descending")
# The relaxation, its name in the oracle with its settings there, and the products it has.
CASES = {
    "abs": (so.SoftSort, 0.7, ("softsort", {}), tuple(PRODUCTS)),
    "square": (
        functools.partial(so.SoftSort, metric="square"),
        0.7,
        ("softsort", {"p": 2.0}),
        tuple(PRODUCTS),
    ),
    "1.5": (
        functools.partial(so.SoftSort, metric=1.5),
        0.7,
        ("softsort", {"p": 1.5}),
        ("apply", "rank", "log_prob"),
    ),
    "0.5": (
        functools.partial(so.SoftSort, metric=0.5),
        0.7,
        ("softsort", {"p": 0.5}),
        ("apply", "rank", "log_prob"),
    ),
    "callable": (
        functools.partial(so.SoftSort, metric=bent),
        0.7,
        ("softsort", {"metric": bent}),
        ("apply", "rank", "log_prob"),
    ),
    "NeuralSort": (so.NeuralSort, 1.3, ("neuralsort", {}), tuple(PRODUCTS)),
    "OptimalTransportSort": (
        functools.partial(so.OptimalTransportSort, tolerance=1e-13),
        0.3,
        ("transport", {}),
        ("apply", "rank", "sort", "matrix"),
    ),
    "SoftRank": (so.SoftRank, 0.8, ("softrank", {}), ("apply", "rank", "log_prob", "matrix")),
    "ApproximateRank": (so.ApproximateRank, 0.6, ("approximate_rank", {}), OF_RANKS),
    "FastSoftRank": (so.FastSoftRank, 0.9, ("fast_soft_rank_l2", {}), OF_RANKS),
    "FastSoftRank, kl": (
        functools.partial(so.FastSoftRank, regularization="kl"),
        0.9,
        ("fast_soft_rank_kl", {}),
        OF_RANKS,
    ),
    "FastSoftSort": (so.FastSoftSort, 0.9, ("fast_soft_sort_l2", {}), ("sort",)),
    "FastSoftSort, kl": (
        functools.partial(so.FastSoftSort, regularization="kl"),
        0.9,
        ("fast_soft_sort_kl", {}),
        ("sort",),
    ),
}
ENGINES = {
    "abs": ("native", "portable", "tiled", "dense"),
    "square": ("native", "portable", "tiled", "dense"),
    "1.5": ("tiled", "dense"),
    "NeuralSort": ("native", "tiled", "dense"),
}


def argument(product, n, count):
    """Return what a product needs besides scores."""
    if product in ("apply", "transposed"):
        return V[:n]
    if product in ("topk", "topk_mask"):
        return min(2, count)
    if product == "quantile":
        return [0.1, 0.5]
    return np.roll(np.arange(n), 2) if product == "log_prob" else None


@functools.cache
def expected(case, product, kind):
    """Return scores, mask, what the product needs, weights, and what the oracle finds."""
    s, mask = SCORES[kind]
    _, tau, (name, settings), _ = CASES[case]
    n, count = len(s), len(s) if mask is None else sum(mask)
    extra = argument(product, n, count)
    if product == "log_prob" and mask is not None:
        # Within the blocks of infinite scores and of finite ones; masked items last.
        extra = np.array([6, 1, 5, 0, 4, 2, 7, 3, 8])
    shape = {"topk": (extra,), "quantile": (2,), "log_prob": (), "matrix": (n, n)}
    weights = np.cos(1 + np.arange(n * n))[: np.prod(shape.get(product, (n,)), dtype=int)]
    weights = weights.reshape(shape.get(product, (n,)))
    found = tie_oracle.gradients(
        name, product, s, tau, mask=mask, extra=extra, cotangent=weights, **settings
    )
    value, ds, dtau = (np.asarray(x) for x in found[:3])
    if product in ("sort", "sorted", "topk", "quantile"):
        # An infinite result: its weight must not make the loss a NaN.
        weights = np.where(np.isfinite(value), weights, 0.0)
        found = tie_oracle.gradients(
            name, product, s, tau, mask=mask, extra=extra, cotangent=weights, **settings
        )
        value, ds, dtau = (np.asarray(x) for x in found[:3])
    return np.array(s), mask, extra, weights, (value, ds, dtau)


def check(case, product, kind, frame):
    """Compare value and gradients of scores and temperature with the oracle."""
    make, tau, _, _ = CASES[case]
    s, mask, extra, weights, (value, ds, dtau) = expected(case, product, kind)
    given = frame.array(extra) if isinstance(extra, np.ndarray) else extra
    arguments = {} if mask is None else {"mask": frame.array(np.array(mask))}

    def function(x, tau):
        return PRODUCTS[product](x, make(tau), given, **arguments)

    y, (to_s, to_tau) = frame.pull(function, [s, np.array(tau)], weights)
    np.testing.assert_allclose(y, value, rtol=0, atol=TIES)
    np.testing.assert_allclose(to_s, ds, rtol=0, atol=TIES)
    np.testing.assert_allclose(to_tau, dtau, rtol=0, atol=TIES)


def kinds(case):
    # Where all scores are equal, some have no derivative: tests of their own.
    return [kind for kind in SCORES if kind != "all" or case not in ("OptimalTransportSort",)]


EVERY = [
    pytest.param(case, product, engine, id=f"{case}-{product}-{engine}")
    for case, (*_, products) in CASES.items()
    for product in products
    for engine in ENGINES.get(case, (None,))
]


@pytest.mark.parametrize(("case", "product", "engine"), EVERY)
def test_the_gradient_at_ties_is_the_mean_over_all_orders(case, product, engine):
    with so.config(kernel=engine):
        for kind in kinds(case):
            check(case, product, kind, framework("torch"))


# A few of each in the other frameworks; what their engines share is examined above.
ELSEWHERE = [
    ("abs", "apply"),
    ("abs", "transposed"),
    ("abs", "log_prob"),
    ("abs", "entropy"),
    ("square", "apply"),
    ("square", "rank"),
    ("square", "entropy"),
    ("1.5", "rank"),
    ("NeuralSort", "apply"),
    ("NeuralSort", "log_prob"),
    ("OptimalTransportSort", "apply"),
    ("SoftRank", "rank"),
    ("ApproximateRank", "rank"),
    ("FastSoftRank", "rank"),
    ("FastSoftSort", "sort"),
]


@pytest.mark.parametrize("name", ["numpy", "jax", "tensorflow"])
@pytest.mark.parametrize(("case", "product"), ELSEWHERE)
def test_every_framework_has_the_mean_over_all_orders(case, product, name):
    pytest.importorskip(name)
    if case == "OptimalTransportSort" and name == "jax":
        pytest.skip("a tolerance cannot be compiled")
    for kind in ("two groups", "masked and infinite"):
        check(case, product, kind, framework(name))


@pytest.mark.parametrize("case", ["abs", "square"])
@pytest.mark.parametrize("product", ["transposed", "entropy"])
def test_the_portable_engine_of_jax_has_the_mean_over_all_orders(case, product):
    pytest.importorskip("jax")
    with so.config(kernel="portable"):
        check(case, product, "two groups", framework("jax"))


def test_the_gradient_of_nearest_neighbours_at_ties():
    query, points = np.array([0.0, 0.0]), np.array([[1.0, 0], [0, 1.0], [0, -1.0], [2.0, 0]])
    weights = np.array([1.0, -2.0, 0.5, 3.0])
    for p, metric in ((1.0, "abs"), (2.0, "square")):
        value, (of_query, of_points), _, _ = tie_oracle.gradients(
            "softsort", "knn", (query, points), 0.7, p=p, extra=2, cotangent=weights
        )
        y, found = framework("torch").pull(
            lambda q, x, metric=metric: so.knn(q[None], x, 2, so.SoftSort(0.7, metric))[0],
            [query, points],
            weights,
        )
        np.testing.assert_allclose(y, value, rtol=0, atol=TIES)
        np.testing.assert_allclose(found[0], of_query, rtol=0, atol=TIES)
        np.testing.assert_allclose(found[1], of_points, rtol=0, atol=TIES)


@pytest.mark.parametrize("kernel", ["native", "portable", "tiled", "dense"])
@pytest.mark.parametrize("metric", ["abs", "square"])
def test_second_derivatives_at_ties_are_the_same_in_every_engine(kernel, metric):
    s, direction = np.array(SCORES["two groups"][0]), np.sin(1 + np.arange(6.0))

    def second(kernel, product):
        def function(x):
            with so.config(kernel=kernel):
                return PRODUCTS[product](x, so.SoftSort(0.7, metric), given)

        given = argument(product, 6, 6)
        given = frame.array(given) if isinstance(given, np.ndarray) else given
        return frame.second(function, s, V[:6], direction)

    frame = framework("torch")
    for product in ("apply", "transposed", "rank", "sort", "entropy"):
        found, reference = second(kernel, product), second("dense", product)
        np.testing.assert_allclose(found, reference, rtol=0, atol=COMPOSITE[metric])


LEARNERS = {
    "abs": so.SoftSort(1.0),
    "NeuralSort": so.NeuralSort(1.0),
    "SoftRank": so.SoftRank(1.0),
    "ApproximateRank": so.ApproximateRank(1.0),
    "FastSoftRank": so.FastSoftRank(1.0),
    "FastSoftRank, kl": so.FastSoftRank(1.0, "kl"),
}
FLAT = {
    "0.5": so.SoftSort(1.0, 0.5),
    "1.5": so.SoftSort(1.0, 1.5),
    "square": so.SoftSort(1.0, "square"),
    "OptimalTransportSort": so.OptimalTransportSort(0.1),
}


def ranks_learned_from_zero(how, most=500):
    """Return after how many steps scores that start at zero have a given order; None if never."""
    torch = pytest.importorskip("torch")
    order = torch.tensor([3, 0, 7, 5, 1, 6, 2, 4])
    target = (order + 1).float()
    scores = torch.zeros(8, requires_grad=True)
    optimizer = torch.optim.Adam([scores], lr=0.05)
    for step in range(most):
        loss = (so.rank(scores, how) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if torch.equal(scores.argsort().argsort(), order):
            return step + 1
    return None


@pytest.mark.parametrize("name", LEARNERS)
def test_scores_that_start_at_zero_learn_an_order(name):
    assert ranks_learned_from_zero(LEARNERS[name]) is not None


@pytest.mark.parametrize("name", FLAT)
def test_relaxations_that_are_flat_where_all_scores_are_equal(name):
    """As the docs say; a partial tie is enough to move."""
    torch = pytest.importorskip("torch")
    for start, flat in (([0.0] * 8, True), ([0.0] * 7 + [1.0], False)):
        scores = torch.tensor(start, requires_grad=True)
        weights = torch.cos(torch.arange(8.0))
        (so.rank(scores, FLAT[name]) * weights).sum().backward()
        assert (scores.grad.abs().max() < CANCELLED) == flat
