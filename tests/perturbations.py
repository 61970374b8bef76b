"""Ways to break the library by 1e-3: `pytest --perturb NAME` must fail for each of them."""

import functools
import importlib.util
import pkgutil

import numpy

from frameworks import extra_is_installed
from inside import (
    NUMPY,
    RULES,
    TORCH,
    NeuralSortFormula,
    Product,
    Recorded,
    Stationary,
    approximate_rank,
    core_permutation,
    core_plackett_luce,
    dense,
    distances,
    doubly_stochastic,
    extension,
    extension_module,
    fast_soft,
    isotonic,
    neuralsort,
    numpy_native,
    optimal_transport,
    pairwise,
    recurrence,
    scores,
    softrank,
    spec,
    take_along,
    ties,
    tiled,
    torch_autograd,
    views,
)

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
    return lambda: object.__setattr__(TORCH, name, value)


def _native(formula, call, output):
    """Scale what a native product writes to one of its outputs."""

    def perturb():
        original = extension_module.make_call

        def changed(which, *args):
            held = original(which, *args)
            wanted = (formula, *call) == (type(which.formula), which.product, which.own_scores)
            return _Scaled(held, output) if wanted else held

        for module in (extension_module, torch_autograd, numpy_native):
            module.make_call = changed

    return perturb


class _Scaled:
    """A call of the extension with one output a little too large."""

    def __init__(self, held, output):
        self.held, self.output = held, output

    def forward(self, out):
        self.held.forward(out)
        if self.output == "forward":
            out[...] *= 1 + SIZE

    def backward(self, g, *to):
        self.held.backward(g, *to)
        if self.output != "forward" and to[self.output] is not None:
            to[self.output][...] *= 1 + SIZE


def _native_sort():
    """Sort as before, and hand over sorted scores that are a little too far apart."""
    original = torch_autograd._sort

    def changed(*args):
        order, positions = original(*args)
        return order, positions * (1 + SIZE)

    torch_autograd._sort = changed


def _average_items():
    """Let tied items share the whole gradient, not only that of their positions."""

    def sort(self):
        items = self._cache.get("items", self._clean)
        return take_along(self.wiring, items, self.order, axis=-1)

    scores.SortedScores._sort = sort
    scores.SortedScores.items = property(lambda self: self.by_item(self.position_scores))


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
    original = getattr(TORCH, name)
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
        original = getattr(NUMPY, name)
        changed = lambda *args: _wrong_pull(original(*args))  # noqa: E731
        object.__setattr__(NUMPY, name, changed)

    return perturb


def _in_tensorflow(name, change):
    """Change one function of TensorFlow's wiring."""

    def perturb():
        from inside import TENSORFLOW

        object.__setattr__(TENSORFLOW, name, change(getattr(TENSORFLOW, name)))

    return perturb


def _logsumexp_in_tensorflow():
    original = core_plackett_luce.cumulative_logsumexp

    def changed(wiring, x):
        y = original(wiring, x)
        return _scaled(y) if wiring.name == "tensorflow" else y

    core_plackett_luce.cumulative_logsumexp = changed


def _then(change):
    """Change what a function returns."""
    return lambda original: lambda *args: change(original(*args))


# Where `backward` of a call has the gradients.
TO_SCORES, TO_VALUES, TO_SCALE = 0, 1, 2
SORT_SCORES = (Product.APPLY, True)
APPLY, TRANSPOSED = (Product.APPLY, False), (Product.APPLY_TRANSPOSED, False)
LOG_PROB = (Product.LOG_PROB, False)

