"""Every inner name of the library that the tests use.

Tests import such names from here and never from `softorder._...` itself, so that a rename inside
`src` changes one file of the tests. Each is looked up when it is imported from here: some belong to
a framework that may not be installed.
"""

import pkgutil

_MODULES = {
    "approximate_rank": "softorder.relaxations.approximate_rank",
    "core_permutation": "softorder._permutation",
    "core_plackett_luce": "softorder._plackett_luce",
    "dense": "softorder._kernels.dense",
    "dispatch": "softorder._kernels.dispatch",
    "distances": "softorder._kernels.distances",
    "doubly_stochastic": "softorder._kernels.doubly_stochastic",
    "extension_module": "softorder._extension",
    "fast_soft": "softorder.relaxations.fast_soft",
    "isotonic": "softorder._kernels.isotonic",
    "jax_native": "softorder.jax._native",
    "jax_wiring": "softorder.jax._wiring",
    "native": "softorder._kernels.native",
    "neuralsort": "softorder._kernels.neuralsort",
    "numpy_native": "softorder.numpy._native",
    "numpy_rules": "softorder.numpy._rules",
    "on_cpu": "softorder._kernels.on_cpu",
    "optimal_transport": "softorder.relaxations.optimal_transport",
    "pairwise": "softorder._kernels.pairwise",
    "rank_tails": "softorder._kernels.rank_tails",
    "recurrence": "softorder._kernels.recurrence",
    "scores": "softorder._kernels.scores",
    "softrank": "softorder.relaxations.softrank",
    "spec": "softorder._kernels.spec",
    "tensorflow_scan": "softorder.tensorflow._scan",
    "ties": "softorder._kernels.ties",
    "tiled": "softorder._kernels.tiled",
    "torch_autograd": "softorder.torch._autograd",
    "views": "softorder._kernels.views",
}
_NAMES = {
    "softorder._array": ["find_wiring", "take_along", "wiring_of"],
    "softorder._config": ["KERNELS"],
    "softorder._extension": ["extension"],
    "softorder._kernels.dense": ["Dense"],
    "softorder._kernels.formulas": ["ABS", "NEURALSORT", "SQUARE"],
    "softorder._kernels.isotonic": ["KL", "L2"],
    "softorder._kernels.neuralsort": ["NeuralSortFormula"],
    "softorder._kernels.products": ["Call", "Product"],
    "softorder._kernels.profiles": ["GAUSSIAN", "LAPLACE"],
    "softorder._kernels.quantile_positions": ["CLOSEST", "quantile_places"],
    "softorder._kernels.recurrence": ["gates", "sums_over_others"],
    "softorder._kernels.scan": ["chunked_scan", "cumulative_logsumexp"],
    "softorder._kernels.spec": ["Explicit", "Stationary"],
    "softorder.numpy._tape": ["RULES", "Recorded"],
    "softorder.numpy._wiring": ["NUMPY"],
    "softorder.relaxations.base": ["PermutationRelaxation"],
    "softorder.tensorflow._flows": ["chunked_sums_over_others", "gap_gradient", "gates_by_step"],
    "softorder.tensorflow._wiring": ["TENSORFLOW"],
    "softorder.testing._examined": ["Operation"],
    "softorder.testing._report": ["measure"],
    "softorder.torch._wiring": ["TORCH"],
}
_PATHS = _MODULES | {name: f"{module}:{name}" for module in _NAMES for name in _NAMES[module]}


def __getattr__(name):
    """Look a name up, for `from inside import name`."""
    if name not in _PATHS:
        raise AttributeError(name)
    return pkgutil.resolve_name(_PATHS[name])


def operator_of(P):
    """Return the operator of a soft permutation."""
    return P._operator


def engine_of(P):
    """Return the name of the engine that serves a soft permutation, as `so.config` has it."""
    return type(P._operator).__name__.lower()
