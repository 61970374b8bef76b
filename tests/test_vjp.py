"""Gradients of NumPy arrays are those of torch, for every relaxation and operation."""

import math
import tracemalloc

import numpy as np
import pytest

import softorder as so
from catalog import OF_SCORES, WITH_MATRIX, every_pair, short, soften, with_matrix, with_tau
from inside import doubly_stochastic, pairwise, tiled
from tolerances import GRADIENTS, assert_close
from vjp_checks import (
    MASK,
    MASKED,
    RANDOM,
    REVERSED,
    SCORES,
    check,
    check_by_differences,
    of,
    weights,
)

pytestmark = pytest.mark.usefixtures("small_tiles")


@every_pair
def test_every_operation_has_the_gradient_of_torch(how, operation):
    how = short(how)
    check(lambda x: operation(x, how), SCORES)
    check(lambda x: operation(x, how, mask=of(x, MASK)), MASKED)


OUTPUTS = {
    "matrix": lambda P: P.matrix(),
    "log_matrix": lambda P: P.log_matrix(),
    "rows": lambda P: P.rows([0, -1]),
    "log_prob": lambda P: P.log_prob(of(P.order, REVERSED)),
    "entropy": lambda P: P.entropy(),
    "sorted": lambda P: P.sorted,
    "straight_through": lambda P: P.straight_through().matrix(),
    "transposed": lambda P: P.T.matrix(),
}


# Every relaxation in its matrix, and SoftSort in every output: the rest is made of the matrix.
OUTPUT_PAIRS = [pytest.param(*how.values, "matrix", id=f"{how.id}-matrix") for how in WITH_MATRIX]
OUTPUT_PAIRS += [
    pytest.param(so.SoftSort(), output, id=f"SoftSort()-{output}")
    for output in OUTPUTS
    if output != "matrix"
]


@pytest.mark.parametrize(("how", "output"), OUTPUT_PAIRS)
def test_what_a_soft_permutation_gives_has_the_gradient_of_torch(how, output):
    how = short(how)
    check(lambda x: OUTPUTS[output](how(x)), SCORES)
    check(lambda x: OUTPUTS[output](how(x, mask=of(x, MASK))), MASKED)


@with_matrix
@pytest.mark.parametrize("rows", [None, [1, 0, 1]])
def test_products_have_the_gradients_of_torch_in_scores_and_values(how, rows):
    v, u = RANDOM.normal(size=(2, 6, 3)), RANDOM.normal(size=(2, 6 if rows is None else 3))
    scores, how = SCORES[:2], short(how)
    check(lambda x, v: how(x).apply(v, 1, rows=rows), scores, v)
    check(lambda x, v: how(x).straight_through().apply(v, 1, rows=rows), scores, v)
    check(lambda x, u: how(x).T.apply(u, rows=rows), scores, u)
    check(lambda x, u: how(x).straight_through().T.apply(u, rows=rows), scores, u)
    check(lambda x, v: how(x[0]) @ v[0], scores, v)
    check(lambda x, v: how(x).flip().T @ v, scores, v)
    check(lambda x, v: how(x).hard() @ v + 0 * how(x).matrix()[..., :3], scores, v)


@pytest.mark.parametrize("how", OF_SCORES)
@pytest.mark.parametrize("shape", [(), (2,), (3, 1)])
def test_a_temperature_receives_its_gradient(how, shape):
    x, tau = RANDOM.normal(size=(3, 2, 6)), np.linspace(0.5, 0.8, math.prod(shape)).reshape(shape)
    check(lambda x, tau: soften(x, with_tau(short(how), tau)), x, tau)
    if hasattr(how, "permutation"):
        check(lambda x, tau: with_tau(short(how), tau)(x).log_prob(of(x, REVERSED)), x, tau)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("how", OF_SCORES)
def test_other_precisions(how, dtype):
    check(lambda x: soften(x, short(how)), SCORES[:2].astype(dtype))


def test_longdouble_is_served_by_the_portable_kernel():
    x = SCORES[0].astype(np.longdouble)
    y, pullback = so.vjp(so.sort, x, 0.5)
    gradient = pullback(weights(y))
    assert gradient.dtype == np.longdouble
    expected = so.vjp(so.sort, SCORES[0], 0.5)[1](weights(y).astype(float))
    assert_close(gradient.astype(float), expected, GRADIENTS)


