"""Ways to break the library by 1e-3: `pytest --perturb NAME` must fail for each of them."""

import dataclasses
import functools
import importlib.util
import pkgutil

import numpy

from softorder import _permutation, _plackett_luce
from softorder._array import take_along
from softorder._kernels import (
    dense,
    distances,
    doubly_stochastic,
    isotonic,
    native,
    pairwise,
    scan,
    scores,
    ties,
    tiled,
    views,
)
from softorder.numpy._tape import RULES, Recorded
from softorder.numpy._wiring import RECORDING
from softorder.relaxations import (
    approximate_rank,
    fast_soft,
    neuralsort,
    optimal_transport,
    softrank,
    softsort,
)
from softorder.torch import _autograd, _wiring

SIZE = 1e-3
TASKS = "softorder_experiments.tasks"


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


def _after_importing(path, name, change):
    """Change what a function or method returns, of something that is imported only now."""

    def perturb():
        _after(pkgutil.resolve_name(path), name, change)()

    return perturb


def _replaced(owner, name, value):
    return lambda: setattr(owner, name, value)


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


def _average_items():
    """Let tied items share the whole gradient, not only that of their positions."""

    def sort(self):
        items = self._cache.get("items", self._clean)
        return take_along(self.wiring, items, self.order, axis=-1)

    scores.SortedScores._sort = sort
    scores.SortedScores.items = property(lambda self: self.by_item(self.positions))


def _narrower(reach):
    """Leave out the outer nine tenths of the band, where weights are below about 1e-3."""
    if reach is None:
        return None
    first, last = reach
    own = numpy.arange(len(first))
    return own - (own - first) // 10, own + (last - own) // 10


def _forgotten(y):
    """Begin at zero: a start that is a little off is mended by the iterations."""
    return 0.0 * y


def _unpooled(first):
    """Take the last item of all out of its pool."""
    changed = first.clone() if hasattr(first, "clone") else first.copy()
    if first.shape[-1] > 1:
        changed[..., -1] = first.shape[-1] - 1
    return changed


def _wrong_step(result):
    """Forget how the steps of Newton's method depend on the matrix."""
    step, slope = result
    return (step.detach() if hasattr(step, "detach") else step), slope


def _after_wiring(name, change):
    original = getattr(_wiring.TORCH, name)
    _replace_wiring(name, lambda *args: change(original(*args)))()


def _scaled_gate(gradients):
    to_gate, to_v = gradients
    return to_gate * (1 + SIZE), to_v


def _wrong_pull(y):
    """Keep the value of a recorded array, change the gradient."""
    if isinstance(y, Recorded):
        pull = y.node.pull
        y.node.pull = lambda g: pull(_scaled(g))
    return y


def _wrong_rule(function):
    """Change the gradient of a function of NumPy."""

    def perturb():
        original = RULES[function]
        RULES[function] = lambda *args, **kwargs: _wrong_pull(original(*args, **kwargs))

    return perturb


def _wrong_recording(name):
    """Change the gradient of what the wiring of recorded arrays has."""

    def perturb():
        original = getattr(RECORDING, name)
        changed = lambda *args: _wrong_pull(original(*args))  # noqa: E731
        object.__setattr__(RECORDING, name, changed)

    return perturb


def _in_tensorflow(name, change):
    """Change one function of TensorFlow's wiring."""

    def perturb():
        from softorder.tensorflow._wiring import TENSORFLOW

        object.__setattr__(TENSORFLOW, name, change(getattr(TENSORFLOW, name)))

    return perturb


def _then(change):
    """Change what a function returns."""
    return lambda original: lambda *args: change(original(*args))


# Where the arguments of `backward` hold the gradients: after the given, the values and g.
TO_SCORES, TO_VALUES, TO_SCALE = 3, 4, 5

