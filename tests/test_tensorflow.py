"""TensorFlow: every operation and its derivatives are those of NumPy."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import softorder as so
from inside import (
    GAUSSIAN,
    LAPLACE,
    chunked_scan,
    chunked_sums_over_others,
    gap_gradient,
    gates,
    gates_by_step,
    sums_over_others,
)
from tensorflow_cases import (
    HOWS,
    INF,
    INFINITE,
    MASK,
    MASKED,
    NAN,
    OPERATIONS,
    TIED,
    X,
    assert_like_numpy,
    like,
    of_numpy,
    of_tensorflow,
    second_derivatives,
    second_derivatives_of_torch,
    values_of,
    weigh,
)
from tolerances import FINITE_DIFFERENCES, GRADIENTS, SQUARE_VALUES, VALUES, assert_close


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation(operation):
    assert_like_numpy(lambda x: OPERATIONS[operation](x, so.SoftSort(0.3)), X)


@pytest.mark.parametrize("how", ["square", "power", "callable", "neuralsort"])
@pytest.mark.parametrize("operation", ["sort", "rank", "topk_mask", "log_matrix", "log_prob"])
def test_every_metric(operation, how):
    assert_like_numpy(lambda x: OPERATIONS[operation](x, HOWS[how]), X, values=values_of(how))


@pytest.mark.parametrize("how", ["abs", "square"])
@pytest.mark.parametrize(
    ("operation", "scores"),
    [
        ("sort", X),
        ("sort", TIED),
        ("sort", INFINITE),
        ("rank", TIED),
        ("own product", INFINITE),
        ("log_prob", X),
        ("log_prob", INFINITE),
        ("entropy", TIED),
        ("topk", X),
    ],
)
def test_recurrences(operation, how, scores):
    with so.config(kernel="portable"):
        assert_like_numpy(
            lambda x: OPERATIONS[operation](x, HOWS[how]), scores, values=values_of(how)
        )


@pytest.mark.parametrize("kernel", [LAPLACE, GAUSSIAN], ids=["abs", "square"])
def test_chunked_sums_over_others_are_those_of_two_scans(kernel):
    rng = np.random.default_rng(0)
    scan = functools.partial(chunked_scan, np)
    for n in [*range(41), 255, 256, 257, 1000]:
        gap, cut = rng.exponential(0.2, (2, n)), rng.random((2, n)) < 0.1
        w, g = rng.normal(size=(2, 2, 3, n))
        gate, steps = gates(np, kernel, gap, cut), gates_by_step(np, kernel, gap, cut)
        sums, of_w = chunked_sums_over_others(np, kernel, steps, w)
        expected = sums_over_others(scan, np, kernel, gate, w)
        np.testing.assert_allclose(sums, expected, rtol=0, atol=SQUARE_VALUES["float64"])
        to_w, of_g = chunked_sums_over_others(np, kernel, steps, g)
        to_gap = gap_gradient(np, kernel, steps, of_w, of_g, n)
        assert to_gap.shape == (2, n)
        assert (to_gap[cut] == 0).all()
        # The derivative along a direction, which a gap that cuts does not take.
        step, along = 1e-6, np.where(cut, 0.0, rng.random((2, n)))
        ends = [
            sums_over_others(scan, np, kernel, gates(np, kernel, gap + sign * step * along, cut), w)
            for sign in (1, -1)
        ]
        slope = np.sum(g * (ends[0] - ends[1])) / (2 * step)
        assert np.sum(to_gap * along) == pytest.approx(
            slope, rel=FINITE_DIFFERENCES, abs=FINITE_DIFFERENCES
        )
        # The weights are symmetric.
        assert np.sum(to_w * w) == pytest.approx(
            np.sum(g * sums), rel=GRADIENTS["float64"], abs=GRADIENTS["float64"]
        )


@pytest.mark.parametrize("how", ["abs", "power", "callable", "neuralsort"])
@pytest.mark.parametrize("operation", ["sort", "rank"])
@pytest.mark.parametrize("scores", [TIED, INFINITE], ids=["tied", "infinite"])
def test_ties_and_infinities(operation, how, scores):
    assert_like_numpy(lambda x: OPERATIONS[operation](x, HOWS[how]), scores)


@pytest.mark.parametrize("how", ["abs", "neuralsort"])
@pytest.mark.parametrize("operation", MASKED)
def test_masks(operation, how):
    # What is masked may hold anything.
    scores = np.where(MASK, X, [[NAN, INF, NAN, 7.0, -INF]])
    assert_like_numpy(lambda x: MASKED[operation](x, HOWS[how], like(x, MASK)), scores)


@pytest.mark.parametrize("operation", ["sort", "rank", "transposed"])
def test_masked_recurrences(operation):
    with so.config(kernel="portable"):
        test_masks(operation, "abs")


@pytest.mark.parametrize("how", ["abs", "neuralsort"])
@pytest.mark.parametrize("kernel", ["dense", "tiled"])
def test_a_nan_spoils_its_own_row(how, kernel):
    scores = X.copy()
    scores[1, 2] = NAN
    with so.config(kernel=kernel):
        assert_like_numpy(lambda x: so.sort(x, HOWS[how]), scores)
        assert_like_numpy(lambda x: so.rank(x, HOWS[how]), scores)


def test_a_nan_spoils_its_own_row_of_recurrences():
    scores = np.array([[NAN, INF, 1.0], [0.0, 1.0, 2.0]])
    with so.config(kernel="portable"):
        assert_like_numpy(lambda x: so.sort(x, 0.1), scores)


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [("dense", "sort"), ("portable", "sort"), ("portable", "entropy"), ("tiled", "rank")],
)
@pytest.mark.parametrize("metric", ["abs", "square"])
def test_a_temperature_for_each_row(operation, kernel, metric):
    tau = np.array([0.2, 0.7, 3.0])

    def function(x, tau):
        return OPERATIONS[operation](x, so.SoftSort(tau, metric))

    with so.config(kernel=kernel):
        assert_like_numpy(function, X, tau, values=SQUARE_VALUES)


def test_a_temperature_of_neuralsort():
    assert_like_numpy(lambda x, tau: so.sort(x, so.NeuralSort(tau)), X, np.array([0.7]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    ("operation", "how"), [("sort", "abs"), ("rank", "abs"), ("quantile", "neuralsort")]
)
def test_other_precisions(dtype, operation, how):
    # The mathematics in float64, of numbers that the dtype has.
    x = tf.cast(tf.cast(X, dtype), "float64").numpy()
    expected = of_numpy(lambda x: OPERATIONS[operation](x, HOWS[how]), x)
    found = of_tensorflow(lambda x: OPERATIONS[operation](x, HOWS[how]), x, dtype=dtype)
    assert found[0].dtype == ("float32" if operation == "rank" else dtype)
    assert all(each.dtype == dtype for each in found[1:])
    assert_close(found[0], expected[0], VALUES)
    assert_close(found[1], expected[1], GRADIENTS)


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 0), (0, 3)])
@pytest.mark.parametrize("kernel", ["dense", "portable", "tiled"])
def test_few_items(shape, kernel):
    with so.config(kernel=kernel):
        assert_like_numpy(lambda x: so.sort(x, 0.5), np.ones(shape))
        assert_like_numpy(lambda x: so.rank(x, 0.5), np.ones(shape))


@pytest.mark.parametrize(
    ("how", "kernel"),
    [
        ("abs", "dense"),
        ("abs", "portable"),
        ("square", "portable"),
        ("power", "tiled"),
        ("neuralsort", "dense"),
    ],
)
@pytest.mark.parametrize("operation", ["sort", "transposed"])
def test_second_derivatives(operation, how, kernel):
    kind = HOWS[how]

    def function(x, tau):
        how = (
            so.NeuralSort(tau) if isinstance(kind, so.NeuralSort) else so.SoftSort(tau, kind.metric)
        )
        return OPERATIONS[operation](x, how)

    arrays = np.concatenate([X, TIED]), np.array(0.6)
    with so.config(kernel=kernel):
        found = second_derivatives(function, *arrays)
        expected = second_derivatives_of_torch(function, *arrays)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, 10 * GRADIENTS["float64"])


def test_third_derivatives_of_the_recurrence():
    torch = pytest.importorskip("torch")

    def third(x, gradient):
        return gradient(lambda x: gradient(lambda x: gradient(lambda x: so.sort(x, 0.4), x), x), x)

    def of_tape(function, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = weigh(function(x))
        return tape.gradient(loss, x)

    def of_graph(function, x):
        return torch.autograd.grad(weigh(function(x)), x, create_graph=True)[0]

    with so.config(kernel="portable"):
        found = third(tf.constant(X[0]), of_tape)
        expected = third(torch.tensor(X[0], requires_grad=True), of_graph)
    assert_close(found, expected, 10 * GRADIENTS["float64"])
