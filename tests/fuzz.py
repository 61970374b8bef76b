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
import tie_oracle
from frameworks import framework, is_installed
from fuzz_cases import FAMILIES, OF_VALUES, draw, finite_rows, orders_of, spread_of
from fuzz_limits import has_uncertain_order, least_deviation, tolerance
from inside import native, tiled
from tolerances import GRADIENTS, as_numpy

# The oracle takes all orders of one vector: more would take seconds.
MOST_ORDERS, MOST_ITEMS, MOST_ROWS = 130, 8, 6
# A Jacobian has as many entries as this times the scores.
MOST_OUTPUTS = 60


class Finding(Exception):
    """What differs, and by how much."""


# ---------------------------------------------------------------- comparing


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
    if worst > max(limit, 1e-300):
        at = np.abs(found - expected).argmax()
        raise Finding(
            f"{what} differs by {worst:.2g}, allowed {limit:.2g}: {found[at]}, not {expected[at]}"
        )


# ---------------------------------------------------------------- the ways to compute a case


def with_torch(case, g, dtype=torch.float64, call=None, **autograd):
    """Return value and gradients by torch; `call` replaces `case.call`, g None draws weights."""
    names = list(case.inputs())
    leaves = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in case.inputs().values()]
    y = (call or case.call)(dict(zip(names, leaves, strict=True)) | _constants(case))
    if not y.requires_grad:
        return as_numpy(y), {name: np.zeros(x.shape) for name, x in case.inputs().items()}
    g = torch.as_tensor(weights_of(case, as_numpy(y)) if g is None else g).to(y.dtype)
    found = torch.autograd.grad(y, leaves, g, allow_unused=True, **autograd)
    gradients = (np.zeros(x.shape) if d is None else as_numpy(d) for x, d in zip(leaves, found))  # noqa: B905
    return as_numpy(y), dict(zip(names, gradients, strict=True))


def _constants(case, array=torch.tensor):
    return {name: array(x) for name, x in case.constants().items()}


def weights_of(case, y):
    """Return random weights of the result; 0 where it is infinite or NaN."""
    g = np.random.default_rng([case.seed, 1]).uniform(-1, 1, size=y.shape)
    return np.where(np.isfinite(y), g, 0.0)


def with_framework(name, case, g):
    """Return value and gradients by another framework."""
    frame, names = framework(name), list(case.inputs())
    constants = _constants(case, frame.array)
    arrays = [frame.array(x) if name == "tensorflow" else x for x in case.inputs().values()]
    y, found = frame.pull(
        lambda *arrays: case.call(dict(zip(names, arrays, strict=True)) | constants), arrays, g
    )
    return y, dict(zip(names, map(np.asarray, found), strict=True))


# ---------------------------------------------------------------- what is compared


def check_engines(case, g, expected):
    """Every kernel that serves, with the first of them."""
    engines = FAMILIES[case.family].engines
    for kernel in engines[1:] if case.n < 1000 else ("native",):
        if kernel != "native" or (native.extension is not None):
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


def check_oracle(case, g, expected):
    """Brute force over all orders, one vector at a time."""
    if _loses_digits(case) or _is_far(case):
        return
    plan = _oracle_plan(case)
    rows = list(np.ndindex(case.batch if case.product != "knn" else case.values.shape[:1]))
    if plan is None or case.n > MOST_ITEMS or len(rows) > MOST_ROWS:
        return
    if any(orders_of(row) > MOST_ORDERS for row in finite_rows(case)):
        return
    y, sums = case.items_last(expected[0]), {k: np.zeros_like(x) for k, x in _by_row(case).items()}
    values = np.zeros_like(y)
    weights = case.items_last(g)
    for b in rows:
        try:
            found = _of_row(case, plan, b, weights[b])
        except ValueError as error:
            if "kink" in str(error):
                return
            raise
        values[b] = found.pop("value")
        for name, x in found.items():
            if name in sums:
                at = b if sums[name].ndim > x.ndim else ()
                sums[name][at] += x
    gradients = {k: _moved_back(case, k, x) for k, x in expected[1].items()}
    if case.product == "straight_through":
        # Its value, and what its values receive, are those of the exact permutation.
        values, sums["values"] = y, gradients["values"]
    compare(case, "library against oracle", (y, gradients), (values, sums))


