"""Ways to break the library by 1e-3: `pytest --perturb NAME` must fail for each of them."""

import dataclasses
import functools

from softorder.kernels import dense, hard, native, scan, scores, tiled
from softorder.relaxations import softsort
from softorder.torch import _autograd, _wiring

SIZE = 1e-3


def _scaled(y):
    return y * (1 + SIZE)


def _shifted(y):
    return y + SIZE


def _wrong_slope(y):
    """Keep the value, change the gradient."""
    return y + SIZE * (y - y.detach()) if hasattr(y, "detach") else y


def _after(owner, name, change):
    """Change what a function or method returns."""

    def perturb():
        original = getattr(owner, name)

        @functools.wraps(original)
        def changed(*args, **kwargs):
            return change(original(*args, **kwargs))

        setattr(owner, name, changed)

    return perturb


def _untied(x, begins):
    """Leave the gradients of tied scores as they fall."""
    return x


def _replace_wiring(name, value):
    # A frozen dataclass on purpose: only a test may do this.
    return lambda: object.__setattr__(_wiring.TORCH, name, value)


def _native(kind, field, place):
    """Scale what a native product writes to one of its outputs."""

    def perturb():
        product = native.PRODUCTS[kind]
        original = getattr(product, field)

        def changed(*args):
            original(*args)
            if args[place] is not None:
                args[place][...] *= 1 + SIZE

        native.PRODUCTS[kind] = dataclasses.replace(product, **{field: changed})

    return perturb


def _native_sort():
    """Sort as before, and hand over sorted scores that are a little too far apart."""
    original = _autograd._sort

    def changed(*args):
        order, positions = original(*args)
        return order, positions * (1 + SIZE)

    _autograd._sort = changed


def _scaled_gate(gradients):
    to_gate, to_v = gradients
    return to_gate * (1 + SIZE), to_v


# Where the arguments of `backward` hold the gradients: after the given, the values and g.
TO_SCORES, TO_VALUES, TO_SCALE = 3, 4, 5

NATIVE = {
    "native_sort": _native_sort,
    "native_sort_scores": _native("sort_scores", "forward", 2),
    "native_sort_scores_gradient": _native("sort_scores", "backward", TO_SCORES),
    "native_sort_scores_tau": _native("sort_scores", "backward", TO_SCALE),
    "native_apply": _native("apply", "forward", 2),
    "native_apply_scores": _native("apply", "backward", TO_SCORES),
    "native_apply_values": _native("apply", "backward", TO_VALUES),
    "native_apply_tau": _native("apply", "backward", TO_SCALE),
    "native_transposed": _native("apply_transposed", "forward", 2),
    "native_transposed_scores": _native("apply_transposed", "backward", TO_SCORES),
    "native_transposed_values": _native("apply_transposed", "backward", TO_VALUES),
    "native_transposed_tau": _native("apply_transposed", "backward", TO_SCALE),
    "native_log_z": _native("log_z", "forward", 2),
    "native_log_z_gradient": _native("log_z", "backward", TO_SCORES),
    "native_log_z_tau": _native("log_z", "backward", TO_SCALE),
}
PERTURBATIONS = {
    **(NATIVE if native.is_built() else {}),
    "scan_means": _after(scan.Recurrence, "means", _scaled),
    "scan_spread": _after(scan.Recurrence, "spread", _scaled),
    "scan_normalizers": _after(scan.Recurrence, "normalizers", _scaled),
    "scan_moments": _after(scan.Recurrence, "moments", _scaled),
    "scan_gate_gradient": _after(_autograd, "_scan_gradient", _scaled_gate),
    "scan_tangent": _after(_autograd._Scan, "jvp", _scaled),
    "tiled_apply": _after(tiled.Tiled, "apply", _scaled),
    "tiled_apply_gradient": _after(tiled.Tiled, "apply", _wrong_slope),
    "tiled_transposed": _after(tiled.Tiled, "apply_transposed", _scaled),
    "tiled_log_prob": _after(tiled.Tiled, "log_prob", _scaled),
    "tiled_entropy": _after(tiled.Tiled, "entropy", _scaled),
    "log_rows": _after(dense.RowSoftmax, "log_rows", _shifted),
    "rows": _after(dense.RowSoftmax, "rows", _scaled),
    "apply": _after(dense.RowSoftmax, "apply", _scaled),
    "apply_gradient": _after(dense.RowSoftmax, "apply", _wrong_slope),
    "apply_transposed": _after(dense.RowSoftmax, "apply_transposed", _scaled),
    "apply_transposed_gradient": _after(dense.RowSoftmax, "apply_transposed", _wrong_slope),
    "log_prob": _after(dense.RowSoftmax, "log_prob", _scaled),
    "log_prob_gradient": _after(dense.RowSoftmax, "log_prob", _wrong_slope),
    "entropy": _after(dense.RowSoftmax, "entropy", _scaled),
    "entropy_gradient": _after(dense.RowSoftmax, "entropy", _wrong_slope),
    "log_rows_gradient": _after(dense.RowSoftmax, "log_rows", _wrong_slope),
    "distance": _after(softsort, "distance", _scaled),
    "hard": _after(hard.Hard, "apply", _scaled),
    "straight_through": _after(hard.StraightThrough, "apply", _wrong_slope),
    "sorted": _after(scores.SortedScores, "sorted", _scaled),
    "ties": _replace_wiring("average_gradient", _untied),
    "stop_gradient": _replace_wiring("stop_gradient", lambda x: x),
}