def test_quantiles_and_their_places():
    check(
        lambda x, q: so.quantile(x, q, 0.5, dim=0), RANDOM.normal(size=(5, 2)), np.array([0.3, 0.6])
    )
    check(lambda x, q: so.quantile(x, q, 0.5), SCORES[0], np.array(0.3))


def test_nearest_neighbours():
    query, neighbors = RANDOM.normal(size=(2, 3)), RANDOM.normal(size=(5, 3))
    labels, mask = np.array([0, 1, 1, 0, 2]), np.array([True, True, False, True, True])
    check(lambda q, n: so.knn(q, n, 2, 0.5), query, neighbors)
    check(
        lambda q, n: so.knn(q, n, 2, 0.5, labels=of(q, labels), mask=of(q, mask)), query, neighbors
    )


def test_sorting_by_keys():
    check(
        lambda x, keys: so.sort(x, 0.5, dim=1, by=keys), RANDOM.normal(size=(2, 6, 3)), SCORES[:2]
    )


def test_plackett_luce():
    check(lambda x: so.PlackettLuce(x).log_prob(of(x, REVERSED)), SCORES)
    check(
        lambda x: so.PlackettLuce(x, mask=of(x, MASK)).log_prob(
            of(x, np.array([3, 2, 0, 5, 1, 4]))
        ),
        MASKED,
    )
    order = np.array([1, 5, 4, 0, 2, 3])
    check(lambda x: so.PlackettLuce(x).log_prob(of(x, order)), SCORES)
    check_by_differences(
        lambda x: (
            so.PlackettLuce(x, 0.5).rsample((2,), generator=np.random.default_rng(0)).matrix()
        ),
        SCORES[0],
    )


def test_kl_divergence(monkeypatch):
    drawn = np.array([[0, 1, 2], [2, 0, 1]])
    monkeypatch.setattr(so.PlackettLuce, "_draw", lambda law, *_: of(law.scores, drawn))
    check(
        lambda p, q: so.PlackettLuce(p).kl_divergence(so.PlackettLuce(q)),
        np.array([0.3, 1.0, -0.5]),
        np.array([0.1, 0.4, 0.2]),
    )


@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_matchings(tolerance):
    matrix = RANDOM.normal(size=(2, 4, 4))
    matrix[0, 1, 2] = -np.inf
    tau = np.array([0.5, 0.8])
    check(lambda x, tau: so.Sinkhorn(tau, 5, tolerance)(x).log_matrix()[:, ::2], matrix, tau)
    how = so.OptimalTransportSort(0.2, tolerance=tolerance)
    check(lambda x: so.rank(x, how), SCORES)
    check(lambda x: so.rank(x, so.OptimalTransportSort(0.2, 5, tolerance, targets=3)), SCORES[:2])
    sample = {"shape": (2,), "noise": 0.5}
    check_by_differences(
        lambda x: so.gumbel_sinkhorn(x, 0.7, generator=np.random.default_rng(0), **sample).matrix(),
        matrix[1],
    )


def test_what_is_computed_again_has_the_same_gradients(monkeypatch):
    monkeypatch.setattr(pairwise, "TILE", 100)
    monkeypatch.setattr(doubly_stochastic, "_STORED_ENTRIES", 0)
    for how in (so.SoftRank(), so.ApproximateRank(), so.OptimalTransportSort(iterations=3)):
        check(lambda x, how=how: so.rank(x, how), SCORES)
    monkeypatch.setattr(pairwise, "TILE", 300)
    check(lambda x: so.SoftRank()(x).matrix(), SCORES[0])


def test_marginal_errors():
    for how in (so.SoftSort(), so.NeuralSort()):
        check(lambda x, how=how: how(x).marginal_error(), SCORES[:2])


def test_tiles_are_not_remembered(monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 1 << 14)
    x = RANDOM.normal(size=1000)
    with so.config(kernel="tiled"):
        tracemalloc.start()
        y, pullback = so.vjp(so.rank, x, so.SoftSort(1.0, lambda a, b: abs(a - b)))
        pullback(weights(y))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # One matrix would be 8 MB, and a tape would hold several.
    assert peak < 4e6
