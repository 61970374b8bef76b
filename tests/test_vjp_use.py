"""`so.vjp` as it is used: functions of the caller, several arrays, errors."""

import numpy as np
import pytest
import torch

import softorder as so
from inside import KERNELS, extension_module
from tolerances import GRADIENTS, VALUES, assert_close
from vjp_checks import MASK, REVERSED, SCORES, check_by_differences, normal, weights


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
    for kernel in KERNELS if extension_module.extension is not None else KERNELS[1:]:
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
