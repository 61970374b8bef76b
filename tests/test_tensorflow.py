"""TensorFlow: every operation and its derivatives are those of NumPy, eagerly and in a graph."""

import numpy as np
import pytest

import softorder as so
from inside import find_wiring, tiled
from tolerances import GRADIENTS, SQUARE_VALUES, VALUES, assert_close

tf = pytest.importorskip("tensorflow")

INF, NAN = np.inf, np.nan
X = np.array([[0.3, -1.2, 2.0, 0.7, -0.4], [1.5, 0.2, 0.1, -2.0, 0.9], [0.0, 3.1, -1.4, 1.2, 2.0]])
TIED = np.array([[1.0, 2.0, 1.0, 1.0, 0.5], [0.0, 0.0, 0.0, 0.0, 0.0], [2.0, 1.0, 2.0, 1.0, 3.0]])
INFINITE = np.array(
    [[INF, 0.5, -INF, 0.1, INF], [1.0, -INF, 0.2, 0.3, -INF], [INF, INF, INF, -INF, 0.0]]
)
MASK = np.array([[True, False, True, True, False], [True] * 5, [False, False, True, False, True]])
KEYS = np.cos(np.arange(15.0)).reshape(3, 5)

METRIC = so.SoftSort(0.7, lambda a, b: (a - b) ** 2 / (1 + (a - b) ** 2))
HOWS = {
    "abs": so.SoftSort(0.3),
    "square": so.SoftSort(0.3, "square"),
    "power": so.SoftSort(0.4, 1.5),
    "callable": METRIC,
    "neuralsort": so.NeuralSort(0.6),
}


def like(x, values):
    """Return values as an array of the framework of x."""
    if is_tensorflows(x):
        return tf.constant(values)
    # Second derivatives are torch's, the rest NumPy's.
    return x.new_tensor(values) if is_torchs(x) else np.asarray(values)


def is_tensorflows(x):
    return isinstance(x, (tf.Tensor, tf.Variable))


def is_torchs(x):
    return hasattr(x, "new_tensor")


OPERATIONS = {
    "sort": lambda x, how: so.sort(x, how),
    "sort along 0": lambda x, how: so.sort(x, how, dim=0, descending=True),
    "sort by": lambda x, how: so.sort(like(x, KEYS), how, by=x),
    "argsort": lambda x, how: so.argsort(x, how),
    "rank": lambda x, how: so.rank(x, how),
    "rank along 0": lambda x, how: so.rank(x, how, dim=0, descending=True),
    "topk": lambda x, how: so.topk(x, 2, how),
    "topk_mask": lambda x, how: so.topk_mask(x, 2, how, largest=False),
    "quantile": lambda x, how: so.quantile(x, [0.1, 0.5], how),
    "median": lambda x, how: so.median(x, how, dim=0, keepdim=True),
    "knn": lambda x, how: so.knn(
        0.3 * x, 0.3 * x + 0.1, 2, how, labels=like(x, [0, 2, 1]), num_classes=3
    ),
    "product": lambda x, how: how(x) @ like(x, KEYS.T),
    "own product": lambda x, how: how(x) @ x[..., None],
    "transposed": lambda x, how: how(x).T @ like(x, KEYS.T),
    "apply": lambda x, how: how(x, dim=0).apply(like(x, KEYS[:, :, None] * KEYS[0]), 0),
    "apply rows": lambda x, how: how(x).apply(x, rows=[1, -1]),
    "sort_scores": lambda x, how: how(x).sort_scores(),
    "matrix": lambda x, how: how(x).matrix(),
    "log_matrix": lambda x, how: how(x).log_matrix(),
    "rows": lambda x, how: how(x).rows(slice(1, 3)),
    "a row": lambda x, how: how(x).rows(-1),
    "log_prob": lambda x, how: how(x).log_prob(like(x, [4, 2, 0, 1, 3])),
    "entropy": lambda x, how: how(x).entropy(),
    "marginal_error": lambda x, how: how(x).marginal_error(),
    "hard": lambda x, how: how(x).hard() @ x[..., None],
    "hard transposed": lambda x, how: how(x).hard().T @ x[..., None],
    "hard log_prob": lambda x, how: how(x).hard().log_prob(how(x).order),
    "straight_through": lambda x, how: how(x).straight_through() @ like(x, KEYS.T),
    "flip": lambda x, how: how(x).flip() @ like(x, KEYS.T),
    "sorted": lambda x, how: how(x).sorted,
}
MASKED = {
    "sort": lambda x, how, mask: so.sort(x, how, mask=mask),
    "argsort": lambda x, how, mask: so.argsort(x, how, mask=mask),
    "rank": lambda x, how, mask: so.rank(x, how, mask=mask),
    "topk": lambda x, how, mask: so.topk(x, 3, how, mask=mask),
    "topk_mask": lambda x, how, mask: so.topk_mask(x, 2, how, mask=mask),
    "quantile": lambda x, how, mask: so.quantile(x, 0.3, how, mask=mask),
    "transposed": lambda x, how, mask: how(x, mask=mask).T @ like(x, KEYS.T),
    "flip": lambda x, how, mask: how(x, mask=mask).flip() @ like(x, KEYS.T),
    "log_prob": lambda x, how, mask: how(x, mask=mask).log_prob(how(x, mask=mask).order),
    "entropy": lambda x, how, mask: how(x, mask=mask).entropy(),
    "sorted": lambda x, how, mask: how(x, mask=mask).sorted,
}


