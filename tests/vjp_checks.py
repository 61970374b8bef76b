"""Gradients of NumPy arrays against torch, and against differences."""

import numpy as np
import torch

import softorder as so
from tolerances import FINITE_DIFFERENCES, GRADIENTS, VALUES, assert_close

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
            np.testing.assert_allclose(
                found[k][place], slope, rtol=0, atol=FINITE_DIFFERENCES * scale
            )


def positive(*shape):
    return 0.5 + RANDOM.random(shape)


def normal(*shape):
    return RANDOM.normal(size=shape)
