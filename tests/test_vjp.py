"""Gradients of NumPy arrays are those of torch, for every relaxation and operation."""

import math
import tracemalloc

import numpy as np
import pytest
import torch

import softorder as so
from catalog import OF_SCORES, every_pair, short, soften, with_matrix, with_tau
from inside import KERNELS, RULES, doubly_stochastic, native, numpy_rules, pairwise, tiled
from tolerances import GRADIENTS, VALUES, assert_close

pytestmark = pytest.mark.usefixtures("small_tiles")

RANDOM = np.random.default_rng(20200713)
# Distinct scores, ties, infinities, and a row that a NaN spoils.
SCORES = np.array(
    [
        [0.3, 1.1, -0.8, 1.7, -2.0, 0.4],
        [0.5, -1.0, 0.5, 2.0, -1.0, 0.5],
        [0.3, np.inf, -0.8, -np.inf, 1.7, np.inf],
        [0.3, np.nan, -0.8, np.inf, 1.7, 0.4],
    ]
)
MASK = np.array(
    [
        [True, False, True, True, False, True],
        [True, True, True, False, True, True],
        [True, False, True, True, True, True],
        [False] * 6,
    ]
)
MASKED = np.where(MASK, SCORES, [np.nan, np.inf, -np.inf, np.nan, 7.0, np.nan])
REVERSED = np.array([5, 4, 3, 2, 1, 0])


def of(x, constant):
    """Return a constant as an array of the framework of x."""
    return torch.as_tensor(constant) if isinstance(x, torch.Tensor) else constant


def weights(y):
    return np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)


def check(function, *arrays):
    """Compare the value of a function and all its gradients with those of torch."""
    y, pullback = so.vjp(function, *arrays)
    assert type(y) is np.ndarray
    found = pullback(weights(y))
    found = found if len(arrays) > 1 else (found,)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = function(*tensors)
    assert_close(y, expected, VALUES)
    gradients = torch.autograd.grad(expected, tensors, torch.tensor(weights(y)))
    for array, gradient, reference in zip(arrays, found, gradients, strict=True):
        assert type(gradient) is np.ndarray
        assert gradient.dtype == array.dtype
        assert_close(gradient, reference, GRADIENTS)


def check_by_differences(function, *arrays):
    """Compare all gradients with central differences."""
    y, pullback = so.vjp(function, *arrays)
    found = pullback(weights(y))
    found = found if len(arrays) > 1 else (found,)
    for k, array in enumerate(arrays):
        for place in np.ndindex(array.shape):
            step = np.zeros(array.shape)
            step[place] = 1e-5
            ends = [
                function(*arrays[:k], array + sign * step, *arrays[k + 1 :]) for sign in (1, -1)
            ]
            slope = np.sum(weights(y) * (ends[0] - ends[1])) / 2e-5
            scale = max(np.abs(found[k]).max(), 1e-3)
            np.testing.assert_allclose(found[k][place], slope, rtol=0, atol=2e-6 * scale)


# ---------------------------------------------------------------- operations and relaxations


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


@with_matrix
@pytest.mark.parametrize("output", OUTPUTS)
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
    monkeypatch.setattr(doubly_stochastic, "_KEPT_ENTRIES", 0)
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


# ---------------------------------------------------------------- rules


def positive(*shape):
    return 0.5 + RANDOM.random(shape)


def normal(*shape):
    return RANDOM.normal(size=shape)


