"""Ways to break the library by 1e-3: `pytest --perturb NAME` must fail for each of them."""

import functools

from softorder.kernels import dense, hard, scores
from softorder.relaxations import softsort
from softorder.torch import _wiring

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


PERTURBATIONS = {
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
