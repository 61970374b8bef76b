"""The one tolerance table: how close a result must come to its reference, by dtype and kind."""

import functools
import importlib.util

import numpy as np

# Relative to the largest element of the reference (see `assert_close`). Half types are computed in
# float32, so what remains is the rounding of input and output.
VALUES = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
GRADIENTS = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
# exp(-u^2) as a sum of complex exponentials: they cancel, and leave this.
SQUARE_VALUES = {**VALUES, "float64": 1e-11}
# A few roundings in float64, and nothing that cancels or adds them up; and one rounding alone.
LAST_DIGITS = 1e-14
ONE_ROUNDING = 1e-15
# Below this a float64 has fewer digits.
UNDERFLOW = 1e-300
# Solutions that take many steps, in float64: rounding errors add up.
ITERATED = 1e-11
# Solutions that stop at a tolerance, by that tolerance, against the limit.
STOPPED = {1e-4: 2e-4, 1e-9: 1e-6, 1e-10: 1e-8, 1e-12: 1e-9}
# Rounding what a tolerance has accepted may make its error larger by this factor.
ROUNDED_AGAIN = 1.05
# The hard operation, at a small temperature, and at one of 1e-9; the mean, at one of
# 1e12, or of 1e6 in float32.
LIMIT = 1e-6
COLD_LIMIT = 1e-7
HOT_LIMIT = {"float64": 1e-10, "float32": 2e-5}
# Gradients at ties against the brute force of tie_oracle.py.
TIES = 1e-6
# Central differences in float64, of what is of the size of one, and of any size.
FINITE_DIFFERENCES = 1e-6
DIFFERENCES = {"atol": 1e-7, "rtol": 1e-6}
# The same for the oracle of ties: without ties; at a kink, where the error is that of the step; for
# a power of 1.5, where it is the root of the step; and there, by moving tied scores apart instead.
TIE_DIFFERENCES = {"smooth": 2e-7, "kink": 2e-5, "root": 1e-3, "hair": 3e-4}
# A change by 1e-9 against the tangent: float32 would leave nothing of it.
LINEAR = 1e-4
# What is zero but for the rounding of float32: numbers below one that cancel.
CANCELLED = 1e-6

# Engines against the reference in NumPy, by family and dtype, whatever the temperature.
ENGINE_VALUES = {
    ("abs", "float32"): 1e-6,
    ("abs", "float64"): 1e-12,
    ("square", "float32"): 1e-6,
    ("square", "float64"): 1e-8,
}
ENGINE_GRADIENTS = {**ENGINE_VALUES, ("abs", "float32"): 1e-5, ("square", "float32"): 1e-5}
# Engines against the dense one in float64, by family: one product and its gradients; several
# products in one result, or a result on another path of autograd; rows of thousands of items;
# second derivatives.
AGREEMENT = {"abs": 1e-11, "square": 1e-9, "neuralsort": 1e-11}
COMPOSITE = {"abs": 1e-9, "square": 1e-9, "neuralsort": 1e-10}
MANY_ITEMS = {"abs": 1e-10, "square": 1e-8}
SECOND = {"abs": 1e-7, "square": 1e-7, "neuralsort": 1e-9}
HESSIANS = {"abs": 1e-6, "square": 1e-6, "neuralsort": 1e-8}
# The same engine, in NumPy and in torch, or with its arguments in another layout.
SAME_ENGINE = {"abs": 1e-12, "square": 1e-12, "neuralsort": 1e-13}
# NeuralSort by each engine against the formula in many digits: to the last ones, for no cost is a
# difference of large numbers.
FORMULA_VALUES = {"native": 1e-14, "tiled": 8e-14, "dense": 8e-14}
FORMULA_GRADIENTS = {"native": 2e-13, "tiled": 1.6e-12, "dense": 1.6e-12}
# The table of complex exponentials against exp(-u^2), in many digits.
EXPONENTIALS = 3e-14

# torchsort in float64: its results are differences of numbers of the size n / epsilon.
TORCHSORT_VALUES = 1e-6
TORCHSORT_GRADIENTS = {"rtol": 1e-5, "atol": 1e-7}
# What is printed with so many decimals; and rows of two decimals that were made to sum to one.
PRINTED = {2: 6e-3, 3: 4e-4, 4: 6e-5, 6: 6e-7, 8: 6e-9}
PRINTED_ROWS = 1e-2
# Means and shares of at least so many draws. The seeds are fixed: a few deviations are enough.
SAMPLED = {100: 0.2, 200: 0.12, 300: 0.07, 1000: 0.05, 4000: 0.03, 50_000: 0.02, 100_000: 0.01}
# Networks and losses in float32, summed in another order, or on another machine.
NETWORKS = {"rtol": 1e-4, "atol": 1e-5}

# Their defaults (rtol = 1e-3) would let a gradient pass that is wrong by 1e-3. The step is wide
# enough that the rounding errors of a sum of complex exponentials do not show.
STEP = {"eps": 1e-5, **DIFFERENCES}
if importlib.util.find_spec("torch") is not None:
    import torch

    gradcheck = functools.partial(torch.autograd.gradcheck, **STEP)
    gradgradcheck = functools.partial(torch.autograd.gradgradcheck, **STEP)


def as_numpy(x):
    """Return any array as float64 NumPy."""
    if hasattr(x, "detach"):
        x = x.detach().double().numpy()
    return np.asarray(x, dtype=np.float64)


def assert_close(actual, expected, tolerance):
    """Assert equality up to `tolerance` times the largest finite element; NaN and inf exactly.

    Args:
        actual: An array of any framework.
        expected: The reference.
        tolerance: A number, or a table of this file, which is read at the dtype of `actual`.
    """
    if isinstance(tolerance, dict):
        name = getattr(actual.dtype, "name", None) or str(actual.dtype).removeprefix("torch.")
        tolerance = tolerance[name]
    actual, expected = as_numpy(actual), as_numpy(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite]).max(initial=0.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(scale, UNDERFLOW))