OF_A_PRODUCT = {
    "sort_scores": ("sort_scores", "forward", 2),
    "sort_scores_gradient": ("sort_scores", "backward", TO_SCORES),
    "sort_scores_tau": ("sort_scores", "backward", TO_SCALE),
    "apply": ("apply", "forward", 2),
    "apply_scores": ("apply", "backward", TO_SCORES),
    "apply_values": ("apply", "backward", TO_VALUES),
    "apply_tau": ("apply", "backward", TO_SCALE),
    "transposed": ("apply_transposed", "forward", 2),
    "transposed_scores": ("apply_transposed", "backward", TO_SCORES),
    "transposed_values": ("apply_transposed", "backward", TO_VALUES),
    "transposed_tau": ("apply_transposed", "backward", TO_SCALE),
    "log_z": ("log_z", "forward", 2),
    "log_z_gradient": ("log_z", "backward", TO_SCORES),
    "log_z_tau": ("log_z", "backward", TO_SCALE),
    "log_prob": ("log_prob", "forward", 2),
    "log_prob_gradient": ("log_prob", "backward", TO_SCORES),
    "log_prob_tau": ("log_prob", "backward", TO_SCALE),
}
NATIVE = {
    "native_sort": _native_sort,
    "vjp.native": _after(RECORDING.native, "product", _wrong_pull),
    **{f"native_{name}": _native(*place) for name, place in OF_A_PRODUCT.items()},
    **{
        f"native_neuralsort_{name}": _native(f"neuralsort_{kind}", *place)
        for name, (kind, *place) in OF_A_PRODUCT.items()
    },
}
OF_JAX = {
    "product": _after_importing("softorder.jax._native:Rows", "forward", _scaled),
    "gradient": _after_importing(
        "softorder.jax._native:Rows", "backward", lambda found: [_scaled(x) for x in found]
    ),
    "scan": _after_importing("softorder.jax._wiring", "_recurrence", _scaled),
}
OF_TENSORFLOW = {
    "recurrence": _in_tensorflow("beside", _then(_scaled)),
    "recurrence_gradient": _after_importing("softorder.tensorflow._scan", "gap_gradient", _scaled),
    "scan": _in_tensorflow("scan", _then(_scaled)),
    "scan_gradient": _after_importing("softorder.tensorflow._scan", "_scan_gradient", _scaled_gate),
    "logsumexp": _in_tensorflow("cumulative_logsumexp", _then(_scaled)),
    "matmul": _in_tensorflow("matmul", _then(_scaled)),
    "stop_gradient": _in_tensorflow("stop_gradient", lambda original: lambda x: x),
}
# By the test file that should notice.
BY_FILE = {
    "jax": OF_JAX if importlib.util.find_spec("jax") else {},
    "tensorflow": OF_TENSORFLOW if importlib.util.find_spec("tensorflow") else {},
    "approximate_rank": {
        "ranks": _after(approximate_rank, "expected_ranks", _scaled),
        "ranks_gradient": _after(approximate_rank, "expected_ranks", _wrong_slope),
    },
    "softrank": {
        "ranks": _after(softrank, "expected_ranks", _scaled),
        "ranks_gradient": _after(softrank, "expected_ranks", _wrong_slope),
        "differences": _after(pairwise.Contests, "differences", _scaled),
        # Not scaled: a distribution is normalised afterwards.
        "losses": _after(pairwise, "count_losses", _shifted),
        "losses_gradient": _after(pairwise, "_place", _wrong_slope),
        "log_probability": _after(softrank, "log_rank_probability", _scaled),
        "log_probability_gradient": _after(softrank, "log_rank_probability", _wrong_slope),
        "normal_cdf": lambda: _after_wiring("normal_cdf", _scaled),
    },
    "fast_soft": {
        "values": _after(fast_soft.FastSoftSort, "values", _scaled),
        "values_gradient": _after(fast_soft.FastSoftSort, "values", _wrong_slope),
        "ranks": _after(fast_soft.FastSoftRank, "ranks", _scaled),
        "ranks_gradient": _after(fast_soft.FastSoftRank, "ranks", _wrong_slope),
        "pools": _after(fast_soft._Pool, "find", _unpooled),
    },
    "isotonic": {
        "pool_l2": _after(isotonic, "pool_l2", _unpooled),
        "pool_kl": _after(isotonic, "pool_kl", _unpooled),
        "portable": _after(isotonic, "pool_portable", _unpooled),
    },
    "sinkhorn": {
        "columns": _after(doubly_stochastic.Balance, "_columns", _scaled),
        "rows": _after(doubly_stochastic.Balance, "_rows", _scaled),
        "log_matrix": _after(doubly_stochastic.Balance, "_log_matrix", _shifted),
        "gradient": _after(doubly_stochastic.Balance, "_log_matrix", _wrong_slope),
        "newton": _after(doubly_stochastic.Balance, "_newton", _wrong_step),
        "marginal_error": _after(_permutation.SoftPermutation, "marginal_error", _shifted),
    },
    "optimal_transport": {
        "scaling": _after(optimal_transport._Transport, "_standardized", _scaled),
        "targets": _after(optimal_transport._Transport, "_targets", _scaled),
        "start": _after(optimal_transport._Transport, "_potentials", _forgotten),
        "groups": _after(dense.Grouped, "apply", _scaled),
        "groups_transposed": _after(dense.Grouped, "apply_transposed", _scaled),
    },
    "plackett_luce": {
        "log_prob": _after(_plackett_luce.PlackettLuce, "_log_prob", _scaled),
        "log_prob_gradient": _after(_plackett_luce.PlackettLuce, "_log_prob", _wrong_slope),
        "logsumexp": lambda: _after_wiring("cumulative_logsumexp", _scaled),
    },
    "vjp": {
        **{
            f.__name__.strip("_"): _wrong_rule(f)
            for f in (
                numpy.multiply,
                numpy.where,
                numpy.matmul,
                numpy.take_along_axis,
                numpy.ndarray.__getitem__,
            )
        },
        **{
            name: _wrong_recording(name)
            for name in ("add_along_axis", "logsumexp", "normal_cdf", "scan", "checkpoint")
        },
        "solve": _after(RECORDING.xp.linalg, "solve", _wrong_pull),
        "stop_gradient": lambda: object.__setattr__(RECORDING, "stop_gradient", lambda x: x),
    },
    "distances": {
        "differences": _after(distances, "_by_differences", _scaled),
        "differences_gradient": _after(distances, "_by_differences", _wrong_slope),
    },
    "experiments_sort": {
        "loss": _after_importing(f"{TASKS}.sort:Sort", "cross_entropy", _scaled),
        "network": _after_importing(
            "softorder_experiments.models:DigitNetwork", "forward", _scaled
        ),
        "seed": _after_importing(f"{TASKS}.base", "derive_seed", lambda seed: seed ^ 1),
    },
    "experiments_median": {
        "loss": _after_importing(f"{TASKS}.median:Median", "squared_error", _scaled),
        "weights": _after_importing(f"{TASKS}.median:Median", "weights", _scaled),
    },
    "experiments_knn": {
        "loss": _after_importing(f"{TASKS}.knn:KNN", "loss_of", _scaled),
        "embedding": _after_importing(
            "softorder_experiments.models:ConvolutionalEmbedding", "forward", _scaled
        ),
        "residual": _after_importing("softorder_experiments.models:ResNet18", "forward", _scaled),
        "pixels": _after_importing(f"{TASKS}.images:Images", "_floats", _scaled),
    },
    "experiments_speed": {
        "formula": _after_importing("softorder_experiments.formulas", "softsort", _scaled),
        "correlation": _after_importing("softorder_experiments.speed.child", "spearman", _scaled),
        "update": _after_importing(
            "softorder_experiments.speed.frameworks.problem:Problem",
            "update",
            lambda after: tuple(map(_scaled, after)),
        ),
    },
    "experiments_report": {
        "logits": _after_importing(
            "softorder_experiments.report.operator_figures", "neuralsort_logits", _scaled
        ),
    },
    "experiments_engine": {
        "schedule": _after_importing("softorder_experiments.schedules", "cosine", _scaled),
    },
}
PERTURBATIONS = {
    **{f"{file}.{name}": p for file, some in BY_FILE.items() for name, p in some.items()},
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
    "tiled_reach": _after(tiled.Tiled, "_find_reach", _narrower),
    "neuralsort_cost": _after(neuralsort, "_bounded", _scaled),
    "neuralsort_cost_gradient": _after(neuralsort, "_bounded", _wrong_slope),
    "neuralsort_ties": _after(neuralsort, "_tied_distances", lambda tied: None),
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
    "hard": _after(views.Hard, "apply", _scaled),
    "straight_through": _after(views.StraightThrough, "apply", _wrong_slope),
    "sorted": _after(scores.SortedScores, "sorted", _scaled),
    "ties_positions": lambda: setattr(ties.Ties, "average_gradient", lambda self, x: x),
    "ties_items": _average_items,
    "ties_slopes": _after(ties.Ties, "slopes", _scaled),
    "scan_ties": _after(scan.Recurrence, "_among_ties", lambda y: 0.0 * y),
    "scan_tied_moments": _after(scan.Recurrence, "_moments_among_ties", lambda y: 0.0 * y),
    "stop_gradient": _replace_wiring("stop_gradient", lambda x: x),
}
