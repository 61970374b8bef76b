"""Arrays and operations for the tests of TensorFlow, and what NumPy makes of them."""

import numpy as np
import pytest
import tensorflow as tf

import softorder as so
from tolerances import GRADIENTS, SQUARE_VALUES, VALUES, assert_close

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