OF_A_PRODUCT = {
    "sort_scores": (SORT_SCORES, "forward"),
    "sort_scores_gradient": (SORT_SCORES, TO_SCORES),
    "sort_scores_tau": (SORT_SCORES, TO_SCALE),
    "apply": (APPLY, "forward"),
    "apply_scores": (APPLY, TO_SCORES),
    "apply_values": (APPLY, TO_VALUES),
    "apply_tau": (APPLY, TO_SCALE),
    "transposed": (TRANSPOSED, "forward"),
    "transposed_scores": (TRANSPOSED, TO_SCORES),
    "transposed_values": (TRANSPOSED, TO_VALUES),
    "transposed_tau": (TRANSPOSED, TO_SCALE),
    "log_prob": (LOG_PROB, "forward"),
    "log_prob_gradient": (LOG_PROB, TO_SCORES),
    "log_prob_tau": (LOG_PROB, TO_SCALE),
}
NATIVE = {
    "native_sort": _native_sort,
    "vjp.native": _after(NUMPY.native, "product", _wrong_pull),
    **{f"native_{name}": _native(Stationary, *at) for name, at in OF_A_PRODUCT.items()},
    **{
        f"native_neuralsort_{name}": _native(NeuralSortFormula, *at)
        for name, at in OF_A_PRODUCT.items()
    },
}
OF_JAX = {
    "product": _after_importing("inside:jax_native", "forward", _scaled),
    "gradient": _after_importing(
        "inside:jax_native", "backward", lambda found: [_scaled(x) for x in found]
    ),
    "scan": _after_importing("inside:jax_wiring", "_recurrence", _scaled),
}
OF_TENSORFLOW = {
    "recurrence": _in_tensorflow("sums_over_others", _then(_scaled)),
    "recurrence_gradient": _after_importing("inside:tensorflow_scan", "gap_gradient", _scaled),
    "scan": _in_tensorflow("scan", _then(_scaled)),
    "scan_gradient": _after_importing("inside:tensorflow_scan", "_scan_gradient", _scaled_gate),
    "logsumexp": _logsumexp_in_tensorflow,
    "matmul": _in_tensorflow("matmul", _then(_scaled)),
    "stop_gradient": _in_tensorflow("stop_gradient", lambda original: lambda x: x),
}
OF_EXPERIMENTS = {
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
        "differences": _after(pairwise.Comparisons, "differences", _scaled),
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
        "marginal_error": _after(core_permutation.SoftPermutation, "marginal_error", _shifted),
    },
    "optimal_transport": {
        "scaling": _after(optimal_transport._Transport, "_standardized", _scaled),
        "targets": _after(optimal_transport._Transport, "_targets", _scaled),
        "start": _after(optimal_transport._Transport, "_potentials", _forgotten),
        "groups": _after(dense.GroupedMatrix, "apply", _scaled),
        "groups_transposed": _after(dense.GroupedMatrix, "apply_transposed", _scaled),
    },
    "plackett_luce": {
        "log_prob": _after(core_plackett_luce.PlackettLuce, "_log_prob", _scaled),
        "log_prob_gradient": _after(core_plackett_luce.PlackettLuce, "_log_prob", _wrong_slope),
        "logsumexp": _after(core_plackett_luce, "cumulative_logsumexp", _scaled),
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
        "solve": _after(NUMPY.xp.linalg, "solve", _wrong_pull),
        "stop_gradient": lambda: object.__setattr__(NUMPY, "stop_gradient", lambda x: x),
    },
    "distances": {
        "differences": _after(distances, "_by_differences", _scaled),
        "differences_gradient": _after(distances, "_by_differences", _wrong_slope),
    },
    **(OF_EXPERIMENTS if extra_is_installed("experiments") else {}),
}
PERTURBATIONS = {
    **{f"{file}.{name}": p for file, some in BY_FILE.items() for name, p in some.items()},
    **(NATIVE if extension is not None else {}),
    "scan_means": _after(recurrence.Recurrence, "means", _scaled),
    "scan_spread": _after(recurrence.Recurrence, "spread", _scaled),
    "scan_normalizers": _after(recurrence.Recurrence, "normalizers", _scaled),
    "scan_moments": _after(recurrence.Recurrence, "moments", _scaled),
    "scan_gate_gradient": _after(torch_autograd, "_scan_gradient", _scaled_gate),
    "scan_tangent": _after(torch_autograd._Scan, "jvp", _scaled),
    "tiled_apply": _after(tiled.Tiled, "apply", _scaled),
    "tiled_apply_gradient": _after(tiled.Tiled, "apply", _wrong_slope),
    "tiled_transposed": _after(tiled.Tiled, "apply_transposed", _scaled),
    "tiled_log_prob": _after(tiled.Tiled, "log_prob", _scaled),
    "tiled_entropy": _after(tiled.Tiled, "entropy", _scaled),
    "tiled_reach": _after(tiled.Tiled, "_find_reach", _narrower),
    "neuralsort_cost": _after(neuralsort, "_capped", _scaled),
    "neuralsort_cost_gradient": _after(neuralsort, "_capped", _wrong_slope),
    "neuralsort_ties": _after(neuralsort, "_tied_distances", lambda tied: None),
    "log_rows": _after(dense.Dense, "log_rows", _shifted),
    "rows": _after(dense.Dense, "rows", _scaled),
    "apply": _after(dense.Dense, "apply", _scaled),
    "apply_gradient": _after(dense.Dense, "apply", _wrong_slope),
    "apply_transposed": _after(dense.Dense, "apply_transposed", _scaled),
    "apply_transposed_gradient": _after(dense.Dense, "apply_transposed", _wrong_slope),
    "log_prob": _after(dense.Dense, "log_prob", _scaled),
    "log_prob_gradient": _after(dense.Dense, "log_prob", _wrong_slope),
    "entropy": _after(dense.Dense, "entropy", _scaled),
    "entropy_gradient": _after(dense.Dense, "entropy", _wrong_slope),
    "log_rows_gradient": _after(dense.Dense, "log_rows", _wrong_slope),
    "distance": _after(spec, "distance", _scaled),
    "hard": _after(views.Hard, "apply", _scaled),
    "straight_through": _after(views.StraightThrough, "apply", _wrong_slope),
    "sorted": _after(scores.SortedScores, "sorted", _scaled),
    "ties_positions": lambda: setattr(ties.Ties, "average_gradient", lambda self, x: x),
    "ties_items": _average_items,
    "ties_slopes": _after(ties.Ties, "slopes", _scaled),
    "scan_ties": _after(recurrence.Recurrence, "_among_ties", lambda y: 0.0 * y),
    "scan_tied_moments": _after(recurrence.Recurrence, "_moments_among_ties", lambda y: 0.0 * y),
    "stop_gradient": _replace_wiring("stop_gradient", lambda x: x),
}