def _loses_digits(case):
    """Tell whether the oracle takes differences of numbers far larger than what is left of them.

    Its logits of NeuralSort are sums of scores / tau; its pools are of scores / epsilon for
    FastSoftRank, and of n / epsilon, in units of the scores, for FastSoftSort.
    """
    if np.size(case.tau) == 0:
        return False
    tau = np.min(case.tau)
    largest = max((np.abs(row).max(initial=0.0) for row in finite_rows(case)), default=0.0)
    if case.family.startswith("FastSoftSort"):
        return case.n > 1e3 * tau * largest
    roughly_summed = case.family == "NeuralSort" or case.family.startswith("FastSoftRank")
    return roughly_summed and case.n * largest > 1e3 * tau


def _is_far(case):
    """Tell whether the oracle's probabilities of SoftRank underflow, or leave its quadrature."""
    far = spread_of(case) ** 2 > 100 * np.min(case.tau, initial=np.inf)
    return far and (case.family, case.product) == ("SoftRank", "log_prob")


def _oracle_plan(case):
    """Return the oracle's product, and whether it counts positions from the other end."""
    product, down = case.product, case.descending
    if FAMILIES[case.family].oracle is None:
        return None
    if case.family.startswith("OptimalTransport") and least_deviation(case) is None:
        return None  # all scores are equal: it has no derivative
    if product in ("topk", "topk_mask"):
        return (product, False) if down else None
    if product == "sort" and case.family.startswith("Fast"):
        return None if down else ("sort", False)
    direct = {
        "sort": ("sort", down),
        "argsort": ("argsort", down),
        "sort by": ("apply", not down),
        "rank": ("rank_descending" if down else "rank", False),
        "median": ("quantile", False),
        "rows": ("matrix", False),
        "straight_through": ("apply", False),
    }
    return direct.get(product, (product, False))


def _by_row(case):
    found = {"scores": case.scores, "values": case.values}
    found["tau"] = None if isinstance(case.tau, float) else case.tau
    return {name: np.zeros(x.shape) for name, x in found.items() if x is not None}


def _moved_back(case, name, x):
    along = name == "scores" or (name == "values" and case.product == "sort by")
    return np.moveaxis(x, case.dim, -1) if along and case.product != "knn" else x


def _of_row(case, plan, b, g):
    """Return what the oracle finds for one vector, in the order of the library."""
    product, flipped = plan
    name, settings = FAMILIES[case.family].oracle
    mask = None if case.mask is None else case.mask[() if case.product == "knn" else b]
    s = case.scores if case.product == "knn" else case.scores[b]
    tau = case.tau if np.ndim(case.tau) == 0 else case.tau[b]
    extra = _oracle_extra(case, b)
    if case.product == "rows":
        whole = np.zeros((case.n, case.n))
        np.add.at(whole, list(case.rows), g)
        g = whole
    valid = case.n if mask is None else int(mask.sum())
    turn = np.r_[np.arange(valid)[::-1], np.arange(valid, case.n)] if flipped else slice(None)
    if case.product == "knn":
        s = (case.values[b], s)
    value, ds, dtau, dextra = tie_oracle.gradients(
        name,
        product,
        s,
        tau,
        mask=mask,
        extra=extra,
        cotangent=g[turn] if flipped else g,
        **settings,
    )
    found = {"value": as_numpy(value)[turn] if flipped else as_numpy(value), "tau": as_numpy(dtau)}
    if case.product == "rows":
        found["value"] = found["value"][list(case.rows)]
    if case.product == "knn":
        return found | {"values": as_numpy(ds[0]), "scores": as_numpy(ds[1])}
    found["scores"] = as_numpy(ds)
    return found if dextra is None else found | {"values": as_numpy(dextra)}


def _oracle_extra(case, b):
    product = case.product
    if product == "sort by":
        return case.values[b]
    if product in OF_VALUES:
        return case.values if case.values.ndim <= 2 else case.values[b]
    if product in ("topk", "topk_mask", "knn"):
        return case.k
    if product in ("quantile", "median"):
        return case.q if product == "quantile" else 0.5
    return case.items[b] if product == "log_prob" else None


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


def check_mode(mode, case, g, expected):
    """One way to call torch, with plain reverse mode."""
    if not (FAMILIES[case.family].looks_at_values and mode in _TRACED):
        _MODES[mode](case, g, expected)


