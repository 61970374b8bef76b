"""TensorFlow: graphs, tapes and variables, draws, and what it cannot do."""

import numpy as np
import pytest
import tensorflow as tf

import softorder as so
from inside import find_wiring, tiled
from tensorflow_cases import (
    INF,
    INFINITE,
    MASK,
    MASKED,
    NAN,
    OPERATIONS,
    TIED,
    X,
    assert_like_numpy,
    is_tensorflows,
    like,
    of_numpy,
    second_derivatives,
    second_derivatives_of_torch,
    weigh,
)
from tolerances import GRADIENTS, SAMPLED, SQUARE_VALUES, VALUES, assert_close


def test_a_graph_gives_what_eager_mode_does():
    """Operations that take different ways, in one graph: values, and gradients of their sum."""

    def function(x, tau):
        how = so.SoftSort(tau)
        parts = [OPERATIONS[name](x, how) for name in ("rank", "log_prob")]
        parts += [OPERATIONS["quantile"](x, so.NeuralSort(tau))]
        parts += [MASKED["sort"](x, how, like(x, MASK))]
        if is_tensorflows(x):
            return tf.concat([tf.reshape(y, (-1,)) for y in parts], 0)
        return np.concatenate([np.reshape(y, (-1,)) for y in parts])

    assert_like_numpy(function, X, np.array(0.5), compiled=True)