def weigh(y):
    """Return a scalar that depends on every finite entry of y in a way of its own."""
    values = np.cos(np.arange(np.prod(tuple(y.shape)))).reshape(tuple(y.shape))
    if is_torchs(y):
        return (y.where(y.isfinite(), 0.0).double() * y.new_tensor(values).double()).sum()
    finite = tf.where(tf.math.is_finite(y), y, tf.zeros_like(y))
    return tf.reduce_sum(tf.cast(finite, tf.float64) * values)


def of_numpy(function, *arrays, dtype="float64"):
    """Return the result, and the gradients of its weighted sum."""
    y, pullback = so.vjp(function, *(np.asarray(a, dtype=dtype) for a in arrays))
    weights = np.cos(np.arange(y.size)).reshape(y.shape)
    gradients = pullback(np.where(np.isfinite(y), weights, 0.0).astype(dtype))
    return [y, *(gradients if isinstance(gradients, tuple) else [gradients])]


def of_tensorflow(function, *arrays, dtype="float64", compiled=False):
    """Return the same of TensorFlow."""

    def run(*leaves):
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            y = function(*leaves)
            loss = weigh(y)
        gradients = tape.gradient(loss, leaves, unconnected_gradients="zero")
        return [y, *gradients]

    leaves = [tf.constant(a, dtype=dtype) for a in arrays]
    return (tf.function(run) if compiled else run)(*leaves)


def assert_like_numpy(function, *arrays, dtype="float64", values=VALUES, compiled=False):
    expected = of_numpy(function, *arrays, dtype=dtype)
    found = of_tensorflow(function, *arrays, dtype=dtype, compiled=compiled)
    assert found[0].dtype.name == expected[0].dtype
    assert_close(found[0], expected[0], values)
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert_close(ours, theirs, GRADIENTS)


def values_of(how):
    return SQUARE_VALUES if HOWS[how] is HOWS["square"] else VALUES


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


def second_derivatives_of_torch(function, *arrays):
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in arrays]
    first = torch.autograd.grad(weigh(function(*leaves)), leaves, create_graph=True)
    return torch.autograd.grad(sum(weigh(g) for g in first), leaves)


def second_derivatives(function, *arrays):
    leaves = [tf.constant(a, dtype="float64") for a in arrays]
    with tf.GradientTape() as outer:
        outer.watch(leaves)
        with tf.GradientTape() as inner:
            inner.watch(leaves)
            loss = weigh(function(*leaves))
        total = sum(weigh(g) for g in inner.gradient(loss, leaves))
    return outer.gradient(total, leaves)


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
    assert np.abs(np.bincount(first) / 4000 - [0.5, 0.3, 0.2]).max() < 0.03


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


@pytest.fixture(scope="module")
def layers():
    from softorder.tensorflow import layers

    return layers


