"""How a case of the fuzzer is computed, and how two results are compared."""

import numpy as np
import torch

from frameworks import framework
from fuzz_limits import has_uncertain_order, tolerance
from tolerances import GRADIENTS, UNDERFLOW, as_numpy


class Finding(Exception):
    """What differs, and by how much."""


def compare(case, what, found, expected, dtype="float64"):
    """Raise a finding where results differ: each a value, and gradients by name."""
    if has_uncertain_order(case) and not what.endswith("against dense"):
        return  # engines alone are given the same distances
    compare_one(f"{what}: value", found[0], expected[0], tolerance(case, None, dtype))
    for name in found[1].keys() & expected[1].keys():
        limit = tolerance(case, name, dtype) + GRADIENTS[dtype] * np.abs(expected[1][name]).max(
            initial=0.0
        )
        compare_one(f"{what}: gradient of {name}", found[1][name], expected[1][name], limit)


def compare_one(what, found, expected, limit):
    if found.shape != expected.shape:
        raise Finding(f"{what}: shape {found.shape}, expected {expected.shape}")
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True):
        raise Finding(f"{what}: other infinities or NaN: {found[~finite]}, not {expected[~finite]}")
    found, expected = found[finite], expected[finite]
    if not np.isfinite(found).all():
        raise Finding(f"{what}: {found[~np.isfinite(found)][0]}, where a number was expected")
    worst = np.abs(found - expected).max(initial=0.0)
    # Denormal numbers have no relative precision.
    if worst > max(limit, UNDERFLOW):
        at = np.abs(found - expected).argmax()
        raise Finding(
            f"{what} differs by {worst:.2g}, allowed {limit:.2g}: {found[at]}, not {expected[at]}"
        )


def with_torch(case, g, dtype=torch.float64, call=None, **autograd):
    """Return value and gradients by torch; `call` replaces `case.call`, g None draws weights."""
    names = list(case.inputs())
    leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in case.inputs().values()]
    y = (call or case.call)(dict(zip(names, leaves, strict=True)) | constants_of(case))
    if not y.requires_grad:
        return as_numpy(y), {name: np.zeros(x.shape) for name, x in case.inputs().items()}
    g = torch.as_tensor(weights_of(case, as_numpy(y)) if g is None else g).to(y.dtype)
    found = torch.autograd.grad(y, leaves, g, allow_unused=True, **autograd)
    gradients = (np.zeros(x.shape) if d is None else as_numpy(d) for x, d in zip(leaves, found))  # noqa: B905
    return as_numpy(y), dict(zip(names, gradients, strict=True))


def constants_of(case, array=torch.tensor):
    return {name: array(x) for name, x in case.constants().items()}


def weights_of(case, y):
    """Return random weights of the result; 0 where it is infinite or NaN."""
    g = np.random.default_rng([case.seed, 1]).uniform(-1, 1, size=y.shape)
    return np.where(np.isfinite(y), g, 0.0)


def with_framework(name, case, g):
    """Return value and gradients by another framework."""
    frame, names = framework(name), list(case.inputs())
    constants = constants_of(case, frame.array)
    arrays = [frame.array(x) if name == "tensorflow" else x for x in case.inputs().values()]
    y, found = frame.pull(
        lambda *arrays: case.call(dict(zip(names, arrays, strict=True)) | constants), arrays, g
    )
    return y, dict(zip(names, map(np.asarray, found), strict=True))
