"""Compare the library with itself, with oracles and across frameworks, on random cases.

    .venv/bin/python tests/fuzz.py --minutes 60 --seed 0     # or: make fuzz MINUTES=60
    .venv/bin/python tests/fuzz.py --case 123                # one case

Engines are compared with each other, small cases with the brute force of `tie_oracle`, torch with
NumPy, JAX and TensorFlow, lower dtypes with float64, and modes (vmap, jvp, compile, ...) with eager
torch: values and every gradient. A finding is one line with the command that repeats it.
"""

import argparse
import contextlib
import os
import sys
import time
import traceback
import warnings

import numpy as np
import torch

import softorder as so
from fuzz_cases import FAMILIES, draw
from fuzz_compare import Finding, compare, compare_one, weights_of, with_torch
from fuzz_limits import tolerance
from fuzz_modes import check_mode
from inside import extension_module, tiled


def check_engines(case, g, expected):
    """Every kernel that serves, with the first of them."""
    engines = FAMILIES[case.family].engines
    for kernel in engines[1:] if case.n < 1000 else ("native",):
        if kernel != "native" or (extension_module.extension is not None):
            with so.config(kernel=kernel):
                compare(case, f"{kernel} against {engines[0]}", with_torch(case, g), expected)


def check_invariants(case, y):
    """What holds whatever the relaxation: sums, signs, no NaN."""
    y, valid = case.items_last(y), case.valid()
    count = valid.sum(-1)
    if case.product in ("quantile", "median"):
        # Between both infinities there is no number.
        some = (count > 0) & (np.isfinite(case.scores) | ~valid).all(-1)
        if np.isnan(y[some]).any():
            raise Finding("a quantile of numbers is NaN")
        return
    if np.isnan(y).any():
        raise Finding("NaN from scores that are numbers")
    if case.product in ("topk_mask", "knn", "matrix", "rows") and y.min(initial=0.0) < 0:
        raise Finding(f"a probability is negative: {y.min():.3g}")
    limit = tolerance(case, None) * max(case.n, 1)
    if case.product == "topk_mask":
        compare_one("sum of topk_mask", y.sum(-1), np.minimum(count, case.k) * 1.0, limit)
    if case.product == "knn":
        compare_one("sum of knn", y.sum(-1), np.full(y.shape[:-1], min(count, 1.0)), limit)
    if case.product == "matrix":
        rows = (np.arange(case.n) < count[..., None]) * 1.0
        compare_one("row sums", y.sum(-1), rows, limit)
    has_range = y.size > 0 and np.isfinite(case.scores).all() and count.min() > 0
    if case.product == "sort" and has_range:
        x = np.where(valid, case.scores, np.nan)
        low, high = np.nanmin(x, -1, keepdims=True), np.nanmax(x, -1, keepdims=True)
        inside = np.arange(case.n) < count[..., None]
        if (((y < low - limit) | (y > high + limit)) & inside).any():
            raise Finding("sorted values leave the range of the scores")


def check_dtype(case, g, expected):
    """A lower dtype, with float64 at the same inputs."""
    # The squared distances of a kNN are rounded before they are compared, whatever tau is.
    if case.dtype != "float64" and case.product != "knn":
        dtype = getattr(torch, case.dtype)
        found = with_torch(case, g, dtype)
        compare(case, case.dtype, *_held_by(dtype, found, expected), case.dtype)


def _held_by(dtype, *results):
    """Return results without what is too large for the dtype in the last of them."""
    y, gradients = results[-1]
    largest = 0.9 * torch.finfo(dtype).max

    def cut(x, exact):
        return np.where(np.isfinite(exact) & (np.abs(exact) > largest), 0.0, x)

    return [
        (cut(value, y), {name: cut(x, gradients[name]) for name, x in found.items()})
        for value, found in results
    ]


@contextlib.contextmanager
def small_tiles():
    """Let a few items make several tiles."""
    before, tiled.TILE = tiled.TILE, 64
    try:
        yield
    finally:
        tiled.TILE = before


def examine(case):
    """Raise a finding, or whatever the library raises."""
    engines = FAMILIES[case.family].engines
    first = engines[0] if case.n < 1000 or "portable" not in engines else "portable"
    with so.config(kernel=first):
        expected = with_torch(case, None)
        g = weights_of(case, expected[0])
    check_invariants(case, expected[0])
    for name, x in expected[1].items():
        if not np.isfinite(x).all():
            raise Finding(f"the gradient of {name} is not finite")
    check_engines(case, g, expected)
    check_dtype(case, g, expected)
    for mode in case.checks:
        check_mode(mode, case, g, expected)


def find(seed):
    """Return the finding of one case as a line, or None."""
    case = draw(seed)
    try:
        with small_tiles(), warnings.catch_warnings():
            warnings.simplefilter("error")
            # torch.func imports deprecated parts of torch.
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            # Half-way between two infinities is NaN, and NumPy says so, as in numpy.quantile.
            warnings.filterwarnings("ignore", "invalid value encountered in add", RuntimeWarning)
            examine(case)
    except Finding as finding:
        said = str(finding)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        first = str(error).partition("\n")[0]
        said = f"{type(error).__name__} in {os.path.basename(place.filename)}: {first}"
    else:
        return None
    said = " ".join(said.split())
    return f"{seed}: {case}: {said}. Repeat it: .venv/bin/python tests/fuzz.py --case {seed}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="how long (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="the first case; the next are +1, ...")
    parser.add_argument("--case", type=int, help="examine this case alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.case is not None:
        print(draw(args.case))
        line = find(args.case)
        print(line or "no finding")
        return line is not None
    end, seed, found = time.monotonic() + 60 * args.minutes, args.seed, 0
    while time.monotonic() < end:
        line, seed = find(seed), seed + 1
        if line is not None:
            found += 1
            print(line, flush=True)
    print(f"{seed - args.seed} cases, {found} findings")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