def test_layers_are_the_operations(layers):
    """With a known batch, and row by row with an unknown one."""
    x = X.astype("float32")
    neighbors, labels = x[:2] + 0.1, np.array([0, 1])
    cases = [
        (layers.Quantile([0.2, 0.5], 0.3), lambda x: so.quantile(x, [0.2, 0.5], 0.3)),
        (layers.Rank(so.NeuralSort(0.5)), lambda x: so.rank(x, so.NeuralSort(0.5))),
        (layers.TopK(2, 0.3, as_mask=True), lambda x: so.topk_mask(x, 2, 0.3)),
        (layers.Sort(0.3, descending=True), lambda x: so.sort(x, 0.3, descending=True)),
        (layers.TopK(2, 0.3, largest=False), lambda x: so.topk(x, 2, 0.3, largest=False)),
        (layers.Quantile(0.2, 0.3, keepdim=True), lambda x: so.quantile(x, 0.2, 0.3, keepdim=True)),
    ]
    knn = layers.KNN(1, 0.3, num_classes=2)
    given = [tf.constant(a) for a in (neighbors, labels)]

    def run(x, cases=cases):
        return [knn(x, *given), *(layer(x) for layer, _ in cases)]

    expected = [so.knn(x, neighbors, 1, 0.3, labels=labels, num_classes=2)]
    expected += [function(x) for _, function in cases]
    # Two of them: a trace takes its time.
    unknown = tf.function(lambda x: run(x, cases[:1]), input_signature=[tf.TensorSpec((None, 5))])
    found = run(tf.constant(x)) + unknown(tf.constant(x))
    for ours, theirs in zip(found, expected + expected[:2], strict=True):
        assert_close(ours, theirs, VALUES)


# Keras reads its own variables in a way that NumPy warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_a_model_learns_its_temperature_and_is_saved(layers, tmp_path):
    import keras

    inputs = keras.Input((5,))
    layer = layers.Sort(0.5, learnable_tau=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = X.astype("float32")
    # Batches of two, and of the one that is left.
    model.fit(x, x[:, :1], batch_size=2, epochs=1, verbose=0)
    tau = float(layer.tau)
    assert tau > 0
    assert abs(tau - 0.5) > 1e-4
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert float(again.layers[1].tau) == tau
    assert_close(again(x), model(x).numpy(), VALUES)


def test_the_gradient_of_a_layer_with_an_unknown_batch(layers):
    """Ties included: tf.vectorized_map drops custom gradients."""
    layer = layers.Sort(0.5, learnable_tau=True, dtype="float64")

    @tf.function(input_signature=[tf.TensorSpec((None, 5), dtype="float64")])
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x) * KEYS)
        return tape.gradient(loss, [x, layer.log_tau.value])

    tau = layer.tau.numpy()
    expected = so.vjp(so.sort, TIED, np.asarray(tau, "float64"))[1](KEYS)
    found = [tf.convert_to_tensor(gradient) for gradient in run(tf.constant(TIED))]
    assert_close(found[0], expected[0], GRADIENTS)
    # As log_tau: d / d log tau = tau d / d tau.
    assert_close(found[1], tau * expected[1], GRADIENTS)


def test_layers_describe_themselves(layers):
    for layer in (
        layers.Rank(so.SoftSort(0.3, "square"), descending=True, name="one"),
        layers.TopK(3, so.NeuralSort(0.2), as_mask=True),
        layers.KNN(2, num_classes=3, learnable_tau=True),
    ):
        config = layer.get_config()
        assert type(layer).from_config(config).get_config() == config
    assert config["learnable_tau"]
    for how in (METRIC, so.SoftSort(tf.constant(0.1))):
        with pytest.raises(ValueError, match="is saved with numbers and names alone"):
            layers.Sort(how).get_config()
    with pytest.raises(ValueError, match="learnable_tau=True needs a number"):
        layers.Sort(so.NeuralSort(0.1), learnable_tau=True)


def test_a_layer_cannot_order_an_unknown_number_of_items(layers):
    for dim, shape in ((0, (None, 5)), (-1, (2, None))):
        run = tf.function(layers.Sort(0.1, dim=dim), input_signature=[tf.TensorSpec(shape)])
        with pytest.raises(ValueError, match="must be known when a graph is traced"):
            run(tf.constant(X[:2], dtype="float32"))


def test_layers_need_the_backend_of_tensorflow(layers, monkeypatch):
    import importlib

    import keras

    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ImportError, match="need Keras with the backend tensorflow; got jax"):
        importlib.reload(layers)
