"""The one tolerance table: how close a result must come to its reference, by dtype and kind."""

import functools
import importlib.util

import numpy as np

# Relative to the largest element of the reference (see `close`). Half types are computed in
# float32, so what remains is the rounding of input and output.
VALUES = {"float64": 1e-12, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
GRADIENTS = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
# exp(-u^2) as a sum of complex exponentials: they cancel, and leave this.
SQUARE_VALUES = {**VALUES, "float64": 1e-11}
# Solutions that take many steps, in float64: rounding errors add up.
ITERATED = 1e-11
# The hard operation, at a small temperature, and at one of 1e-9.
LIMIT = 1e-6
COLD_LIMIT = 1e-7
# Gradients at ties against the brute force of tie_oracle.py.
TIES = 1e-6
# Central differences in float64.
FINITE_DIFFERENCES = 1e-6

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

# Their defaults (rtol = 1e-3) would let a gradient pass that is wrong by 1e-3. The step is wide
# enough that the rounding errors of a sum of complex exponentials do not show.
STEP = {"eps": 1e-5, "atol": 1e-7, "rtol": 1e-6}
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
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(scale, 1e-300))