@pytest.mark.parametrize("metric", ["abs", "square"])
def test_recurrences_in_a_graph(metric):
    scores = np.concatenate([np.sin(np.arange(60.0) ** 2).reshape(2, 30), np.ones((1, 30))])
    scores[0, 3:5], scores[1, 7] = [INF, -INF], -INF

    def function(x, tau):
        P = so.SoftSort(tau, metric)(x)
        # A product with infinite values, and the shorter way for the scores themselves.
        return P.apply(x) if metric == "abs" else P.sort_scores()

    with so.config(kernel="portable"):
        assert_like_numpy(function, scores, np.array(0.3), values=SQUARE_VALUES, compiled=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_tiles(compiled, monkeypatch):
    """In a graph tiles are a loop; here four of them, the last one lower."""
    monkeypatch.setattr(tiled, "TILE", 33)

    def function(x):
        P = so.SoftSort(0.3, 1.5)(x)
        assert P._operator._height() == 3
        return P.sort_scores() + P.T.apply(x)

    scores = np.sin(np.arange(11.0) ** 2)[None, :]
    with so.config(kernel="tiled"):
        assert_like_numpy(function, scores, compiled=compiled)


def test_a_second_derivative_in_a_graph():
    def function(x):
        return so.sort(x, 0.3)

    with so.config(kernel="portable"):
        found = tf.function(lambda: second_derivatives(function, X))()
        expected = second_derivatives_of_torch(function, X)
    assert_close(found[0], expected[0], GRADIENTS)


def test_xla_compiles_a_sort():
    x = tf.constant(X, dtype="float32")
    compiled = tf.function(lambda x: so.sort(x, 0.3), jit_compile=True)
    with so.config(kernel="portable"):
        assert_close(compiled(x), of_numpy(lambda x: so.sort(x, 0.3), X)[0], VALUES)


def test_many_items_have_many_chunks():
    """The recurrence over chunks of chunks, with a gap that nothing crosses."""
    scores = np.sin(np.arange(700.0) ** 2) + 1e4 * (np.arange(700) > 400)
    assert_like_numpy(lambda x: so.sort(x, 0.1), scores)
    assert_like_numpy(
        lambda x: so.rank(x, so.SoftSort(0.1, "square")), scores, values=SQUARE_VALUES
    )


def test_one_permutation_under_several_tapes():
    """What one tape recorded is a constant for the next."""
    x, tau = tf.constant(X), tf.constant(0.3, dtype="float64")
    P = so.SoftSort(tau)(x)
    P @ x[..., None]
    expected = of_numpy(lambda x, tau: so.SoftSort(tau)(x) @ x[..., None], X, 0.3)[1]
    for _ in range(2):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = weigh(P @ x[..., None])
        assert_close(tape.gradient(loss, x), expected, GRADIENTS)


def test_one_permutation_in_several_graphs():
    x = tf.constant(X)
    P = so.SoftSort(0.3)(x)
    expected = P.sort_scores()
    for _ in range(2):
        assert_close(tf.function(lambda: so.SoftSort(0.3)(x).order)(), P.order, 0)
        assert_close(tf.function(P.sort_scores)(), expected, VALUES)
    made = []
    tf.function(lambda: made.append(so.SoftSort(0.3)(x)))()
    assert_close(made[0].sort_scores(), expected, VALUES)


@pytest.mark.parametrize("compiled", [False, True])
def test_variables_are_read(compiled):
    x, tau = tf.Variable(X), tf.Variable(0.3, dtype="float64")

    def run():
        with tf.GradientTape() as tape:
            P = so.SoftSort(tau)(x)
            y = so.sort(x, tau) + so.sort(x, 0.5, by=x) + P.apply(x) + so.rank(x, so.SoftSort(tau))
            loss = weigh(y)
        return [y, *tape.gradient(loss, [x, tau])]

    def same(x, tau):
        P = so.SoftSort(tau)(x)
        return so.sort(x, tau) + so.sort(x, 0.5, by=x) + P.apply(x) + so.rank(x, so.SoftSort(tau))

    found = (tf.function(run) if compiled else run)()
    for ours, theirs in zip(found, of_numpy(same, X, 0.3), strict=True):
        assert_close(ours, theirs, GRADIENTS)


def test_every_operation_takes_a_variable():
    x = tf.Variable(X)
    how = so.SoftSort(0.3)
    for function in (
        lambda x: so.argsort(x, how),
        lambda x: so.topk(x, 2, how),
        lambda x: so.topk_mask(x, 2, how),
        lambda x: so.quantile(x, 0.3, how),
        lambda x: so.knn(x, x, 2, how),
        lambda x: so.PlackettLuce(x).log_prob(like(x, [0, 1, 2, 3, 4])),
    ):
        assert_close(function(x), of_numpy(function, X)[0], VALUES)


def test_a_permutation_holds_what_the_variable_was():
    x = tf.Variable(X)
    P = so.SoftSort(0.3)(x)
    before = P.sort_scores()
    x.assign(-x)
    assert_close(P.sort_scores(), before, VALUES)


def test_order_is_that_of_numpy():
    scores = np.array([0.0, -0.0, 1.0, INF, -INF, 1.0, INF, -INF, 0.0])
    for mask in (None, scores != 1.0):
        ours, theirs = (
            so.SoftSort()(make(scores), mask=None if mask is None else make(mask)).order
            for make in (tf.constant, np.asarray)
        )
        assert ours.dtype == tf.int64
        assert ours.numpy().tolist() == theirs.tolist()


def test_the_order_of_a_row_with_a_nan_is_a_permutation():
    # Long enough for a sort that compares with NaN to go wrong.
    scores = tf.constant(np.where(np.arange(1000) % 3, np.arange(1000.0), NAN))
    assert sorted(so.SoftSort()(scores).order.numpy()) == list(range(1000))


def test_plackett_luce():
    law = so.PlackettLuce(tf.constant(X), 0.5)
    drawn = law.sample((4,), generator=tf.random.Generator.from_seed(1))
    again = law.sample((4,), generator=tf.random.Generator.from_seed(1))
    assert drawn.shape == (4, 3, 5)
    assert drawn.numpy().tolist() == again.numpy().tolist()
    assert np.sort(drawn, axis=-1).tolist() == np.tile(np.arange(5), (4, 3, 1)).tolist()
    soft = law.rsample((4,), generator=tf.random.Generator.from_seed(1))
    assert soft.hard().order.numpy().tolist() == drawn.numpy().tolist()
    assert law.sample().shape == (3, 5)
    with pytest.raises(TypeError, match=r"generator must be None or of the kind of tf\.random"):
        law.sample(generator=np.random.default_rng(0))


@pytest.mark.parametrize("scores", [X, TIED, INFINITE], ids=["plain", "tied", "infinite"])
def test_the_likelihood_of_plackett_luce(scores):
    def function(x):
        order = so.SoftSort()(x).order
        return so.PlackettLuce(x).log_prob(order)

    assert_like_numpy(function, scores)
    if scores is X:
        found = second_derivatives(function, scores)
        assert_close(found[0], second_derivatives_of_torch(function, scores)[0], GRADIENTS)


def test_draws_follow_the_weights():
    law = so.PlackettLuce(tf.math.log(tf.constant([0.5, 0.3, 0.2], dtype="float64")))
    first = law.sample((4000,), generator=tf.random.Generator.from_seed(0))[:, 0].numpy()
    assert np.abs(np.bincount(first) / 4000 - [0.5, 0.3, 0.2]).max() < SAMPLED[4000]


@pytest.mark.parametrize(
    "how",
    [
        so.OptimalTransportSort(0.5, iterations=5),
        so.SoftRank(0.5),
        so.ApproximateRank(0.5),
        so.FastSoftRank(0.5),
        so.FastSoftSort(0.5),
        so.FastSoftSort(0.5, regularization="kl"),
    ],
    ids=repr,
)
def test_other_relaxations_work_eagerly(how):
    operation = so.rank if hasattr(how, "rank") else so.sort
    assert_like_numpy(lambda x: operation(x, how), X)


def test_a_relaxation_that_looks_at_values_says_so_in_a_graph():
    with pytest.raises(TypeError, match=r"looks at values.*inside tf\.function.*Call it eagerly"):
        tf.function(lambda x: so.sort(x, so.FastSoftSort(0.5)))(tf.constant(X))


def test_an_unknown_shape_says_what_to_do():
    signature = [tf.TensorSpec((None, 5))]
    for function in (lambda x: so.sort(x, 0.1), lambda x: so.SoftSort(0.1)(x).order):
        with pytest.raises(ValueError, match=r"must be known.*\(None, 5\).*tf\.vectorized_map"):
            tf.function(function, input_signature=signature)(tf.constant(X, dtype="float32"))


def test_wrong_arguments():
    x = tf.constant(X)
    with pytest.raises(TypeError, match=r"tf\.cast"):
        so.sort(tf.constant([1, 2, 3]), 0.1)
    with pytest.raises(ValueError, match="every tau must be positive"):
        so.sort(x, tf.constant(0.0, dtype="float64"))
    with pytest.raises(IndexError, match="rows must lie in"):
        so.SoftSort()(x).rows([5])
    with pytest.raises(IndexError, match="rows must lie in"):
        so.SoftSort()(x).rows(tf.constant([-6]))
    with so.config(kernel="native"), pytest.raises(ValueError, match="arrays of tensorflow"):
        so.sort(x, 0.1)


def test_frameworks_do_not_mix():
    P = so.SoftSort(0.1)(tf.constant(X))
    with pytest.raises(TypeError, match=r"v of numpy and scores of tensorflow"):
        P @ X.T
    with pytest.raises(TypeError, match=r"x of tensorflow and how of numpy"):
        so.sort(tf.constant(X), np.array(0.1))
    with pytest.raises(TypeError, match=r"P\.T @ v"):
        tf.constant(X) @ P


def test_tensors_and_variables_are_of_one_framework():
    assert find_wiring(tf.constant(1.0)) is find_wiring(tf.Variable(1.0))
