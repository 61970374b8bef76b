"""Ways to call a case besides plain reverse mode, other frameworks among them."""

import numpy as np
import torch

from frameworks import framework, is_installed
from fuzz_cases import FAMILIES, OF_VALUES
from fuzz_compare import compare, compare_one, constants_of, with_framework, with_torch
from fuzz_limits import has_uncertain_order, tolerance
from fuzz_oracle import check_oracle
from tolerances import as_numpy

# A Jacobian has as many entries as this times the scores.
MOST_OUTPUTS = 60


def check_mode(mode, case, g, expected):
    """One way to call torch, with plain reverse mode."""
    if not (FAMILIES[case.family].looks_at_values and mode in _TRACED):
        _MODES[mode](case, g, expected)


def _no_grad(case, g, expected):
    with torch.no_grad():
        y = case.call({k: torch.tensor(x) for k, x in case.inputs().items()} | constants_of(case))
    compare(case, "no_grad", (as_numpy(y), {}), expected)


def _create_graph(case, g, expected):
    compare(case, "create_graph", with_torch(case, g, create_graph=True), expected)


def _jvp(case, g, expected):
    """<g, J t> = <J^T g, t>."""
    names, rng = list(case.inputs()), np.random.default_rng([case.seed, 2])
    primals = tuple(torch.tensor(x) for x in case.inputs().values())
    tangents = tuple(torch.tensor(rng.uniform(-1, 1, size=x.shape)) for x in primals)
    constants = constants_of(case)
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
    names, constants = list(case.inputs()), constants_of(case)
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
    axes = _axes(case)
    if axes is None or not is_installed("jax"):
        return
    import jax

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
