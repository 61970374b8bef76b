"""Squared distances: exact wherever the points lie, by one matrix product where that will do."""

import numpy as np
import pytest

import frameworks
import oracles
import parity
import softorder as so
import tolerances
from inside import distances, wiring_of
from tolerances import FINITE_DIFFERENCES, GRADIENTS, LAST_DIGITS, PRINTED, VALUES, assert_close

NUMPY = frameworks.framework("numpy")
NEIGHBORS = np.array([[0.0, 0.5], [1.0, 0.1], [2.0, -0.3], [1e9, -1e9], [0.4, 0.4]])
# The last lies beside the far neighbour: no origin serves all three.
QUERIES = np.array([[0.2, 0.3], [1.3, -0.2], [1e9, -1e9 + 1.0]])


def weights(query, neighbors):
    return so.knn(query, neighbors, 2, 0.7)


def exact(query, neighbors):
    return np.stack([oracles.knn_weights(x, neighbors, 2, 0.7, 1.0) for x in query])


def by_hand(query, neighbors):
    return ((query[..., :, None, :] - neighbors[..., None, :, :]) ** 2).sum(-1)


@pytest.fixture
def product_only(monkeypatch):
    """Let the sum of squared differences be an error."""

    def refuse(*arguments):
        raise AssertionError("the product would have done")

    monkeypatch.setattr(distances, "_by_differences", refuse)


def squared(framework, query, neighbors):
    def function(query, neighbors):
        return distances.squared_distances(wiring_of(query=query), query, neighbors)

    return framework.value(function, query, neighbors)