# For each rule, functions of arrays that need it.
EXAMPLES = {
    np.positive: [(lambda x: +x, normal(3))],
    np.negative: [(lambda x: -x, normal(3))],
    np.add: [(lambda a, b: a + b, normal(2, 3), normal(3)), (lambda a: 1 + a, normal(3))],
    np.subtract: [(lambda a, b: a - b, normal(2, 1), normal(3))],
    np.multiply: [(lambda a, b: a * b, normal(2, 3), normal(2, 1)), (lambda a: 2 * a, normal(3))],
    np.divide: [(lambda a, b: a / b, normal(3), positive(2, 3))],
    np.power: [
        (lambda a, b: a**b, positive(3), normal(2, 3)),
        (lambda a: a**2 + a**0, normal(3)),
        (lambda b: 2**b, normal(3)),
        (lambda a: a**0, np.zeros(2)),
    ],
    np.absolute: [(abs, normal(3)), (lambda x: np.abs(x * (1 + 2j) + 1), normal(3))],
    np.exp: [(np.exp, normal(3))],
    np.expm1: [(np.expm1, normal(3))],
    np.log: [(np.log, positive(3))],
    np.log1p: [(np.log1p, positive(3))],
    np.sqrt: [(np.sqrt, positive(3))],
    np.square: [(np.square, normal(3))],
    np.tanh: [(np.tanh, normal(3))],
    np.maximum: [
        (np.maximum, normal(3), normal(3)),
        (lambda x: np.maximum(x, 2 * x), np.zeros(2)),
    ],
    np.minimum: [(np.minimum, normal(3), normal(3)), (lambda x: np.minimum(0.1, x), normal(3))],
    np.matmul: [
        (np.matmul, normal(2, 3), normal(3, 4)),
        (np.matmul, normal(3), normal(3)),
        (np.matmul, normal(3), normal(2, 3, 4)),
        (np.matmul, normal(5, 2, 3), normal(3)),
        (np.matmul, normal(5, 2, 3), normal(1, 3, 2)),
        (lambda a: np.ones((2, 3)) @ a, normal(3, 2)),
    ],
    np.where: [(lambda a, b: np.where([True, False, True], a, b), normal(2, 3), normal(3))],
    np.sum: [
        (lambda x: np.sum(x), normal(2, 3)),
        (lambda x: x.sum(axis=0), normal(2, 3)),
        (lambda x: np.sum(x, axis=(-1, 0), keepdims=True), normal(2, 3, 2)),
    ],
    np.max: [(lambda x: np.max(x), normal(2, 3)), (lambda x: x.max(axis=-1), normal(2, 3))],
    np.min: [(lambda x: np.min(x, axis=0, keepdims=True), normal(2, 3))],
    np.mean: [(lambda x: x.mean(), normal(2, 3)), (lambda x: np.mean(x, axis=1), normal(2, 3))],
    np.cumsum: [(lambda x: np.cumsum(x, axis=0), normal(3, 2))],
    np.real: [
        # Products, quotients, powers and exponentials of complex numbers.
        (lambda x: np.real((x + 1j) ** 2 * np.exp(1j * x) / np.sqrt(x + 2j)), normal(3)),
        (lambda x: np.real(x.astype(complex) * (1 + 2j)), normal(3)),
    ],
    np.broadcast_to: [(lambda x: np.broadcast_to(x, (2, 4, 3)), normal(4, 1))],
    np.reshape: [
        (lambda x: x.reshape(3, -1), normal(2, 3)),
        (lambda x: x.reshape((6,)), normal(2, 3)),
    ],
    np.expand_dims: [(lambda x: np.expand_dims(x, 1), normal(2, 3))],
    np.squeeze: [(lambda x: np.squeeze(x, axis=0), normal(1, 3))],
    np.transpose: [
        (lambda x: x.T, normal(2, 3)),
        (lambda x: np.transpose(x, (2, 0, 1)), normal(2, 3, 4)),
    ],
    np.swapaxes: [(lambda x: np.swapaxes(x, 0, 2), normal(2, 3, 4))],
    np.flip: [(lambda x: np.flip(x, axis=-1), normal(2, 3))],
    np.roll: [
        (lambda x: np.roll(x, 1, axis=-1), normal(2, 3)),
        (lambda x: np.roll(x, 2), normal(5)),
    ],
    np.take_along_axis: [
        (lambda x: np.take_along_axis(x, np.array([[0, 2, 2]]), axis=1), normal(2, 3)),
        (lambda x: np.take_along_axis(x, np.zeros((4, 5), int), axis=0), normal(3, 1)),
    ],
    np.concatenate: [
        (lambda a, b: np.concatenate([a, np.ones((2, 1)), b], axis=-1), normal(2, 1), normal(2, 3))
    ],
    np.stack: [(lambda a, b: np.stack([a, b], axis=-1), normal(2), normal(2))],
    np.ndarray.__getitem__: [
        (lambda x: x[..., 1:, None], normal(2, 3)),
        (lambda x: x[0], normal(2, 3)),
        (lambda x: x[np.array([0, 1, 0])], normal(2, 3)),
        (lambda x: x[..., [0, 0, 2]], normal(2, 3)),
        (lambda x: x[np.array([True, False, True])], normal(3)),
        (lambda x: sum(row * k for k, row in enumerate(x)), normal(3, 2)),
    ],
    np.ndarray.astype: [(lambda x: x.astype(np.longdouble).astype(float), normal(3))],
    np.floor: [(lambda x: x * np.floor(x), normal(3))],
    np.sign: [(lambda x: x * np.sign(x), normal(3))],
    np.zeros_like: [(lambda x: x + np.zeros_like(x), normal(3))],
    np.ones_like: [(lambda x: x * np.ones_like(x), normal(3))],
    np.full_like: [(lambda x: x * np.full_like(x, 2.0), normal(3))],
    np.result_type: [(lambda x: x.astype(np.result_type(x, np.float32)), normal(3))],
}