def _no_grad(case, g, expected):
    with torch.no_grad():
        y = case.call({k: torch.tensor(x) for k, x in case.inputs().items()} | _constants(case))
    compare(case, "no_grad", (as_numpy(y), {}), expected)


def _create_graph(case, g, expected):
    compare(case, "create_graph", with_torch(case, g, create_graph=True), expected)


def _jvp(case, g, expected):
    """<g, J t> = <J^T g, t>."""
    names, rng = list(case.inputs()), np.random.default_rng([case.seed, 2])
    primals = tuple(torch.tensor(x) for x in case.inputs().values())
    tangents = tuple(torch.tensor(rng.uniform(-1, 1, size=x.shape)) for x in primals)
    constants = _constants(case)
    y, pushed = torch.func.jvp(
        lambda *a: case.call(dict(zip(names, a, strict=True)) | constants), primals, tangents
    )
    compare(case, "jvp", (as_numpy(y), {}), expected)
    if has_uncertain_order(case):
        return
    pushed = np.where(g == 0, 0.0, as_numpy(pushed))
    pulled = [expected[1][k] * as_numpy(t) for k, t in zip(names, tangents, strict=True)]
    limit = sum(tolerance(case, k) * np.sqrt(x.size) for k, x in case.inputs().items())
    total = np.asarray(sum(x.sum() for x in pulled))
    compare_one("jvp against reverse mode", np.asarray((g * pushed).sum()), total, limit)


def _jacrev(case, g, expected):
    if not 0 < g.size <= MOST_OUTPUTS:
        return
    names, constants = list(case.inputs()), _constants(case)
    jacobian = torch.func.jacrev(lambda a: case.call(a | constants))(
        {k: torch.tensor(x) for k, x in case.inputs().items()}
    )
    weights = torch.tensor(g).reshape(-1)
    found = {}
    for k in names:
        shape = case.inputs()[k].shape
        rows = jacobian[k].reshape(g.size, int(np.prod(shape)))
        found[k] = as_numpy(weights @ rows).reshape(shape)
    compare(case, "jacrev", (expected[0], found), expected)


def _axes(case):
    """Return which axis of each array is the first of the batch; None where it has none."""
    if not case.batch or case.dim == -len(case.batch) - 1 or 0 in case.batch:
        return None
    axes = dict.fromkeys([*case.inputs(), *case.constants()], 0)
    if "tau" in axes and np.ndim(case.tau) == 0:
        axes["tau"] = None
    if case.product in OF_VALUES and case.values.ndim <= 2:
        axes["values"] = None
    return axes


def _out_axis(case):
    return 1 if case.product == "quantile" and np.ndim(case.q) else 0


def _vmap(case, g, expected):
    axes = _axes(case)
    if axes is not None:
        call = torch.func.vmap(case.call, in_dims=(axes,))
        moved = with_torch(case, g, call=lambda a: call(a).movedim(0, _out_axis(case)))
        compare(case, "vmap", moved, expected)


def _compile(case, g, expected):
    torch.compiler.reset()
    call = torch.compile(case.call, fullgraph=True, backend="eager")
    compare(case, "compile", with_torch(case, g, call=call), expected)


def _jax_vmap(case, g, expected):
    import jax

    axes = _axes(case)
    if axes is None:
        return
    frame = framework("jax")
    arrays = {k: frame.array(x) for k, x in {**case.inputs(), **case.constants()}.items()}
    call = jax.jit(jax.vmap(case.call, in_axes=(axes,), out_axes=_out_axis(case)))
    compare(case, "jax.vmap", (frame.values(call(arrays)), {}), expected)


def _in(name):
    def check(case, g, expected):
        if is_installed(name):
            compare(case, f"{name} against torch", with_framework(name, case, g), expected)

    return check


_MODES = {
    "no_grad": _no_grad,
    "create_graph": _create_graph,
    "jvp": _jvp,
    "jacrev": _jacrev,
    "vmap": _vmap,
    "compile": _compile,
    "jax vmap": _jax_vmap,
    "numpy": _in("numpy"),
    "jax": _in("jax"),
    "tensorflow": _in("tensorflow"),
    "oracle": check_oracle,
}
_TRACED = ("vmap", "jvp", "jacrev", "compile", "jax", "jax vmap", "tensorflow")


# ---------------------------------------------------------------- the run


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
