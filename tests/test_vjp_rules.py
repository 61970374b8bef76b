"""The rules by which NumPy functions are differentiated, each with an example."""

import numpy as np
import pytest

import softorder as so
from inside import RULES, numpy_rules
from vjp_checks import check_by_differences, normal, positive

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