def test_every_rule_has_an_example():
    assert set(EXAMPLES) == set(RULES)


@pytest.mark.parametrize("rule", EXAMPLES, ids=lambda rule: rule.__name__)
def test_every_rule_is_right(rule):
    for function, *arrays in EXAMPLES[rule]:
        check_by_differences(function, *arrays)


def test_the_rules_that_numpy_has_no_function_for():
    gate, matrix = positive(2, 9), normal(2, 3, 3) + 3 * np.eye(3)
    check_by_differences(numpy_rules.scan, gate, normal(2, 2, 9))
    check_by_differences(numpy_rules.solve, matrix, normal(2, 3, 2))
    check_by_differences(lambda x: numpy_rules.logsumexp(x, -2), normal(3, 2))
    check_by_differences(numpy_rules.normal_cdf, normal(3))
    index = np.array([[0, 2, 2], [1, 0, 1]])
    check_by_differences(lambda x: numpy_rules.add_along_axis(x, index, 4), normal(3, 2))


def test_a_maximum_that_is_reached_twice_shares_its_gradient():
    _, pullback = so.vjp(np.max, np.array([1.0, 3.0, 3.0]))
    assert pullback(1.0).tolist() == [0.0, 0.5, 0.5]


# ---------------------------------------------------------------- as it is used


def test_a_metric_and_a_loss_written_with_numpy():
    target = np.array([0.1, 0.5, 0.9, 1.0, 2.0, 3.0])

    def metric(a, b):
        return np.sqrt(np.abs(a - b)) + np.log1p(np.exp(-b) * np.square(a - b))

    def loss(x, scale):
        soft = so.sort(x * scale, so.SoftSort(0.5, metric))
        total = np.mean((target - soft) ** 2)
        total += 0.1 * np.sum(np.where(x > 0, x, 0.0))
        return total - target @ soft

    check_by_differences(loss, SCORES[0], np.array(1.5))


def test_what_depends_on_nothing_recorded_mixes_with_what_does():
    x, v, tau = SCORES[0], normal(6), np.array(0.5)
    for kernel in KERNELS if native.extension is not None else KERNELS[1:]:
        with so.config(kernel=kernel):
            P = so.SoftSort(0.5)(x)
            check_by_differences(lambda v, P=P: P @ v, v)
            check_by_differences(lambda v, P=P: P.T @ v, v)
            check_by_differences(lambda x: so.SoftSort(0.5)(x) @ v, x)
            check_by_differences(lambda tau: so.sort(x, so.SoftSort(tau)), tau)
            check_by_differences(lambda tau: so.SoftSort(tau, "square")(x).log_prob(REVERSED), tau)


def test_other_arguments_are_passed_on():
    seen = []

    def function(x, how, k, mask, *, dim):
        seen.append((type(how), k, type(mask), dim))
        return so.topk(x, k, how, dim=dim, mask=mask)

    how = so.SoftSort(0.5)
    y, pullback = so.vjp(function, SCORES[0], how, 2, MASK[0], dim=-1)
    assert seen == [(so.SoftSort, 2, np.ndarray, -1)]
    assert_close(y, so.topk(SCORES[0], 2, how, mask=MASK[0]), VALUES)
    assert pullback(np.ones(2)).shape == (6,)


def test_a_pullback_can_be_called_again_whatever_became_of_x_y_and_g():
    x = SCORES[0].copy()
    y, pullback = so.vjp(lambda x: np.exp(so.sort(x, 0.5)), x)
    g = weights(y)
    first = pullback(g)
    kept = first.copy()
    x += 1.0
    y *= 0.0
    first *= 0.0
    assert np.array_equal(pullback(g), kept)
    assert_close(pullback(2 * g), 2 * kept, GRADIENTS)
    y, pullback = so.vjp(lambda x: x, x)
    gradient = pullback(g)
    gradient += 1.0
    assert np.array_equal(g, weights(y))


def test_scalars_and_no_items():
    y, pullback = so.vjp(so.median, np.array([3.0]))
    assert y.shape == ()
    assert y == 3.0
    for g in (2, 2.0, np.float64(2.0), np.array(2.0)):
        assert pullback(g).tolist() == [2.0]
    for operation in (so.sort, so.rank, so.argsort):
        for how in (0.5, so.NeuralSort(), so.OptimalTransportSort()):
            y, pullback = so.vjp(operation, np.zeros((2, 0)), how)
            assert pullback(y).shape == (2, 0)