def test_derivatives_of_differences_are_right_in_torch(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(distances, "BLOCK", 8)
    points = torch.tensor([[0.0, 0.5], [1.0, 0.1], [1.0, 0.1]], dtype=torch.float64)
    query = torch.tensor([[1.0, 0.1], [0.3, 0.9]], dtype=torch.float64)
    inputs = query.requires_grad_(), points.requires_grad_()

    def function(query, points):
        return distances.squared_distances(wiring_of(query=query), query, points) ** 2

    assert tolerances.gradcheck(function, inputs)
    assert tolerances.gradgradcheck(function, inputs)


def test_two_neighbours_at_the_query_need_the_differences(framework):
    neighbors = np.array([[1.0], [1.0], [1.0 + 1e-10], [2.0], [-4.0]])
    query = np.array([[1.0], [3.0]])
    np.testing.assert_allclose(
        squared(framework, query, neighbors), by_hand(query, neighbors), rtol=LAST_DIGITS
    )


def test_knn_with_one_far_neighbour_finds_the_near_ones(framework):
    query, neighbors = np.array([[0.2]]), np.array([[0.0], [1.0], [2.0], [1e9]])
    found = framework.value(lambda q, n: so.knn(q, n, 1, 0.1), query, neighbors)
    assert_close(found, [[0.997527, 0.002473, 0.0, 0.0]], PRINTED[6])


@pytest.mark.parametrize("queries", [QUERIES[:2], QUERIES], ids=["near", "one far"])
def test_far_points_change_nothing_for_near_ones(framework, queries):
    g = np.broadcast_to(np.cos(np.arange(5.0)), (len(queries), 5))
    value, (to_queries, _) = framework.pull(weights, [queries, NEIGHBORS], g.copy())
    assert_close(value, exact(queries, NEIGHBORS), VALUES)
    near = [queries[:2], np.delete(NEIGHBORS, 3, axis=0)]
    _, (expected, _) = NUMPY.pull(weights, near, np.delete(g[:2], 3, axis=1))
    assert_close(to_queries[:2], expected, GRADIENTS)
    if framework.compiled is not None:
        value = framework.value(framework.compiled(weights), queries, NEIGHBORS)
        assert_close(value, exact(queries, NEIGHBORS), VALUES)


def test_second_derivatives_among_far_points(framework):
    if framework.second is None:
        pytest.skip("NumPy has first derivatives alone")
    points = {f.name: f.array(NEIGHBORS) for f in (framework, NUMPY)}

    def function(of):
        return lambda query: weights(query, points[of.name])

    g, direction = np.cos(np.arange(15.0)).reshape(3, 5), np.sin(np.arange(6.0)).reshape(3, 2)
    direction[2] = 0.0  # one step of 1e-5 is lost there
    got = framework.second(function(framework), QUERIES, g, direction)
    expected = parity.second_derivative(function(NUMPY), NUMPY, QUERIES, g, direction)
    np.testing.assert_allclose(got[:2], expected[:2], rtol=0, atol=10 * FINITE_DIFFERENCES)


def test_far_points_in_float32(framework):
    query, neighbors = QUERIES.astype("float32"), NEIGHBORS.astype("float32")
    expected = exact(query[:2].astype(float), neighbors.astype(float))
    # For the far query, float32 cannot tell the near neighbours from each other.
    assert_close(framework.value(weights, query, neighbors)[:2], expected, VALUES["float32"])


@pytest.mark.parametrize("compiled", [False, True])
def test_far_points_in_jax_without_float64(compiled):
    jax = pytest.importorskip("jax")
    query, neighbors = QUERIES.astype("float32"), NEIGHBORS.astype("float32")
    expected = exact(query[:2].astype(float), neighbors.astype(float))
    with jax.enable_x64(False):
        function = jax.jit(weights) if compiled else weights
        found = function(jax.numpy.asarray(query), jax.numpy.asarray(neighbors))
    assert_close(found[:2], expected, VALUES["float32"])


@pytest.mark.parametrize("batch", [((3,), ()), ((), (3,)), ((2, 1), (3,))])
def test_blocks_give_what_is_there_without_them(framework, monkeypatch, batch):
    monkeypatch.setattr(distances, "BLOCK", 8)
    monkeypatch.setattr(distances, "QUERIES", 2)
    draw = np.random.default_rng(0).normal
    query, neighbors = draw(size=(*batch[0], 5, 2)), draw(size=(*batch[1], 7, 2))
    query[..., 0, :], neighbors[..., :3, :] = 1e7, 1e7 + np.array([[0.0], [1.0], [2.0]])
    expected = by_hand(query, neighbors)
    found = squared(framework, query, neighbors)
    np.testing.assert_allclose(found, expected, rtol=LAST_DIGITS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_the_usual_case_is_one_product(framework, product_only, dtype, spread):
    """Clusters of a tenth of their distance, and queries that are neighbours themselves."""
    draw = np.random.default_rng(0).normal
    centers = draw(size=(4, 1, 16))
    neighbors = (centers + spread * draw(size=(4, 50, 16))).reshape(200, 16).astype(dtype)
    found = squared(framework, neighbors[::20], neighbors)
    expected = by_hand(neighbors[::20].astype(float), neighbors.astype(float))
    assert_close(found, expected, VALUES[dtype])


@pytest.mark.parametrize("far", [False, True])
def test_a_query_that_is_nan_spoils_its_own_row_alone(framework, far):
    query = np.array([[np.nan, 0.0], [0.2, 0.3], [1e9 if far else 0.0, 0.0]])
    found = framework.value(weights, query, NEIGHBORS)
    assert np.isnan(found[0]).all()
    assert_close(found[1], exact(query[1:2], NEIGHBORS)[0], VALUES)


def test_a_masked_neighbour_far_away_has_no_part(framework):
    neighbors, mask = NEIGHBORS.copy(), np.array([True, True, True, False, True])
    for anything in (1e30, np.nan, np.inf):
        neighbors[3] = anything
        found = framework.value(
            lambda q, n, m: so.knn(q, n, 2, 0.7, mask=m), QUERIES[:2], neighbors, mask
        )
        without = exact(QUERIES[:2], np.delete(NEIGHBORS, 3, 0))
        assert_close(found, np.insert(without, 3, 0.0, axis=1), VALUES)


def test_a_compiled_program_of_torch_chooses_when_it_runs():
    torch = pytest.importorskip("torch")
    framework = frameworks.framework("torch")
    compiled = torch.compile(weights, fullgraph=True, backend="aot_eager")
    g = np.cos(np.arange(15.0)).reshape(3, 5)
    for queries in (QUERIES, np.where(abs(QUERIES) > 1e8, 0.7, QUERIES)):
        found = framework.pull(compiled, [queries, NEIGHBORS], g)
        usual = framework.pull(weights, [queries, NEIGHBORS], g)
        assert_close(found[0], usual[0], VALUES)
        for got, want in zip(found[1], usual[1], strict=True):
            assert_close(got, want, GRADIENTS)
