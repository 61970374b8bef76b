"""The oracles of the operators against closed forms, each other and other people's code."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression
from scipy.special import expit, ndtr
from scipy.stats import rankdata

import operator_oracles as oracle
from tolerances import VALUES, assert_close

SCORES = np.array([0.3, -1.2, 2.0, 0.9, 0.3])
# The finite ones that take part are FINITE, in this order.
MIXED = np.array([0.5, np.inf, np.nan, -np.inf, 2.0, np.inf, 7.0, -1.0])
MASK = np.array([True, True, False, True, True, True, False, True])
FINITE = np.array([0.5, 2.0, -1.0])

MATRICES = {
    "neuralsort": lambda s, mask=None: oracle.neuralsort_matrix(s, 0.7, mask),
    "transport": lambda s, mask=None: oracle.transport_matrix(s, 0.3, mask),
    "softrank": lambda s, mask=None: oracle.softrank_distribution(s, 0.5, mask),
    "recursion": lambda s, mask=None: oracle.softrank_recursion(s, 0.5, mask),
}
RANKS = {
    "softrank": lambda s, mask=None, **way: oracle.softrank_expected(s, 0.5, mask, **way),
    "approximate": lambda s, mask=None, **way: oracle.approximate_rank(s, 0.5, mask, **way),
    "fast l2": lambda s, mask=None, **way: oracle.fast_soft_rank(s, 0.5, "l2", mask, **way),
    "fast kl": lambda s, mask=None, **way: oracle.fast_soft_rank(s, 0.5, "kl", mask, **way),
}
SORTS = {
    "fast l2": lambda s, mask=None, **way: oracle.fast_soft_sort(s, 0.5, "l2", mask, **way),
    "fast kl": lambda s, mask=None, **way: oracle.fast_soft_sort(s, 0.5, "kl", mask, **way),
}

matrices = pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)
ranks = pytest.mark.parametrize("rank", RANKS.values(), ids=RANKS)
sorts = pytest.mark.parametrize("sort", SORTS.values(), ids=SORTS)
directions = pytest.mark.parametrize("descending", [False, True])
regularizations = pytest.mark.parametrize("regularization", ["l2", "kl"])


@pytest.fixture
def rng():
    return np.random.default_rng(20200713)


def close(actual, expected):
    assert_close(np.asarray(actual), expected, VALUES)


# ---------------------------------------------------------------- the contract


@matrices
def test_a_matrix_of_masked_and_infinite_items(matrix):
    expected = np.zeros((8, 8))
    expected[np.ix_([0, 1], [1, 5])] = 1 / 2
    expected[np.ix_([2, 3, 4], [0, 4, 7])] = matrix(FINITE)
    expected[5, 3] = 1
    close(matrix(MIXED, MASK), expected)


@ranks
def test_ranks_of_masked_and_infinite_items(rank):
    a, b, c = rank(FINITE, descending=True)
    close(rank(MIXED, MASK, descending=True), [2 + a, 1.5, 0, 6, 2 + b, 1.5, 0, 2 + c])
    a, b, c = rank(FINITE, descending=False)
    close(rank(MIXED, MASK, descending=False), [1 + a, 5.5, 0, 1, 1 + b, 5.5, 0, 1 + c])


@sorts
def test_a_sort_of_masked_and_infinite_items(sort):
    down, up = (sort(FINITE, descending=way) for way in (True, False))
    close(sort(MIXED, MASK, descending=True), [np.inf, np.inf, *down, -np.inf, 0, 0])
    close(sort(MIXED, MASK, descending=False), [-np.inf, *up, np.inf, np.inf, 0, 0])


@pytest.mark.parametrize("function", [*MATRICES.values(), *RANKS.values(), *SORTS.values()])
def test_nan_spoils_everything_and_nothing_gives_nothing(function):
    assert np.isnan(function([1.0, np.nan, 2.0], [True, True, False])).all()
    assert not function([1.0, np.nan, 2.0], [False, False, False]).any()
    assert function([]).size == 0


@matrices
def test_a_matrix_of_one_of_ties_and_of_a_shift(matrix):
    close(matrix([5.0]), [[1.0]])
    close(matrix(SCORES)[:, 0], matrix(SCORES)[:, 4])
    close(matrix(SCORES + 4), matrix(SCORES))
    close(matrix(SCORES[::-1]), matrix(SCORES)[:, ::-1])
    close(matrix(-SCORES), matrix(SCORES)[::-1])


@ranks
@directions
def test_ranks_of_one_of_ties_and_of_a_shift(rank, descending):
    close(rank([5.0], descending=descending), [1.0])
    close(rank(np.full(4, 0.1), descending=descending), np.full(4, 2.5))
    result = rank(SCORES, descending=descending)
    close(result[0], result[4])
    close(result.sum(), 15.0)
    close(rank(SCORES + 4, descending=descending), result)
    close(rank(-SCORES, descending=not descending), result)


# ---------------------------------------------------------------- NeuralSort


def test_neuralsort_logits_are_those_written_by_hand(rng):
    s = -np.sort(-rng.normal(size=4))
    logits = oracle.neuralsort_logits(s)
    close(logits - np.diag(logits)[:, None], np.array(oracle.NEURALSORT_4X4) @ s)


def test_neuralsort_of_two_is_a_sigmoid_and_of_ties_uniform():
    p = expit((0.4 + 1.1) / 0.7)
    close(oracle.neuralsort_matrix([0.4, -1.1], 0.7), [[p, 1 - p], [1 - p, p]])
    close(oracle.neuralsort_matrix(np.full(3, 0.1), 0.7), np.full((3, 3), 1 / 3))


# ---------------------------------------------------------------- Sinkhorn and optimal transport


def test_sinkhorn_normalises_the_columns_and_then_the_rows(rng):
    logits = rng.normal(size=(4, 4))
    P = np.exp(logits / 0.6)
    for iterations in range(3):
        close(oracle.sinkhorn_matrix(logits, 0.6, iterations), P)
        P = P / P.sum(axis=0)
        P = P / P.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_sinkhorn_goes_to_its_limit(n, rng):
    logits = rng.normal(size=(n, n))
    limit = oracle.sinkhorn_limit(logits, 0.5)
    close(limit.sum(axis=0), np.ones(n))
    close(limit.sum(axis=1), np.ones(n))
    close(oracle.sinkhorn_matrix(logits, 0.5, 3000), limit)


def test_sinkhorn_of_two_is_a_sigmoid():
    p = expit((1.0 + 0.2 - 0.5 + 0.3) / (2 * 0.4))
    close(oracle.sinkhorn_limit([[1.0, 0.5], [-0.3, 0.2]], 0.4), [[p, 1 - p], [1 - p, p]])


def test_sinkhorn_shows_nan():
    logits = [[np.nan, 0.0], [1.0, 2.0]]
    assert np.isnan(oracle.sinkhorn_matrix(logits, 1.0, 1)).all()
    assert np.isnan(oracle.sinkhorn_limit(logits, 1.0)).all()


@pytest.mark.parametrize("epsilon", [1e-3, 0.02, 0.5, 100.0])
def test_transport_is_doubly_stochastic(epsilon, rng):
    for s in (SCORES, rng.normal(size=12), np.array([1e6, 1e6 + 1e-3, -4.0])):
        P = oracle.transport_matrix(s, epsilon)
        close(P.sum(axis=0), np.ones(len(s)))
        close(P.sum(axis=1), np.ones(len(s)))


def test_transport_is_the_limit_of_alternation(rng):
    s = rng.normal(size=6)
    logits = np.outer([1, 0.8, 0.6, 0.4, 0.2, 0], (s - s.mean()) / s.std())
    close(oracle.transport_matrix(s, 0.3), oracle.sinkhorn_matrix(logits, 0.3, 3000))


def test_transport_of_two_of_ties_and_of_a_scale():
    p = expit(1 / 0.3)
    close(oracle.transport_matrix([3.0, 2.9], 0.3), [[p, 1 - p], [1 - p, p]])
    close(oracle.transport_matrix(np.full(3, 0.1), 0.3), np.full((3, 3), 1 / 3))
    close(oracle.transport_matrix(8 * SCORES, 0.3), oracle.transport_matrix(SCORES, 0.3))
    hard = np.eye(3)[[2, 0, 1]]
    close(oracle.transport_matrix([1.0, 0.0, 2.0], 1e-3), hard)


def test_transport_to_groups():
    s = np.array([0.3, -1.2, 2.0, 0.9, 0.4])
    P = oracle.transport_matrix(s, 0.3, sizes=[2, 1, 2])
    close(P.sum(axis=0), np.ones(5))
    close(P.sum(axis=1), np.ones(5))
    close(P[[0, 3]], P[[1, 4]])
    # diag(a) exp(y z^T / epsilon) diag(b), y the means of (1, .75), (.5) and (.25, 0).
    z = (s - s.mean()) / s.std()
    rest = np.log(P[[0, 2, 3]]) - np.outer([0.875, 0.5, 0.125], z) / 0.3
    close(rest - rest[:1] - rest[:, :1] + rest[0, 0] + 1, np.ones((3, 5)))


def test_transport_to_groups_of_one_to_one_group_and_beside_infinities():
    plain = oracle.transport_matrix(SCORES, 0.3)
    close(oracle.transport_matrix(SCORES, 0.3, sizes=[1] * 5), plain)
    close(oracle.transport_matrix(SCORES, 0.3, sizes=[5]), np.full((5, 5), 0.2))
    P = oracle.transport_matrix([*SCORES, np.inf, 9.0], 0.3, [True] * 6 + [False], sizes=[3, 2])
    close(P[1:6, :5], oracle.transport_matrix(SCORES, 0.3, sizes=[3, 2]))


# ---------------------------------------------------------------- SoftRank and the approximate rank


def test_softrank_of_two_is_a_normal_probability():
    p = ndtr(1.5 / math.sqrt(2 * 0.5))
    for matrix in (oracle.softrank_distribution, oracle.softrank_recursion):
        close(matrix([0.4, -1.1], 0.5), [[p, 1 - p], [1 - p, p]])
    close(oracle.softrank_expected([0.4, -1.1], 0.5), [2 - p, 1 + p])


def test_softrank_of_three_ties():
    s = np.full(3, 0.1)
    close(oracle.softrank_distribution(s, 0.5), np.full((3, 3), 1 / 3))
    close(oracle.softrank_recursion(s, 0.5), np.repeat([[1 / 4], [1 / 2], [1 / 4]], 3, axis=1))


@pytest.mark.parametrize("tau", [1e-3, 0.5, 100.0])
def test_softranks_distributions_have_the_expected_ranks(tau):
    expected = oracle.softrank_expected(SCORES, tau)
    P = oracle.softrank_distribution(SCORES, tau)
    close(P.sum(axis=0), np.ones(5))
    close(P.sum(axis=1), np.ones(5))
    close(np.arange(1, 6) @ P, expected)
    Q = oracle.softrank_recursion(SCORES, tau)
    close(Q.sum(axis=0), np.ones(5))
    close(np.arange(1, 6) @ Q, expected)


def test_softranks_distribution_is_that_of_noisy_scores(rng):
    draws = 200_000
    noisy = SCORES + math.sqrt(0.5) * rng.normal(size=(draws, 5))
    order = np.argsort(-noisy, axis=1)
    frequencies = (order[:, :, None] == np.arange(5)).mean(axis=0)
    five_deviations = 5 * 0.5 / math.sqrt(draws)
    P = oracle.softrank_distribution(SCORES, 0.5)
    np.testing.assert_allclose(frequencies, P, rtol=0, atol=five_deviations)


def test_the_approximate_rank_of_two_is_a_sigmoid():
    p = expit(1.5 / 0.5)
    close(oracle.approximate_rank([0.4, -1.1], 0.5), [2 - p, 1 + p])
    close(oracle.approximate_rank([0.4, -1.1], 0.5, descending=False), [1 + p, 2 - p])


@pytest.mark.parametrize("function", [oracle.softrank_expected, oracle.approximate_rank])
@directions
def test_ranks_go_to_the_hard_ones(function, descending):
    hard = rankdata(-SCORES if descending else SCORES)
    close(function(SCORES, 1e-4, descending=descending), hard)


# ---------------------------------------------------------------- fast soft sort and rank


def torchsorts(function, s, epsilon, regularization):
    torchsort = pytest.importorskip("torchsort")
    values = torch.tensor(s, dtype=torch.float64)
    call = getattr(torchsort, function)
    return call(values, regularization=regularization, regularization_strength=epsilon).numpy()


@regularizations
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("function", ["soft_rank", "soft_sort"])
def test_fast_soft_functions_are_torchsorts(function, epsilon, regularization, rng):
    ours = getattr(oracle, f"fast_{function}")
    for n in (1, 2, 9, 15):
        s = np.concatenate([rng.normal(size=(6, n)), rng.integers(-3, 4, size=(4, n)) / 4.0])
        up = [ours(row, epsilon, regularization) for row in s]
        close(up, torchsorts(function, s, epsilon, regularization))
        down = [ours(row, epsilon, regularization, descending=True) for row in s]
        sign = -1 if function == "soft_sort" else 1
        close(down, sign * torchsorts(function, -s, epsilon, regularization))


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 50.0])
def test_fast_soft_functions_hold_an_isotonic_regression(epsilon, rng):
    t, w = -np.sort(-rng.normal(size=9)), np.arange(9, 0, -1.0)
    v = isotonic_regression(t / epsilon - w, increasing=False).x
    close(oracle.fast_soft_rank(t, epsilon, "l2"), t / epsilon - v)
    v = isotonic_regression(w / epsilon - t, increasing=False).x
    close(oracle.fast_soft_sort(t, epsilon, "l2", descending=True), w / epsilon - v)


@regularizations
@directions
def test_fast_soft_functions_go_to_the_hard_ones(regularization, descending, rng):
    s = rng.permutation(7) - 2.5
    sign = -1 if descending else 1
    close(oracle.fast_soft_rank(s, 1e-4, regularization, descending=descending), rankdata(sign * s))
    hard = sign * np.sort(sign * s)
    close(oracle.fast_soft_sort(s, 1e-4, regularization, descending=descending), hard)


@regularizations
def test_fast_soft_functions_of_two(regularization):
    # One block, in the middle of which the results lie apart by the gap of what is projected.
    rank = oracle.fast_soft_rank([0.4, 0.1], 1.0, regularization)
    p = expit(0.3)
    close(rank, [1.65, 1.35] if regularization == "l2" else [3 * p, 3 * (1 - p)])
    sorted = oracle.fast_soft_sort([0.4, 0.1], 10.0, regularization, descending=True)
    pool = 0.25 if regularization == "l2" else np.logaddexp(0.4, 0.1) - np.logaddexp(0.05, -0.05)
    close(sorted, [pool + 0.05, pool - 0.05])
    close(oracle.fast_soft_sort([0.7], 10.0, regularization), [0.7])


def test_kl_ranks_lie_in_the_permutahedron(rng):
    for epsilon in (0.05, 0.5, 50.0):
        r = -np.sort(-oracle.fast_soft_rank(rng.normal(size=9), epsilon, "kl"))
        bounds = np.cumsum(np.arange(9, 0, -1.0))
        assert (np.cumsum(r) <= bounds + VALUES["float64"] * bounds[-1]).all()


# ---------------------------------------------------------------- Plackett-Luce


def total(s, mask=None):
    """The sum of the probabilities of all permutations."""
    permutations = itertools.permutations(range(len(s)))
    return math.fsum(math.exp(oracle.plackett_luce_log_prob(s, p, mask)) for p in permutations)


@pytest.mark.parametrize(
    "s", [SCORES[:4], [1.0, np.inf, np.inf, -np.inf], [-np.inf] * 4, [2.0, -np.inf, 0.0, np.inf]]
)
def test_plackett_luce_sums_to_one(s):
    close(total(s), 1.0)


def test_plackett_luce_of_two_and_of_ties():
    close(oracle.plackett_luce_log_prob([0.4, -1.1], [1, 0]), np.log(expit(-1.5)))
    close(oracle.plackett_luce_log_prob(np.full(4, 0.1), [2, 0, 3, 1]), -np.log(24))
    assert oracle.plackett_luce_log_prob([], []) == 0


def test_plackett_luce_is_a_race_of_exponentials():
    # By hand: 3/6 for the first, 2/3 for the second.
    close(oracle.plackett_luce_log_prob(np.log([1.0, 2.0, 3.0]), [2, 1, 0]), np.log(1 / 3))


def test_plackett_luce_of_masked_and_infinite_items():
    s = [0.4, np.inf, np.nan, -np.inf, -1.1, np.inf]
    mask = [True, True, False, True, True, True]
    expected = np.log(1 / 2) + np.log(expit(1.5))
    close(oracle.plackett_luce_log_prob(s, [5, 1, 0, 4, 3, 2], mask), expected)
    assert oracle.plackett_luce_log_prob(s, [5, 0, 1, 4, 3, 2], mask) == -math.inf
    assert oracle.plackett_luce_log_prob(s, [5, 1, 0, 3, 4, 2], mask) == -math.inf
    assert math.isnan(oracle.plackett_luce_log_prob(s, range(6)))