def test_what_does_not_depend_on_x_has_zeros():
    for result in (np.ones(2), np.float64(1.0)):
        y, pullback = so.vjp(lambda x, v, result=result: result, np.ones(3), np.ones(1))
        assert np.array_equal(y, result)
        assert [to.tolist() for to in pullback(y)] == [[0.0] * 3, [0.0]]
    order, pullback = so.vjp(lambda x: so.SoftSort()(x).order, np.array([1.0, 2.0]))
    assert order.tolist() == [1, 0]
    assert pullback(order).tolist() == [0.0, 0.0]


def test_values_can_be_looked_at():
    def function(x):
        assert bool(x[0])
        assert np.argmax(x) == 2
        assert (x > 1).tolist() == [False, True, True]
        assert type(x > 1) is type(np.isnan(x)) is np.ndarray
        assert "[1., 2., 3.]" in repr(x)
        return x if x[0] < 2 else -x

    _, pullback = so.vjp(function, np.array([1.0, 2.0, 3.0]))
    assert pullback(np.ones(3)).tolist() == [1.0, 1.0, 1.0]


def test_a_long_chain_is_no_deep_recursion():
    def function(x):
        for _ in range(20_000):
            x = x + 1.0
        return x

    y, pullback = so.vjp(function, np.zeros(1))
    assert y.tolist() == [20_000.0]
    assert pullback(np.ones(1)).tolist() == [1.0]


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("x", "said"),
    [
        ([1.0, 2.0], r"floating dtype; got x = list .*\. Convert it first: numpy"),
        (1.0, r"got x = float 1\.0\. Convert it first"),
        (np.array([1, 2]), r"got x = ndarray of shape \(2,\) and dtype int64\. Convert it first"),
        (np.ma.array([1.0, 2.0]), r"got x = MaskedArray"),
        (torch.ones(2), r"got x = Tensor .*\. Use the autograd of torch itself"),
    ],
    ids=["list", "number", "integers", "masked", "torch"],
)
def test_x_must_be_a_floating_numpy_array(x, said):
    with pytest.raises(TypeError, match=said):
        so.vjp(so.sort, x)


@pytest.mark.parametrize(
    "result", [lambda x: (x, x), lambda x: 1.0, lambda x: None, lambda x: so.SoftSort()(x)]
)
def test_a_function_must_return_one_array(result):
    with pytest.raises(
        TypeError, match=r"must return one NumPy array; got .*\. Return for example"
    ):
        so.vjp(result, np.ones(3))


def test_g_must_fit():
    _, pullback = so.vjp(so.sort, np.array([1.0, 2.0]))
    for g in (np.ones(3), np.ones((1, 2)), 1.0):
        with pytest.raises(ValueError, match=r"shape of the result, \(2,\); got .*numpy\.ones"):
            pullback(g)
    for g in ([1.0, 2.0], torch.ones(2), None):
        with pytest.raises(TypeError, match=r"g must be a NumPy array or a number; got .*numpy"):
            pullback(g)


def add_in_place(x):
    total = np.zeros(3)
    total += x
    return total


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (np.sin, "numpy.sin"),
        (np.linalg.norm, "numpy.norm"),
        (np.add.accumulate, r"numpy.add\.accumulate"),
        (add_in_place, "numpy.add, out="),
        (np.asarray, "a conversion to a NumPy array"),
        (lambda x: np.array([x, x]), "a conversion to a NumPy array"),
        (lambda x: np.sum(a=x), "numpy.sum, a="),
    ],
)
def test_what_cannot_be_followed_is_an_error(function, said):
    with pytest.raises(TypeError, match=rf"; got {said}\. Write it with .*absolute, add"):
        so.vjp(function, np.ones(3))


def test_a_vjp_inside_another_is_an_error():
    x, v = np.array([1.0, 2.0]), np.ones(2)

    def inner(x):
        return so.vjp(lambda v: so.SoftSort()(x) @ v, v)[0]

    for _ in range(2):
        with pytest.raises(TypeError, match=r"first derivatives; got a vjp inside inner.*outside"):
            so.vjp(inner, x)
    assert so.vjp(so.sort, x)[0].shape == (2,)


def test_further_errors():
    with pytest.raises(AttributeError, match=r"got the attribute std\. Write it with"):
        so.vjp(lambda x: x.std(), np.ones(3))
    with pytest.raises(TypeError, match="unsized"):
        so.vjp(lambda x: sum(np.sum(x)), np.ones(3))
    with pytest.raises(TypeError, match="one framework; got v of torch and scores of numpy"):
        so.vjp(lambda x: so.SoftSort()(x) @ torch.ones(3), np.ones(3))
    with pytest.raises(TypeError, match="float"):
        so.vjp(lambda x: float(x[0]) * x, np.ones(3))
