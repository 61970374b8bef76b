"""Which kernel serves: the one that was asked for, or the fastest that can."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softorder import _checks
from softorder._array import Array, take_along
from softorder._config import chosen_kernel
from softorder._kernels import native
from softorder._kernels.dense import RowSoftmax, bounded_power
from softorder._kernels.native import NativeScan
from softorder._kernels.native_rows import Formula, NativeRows
from softorder._kernels.operator import Operator
from softorder._kernels.profiles import BY_POWER
from softorder._kernels.scan import Scan
from softorder._kernels.scores import SortedScores
from softorder._kernels.tiled import Closeness, Tiled

Metric = float | Callable[[Any, Any], Any]

# Up to so many entries of all matrices together the dense formula is faster than the portable
# scan or than tiles (measured: benchmarks/README.md).
DENSE_ENTRIES = 1 << 18


def choose(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    """Return the operator of exp(-d / tau) for sorted scores.

    Args:
        dense: The reference, which the others stand for.
        tau: A number, or an array of shape (..., 1, 1).
        metric: A power p for |a - b|^p, or a callable.
    """
    name = chosen_kernel() or automatic(dense.scores, metric)
    return _KERNELS[name](dense, tau, metric)


def automatic(scores: SortedScores, metric: Metric) -> str:
    """Return the name of the kernel that serves these scores best."""
    is_scan = not callable(metric) and metric in BY_POWER
    if is_scan and native.serves(scores.wiring) and _is_on_cpu(scores):
        return "native"
    can_scan = is_scan and _keeps_accuracy(scores, metric)
    if scores.wiring.is_open(scores.shape):
        return "portable" if can_scan else "dense"
    if _is_small(scores):
        return "dense"
    return "portable" if can_scan else "tiled"


def _keeps_accuracy(scores: SortedScores, power: Any) -> bool:
    """Tell whether the portable scan does: complex terms cancel, and need float64."""
    return BY_POWER[power].is_real or scores.wiring.has_float64()


def choose_rows(
    formula: Formula, scores: SortedScores, tau: Any, native_prefix: str | None = None
) -> Operator:
    """Return the operator of rows that are softmaxes.

    Args:
        formula: What the rows are.
        scores: The sorted scores.
        tau: As in `Formula`.
        native_prefix: What its products in `native.PRODUCTS` begin with; None if it has none.
    """
    name = chosen_kernel() or _automatic_rows(scores, native_prefix)
    if name == "portable" or (name == "native" and native_prefix is None):
        raise ValueError(
            _checks.message(
                f'kernel="{name}" serves {_SERVED[name]}',
                "another relaxation",
                'Use kernel="tiled" or kernel="dense" for it, or leave the choice to softorder.',
            )
        )
    if name == "native":
        _check_native(scores, instead="tiled")
        return NativeRows(scores, tau, str(native_prefix), formula, _dense_or_tiled)
    return _ROW_KERNELS[name](*formula(scores, tau))


_SERVED = {
    "native": 'SoftSort with metric="abs" and metric="square", and NeuralSort',
    "portable": 'SoftSort with metric="abs" and metric="square"',
}
_ROW_KERNELS = {"tiled": Tiled, "dense": lambda dense, closeness: dense}


def _automatic_rows(scores: SortedScores, native_prefix: str | None) -> str:
    if native_prefix is not None and native.serves(scores.wiring) and _is_on_cpu(scores):
        return "native"
    return "dense" if _is_small(scores) else "tiled"


def _dense_or_tiled(dense: RowSoftmax, closeness: Closeness) -> Operator:
    return _ROW_KERNELS[_automatic_rows(dense.scores, None)](dense, closeness)


def _is_small(scores: SortedScores) -> bool:
    # Tiles are cut for sizes that are known.
    if scores.wiring.is_open(scores.shape):
        return True
    return math.prod(scores.shape) * scores.shape[-1] <= DENSE_ENTRIES


def _is_on_cpu(scores: SortedScores) -> bool:
    return scores.wiring.is_on_cpu(scores.scores)


def _check_native(scores: SortedScores, instead: str) -> None:
    if not native.is_built():
        raise RuntimeError(
            _checks.message(
                'kernel="native" needs the compiled extension softorder._native',
                "an installation without it",
                "Reinstall softorder with a C++ compiler and without SOFTORDER_NATIVE=0, or use "
                f'kernel="{instead}".',
            )
        )
    if not native.serves(scores.wiring):
        raise ValueError(
            _checks.message(
                'kernel="native" serves arrays of NumPy, torch and JAX',
                f"arrays of {scores.wiring.name}",
                f'Use kernel="{instead}" for them.',
            )
        )
    if not _is_on_cpu(scores):
        raise ValueError(
            _checks.message(
                'kernel="native" serves arrays on the CPU',
                f"scores on {scores.device}",
                f'Use kernel="{instead}" there.',
            )
        )


def _native(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    _check_native(dense.scores, instead="portable")
    return _scan(NativeScan, "native", dense, tau, metric)


def _portable(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    if metric in BY_POWER and not _keeps_accuracy(dense.scores, metric):
        raise ValueError(
            _checks.message(
                'kernel="portable" serves metric="square" where there is float64',
                "JAX without 64-bit types",
                'Call jax.config.update("jax_enable_x64", True), or use kernel="tiled".',
            )
        )
    return _scan(Scan, "portable", dense, tau, metric)


def _scan(kind: type[Scan], name: str, dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    if callable(metric) or metric not in BY_POWER:
        raise ValueError(
            _checks.message(
                f'kernel="{name}" serves metric="abs" and metric="square"',
                f"metric={_checks.describe(metric)}",
                'Use kernel="tiled" or kernel="dense" for other metrics.',
            )
        )
    kernel = BY_POWER[metric]
    return kind(dense.scores, _root(dense, tau, kernel.power), kernel, dense)


def _tiled(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    if callable(metric):
        return Tiled(dense)
    wiring, scores = dense.wiring, dense.scores
    row = tau if isinstance(tau, float) else tau[..., 0]

    def closeness(place: Array) -> Array:
        x = scores.positions
        step = x - take_along(wiring, x, place, axis=-1)
        return -bounded_power(wiring.xp, step, metric) / row

    return Tiled(dense, closeness)


def _dense(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    return dense


_KERNELS = {"native": _native, "portable": _portable, "tiled": _tiled, "dense": _dense}


def _root(dense: RowSoftmax, tau: Any, power: float) -> Any:
    """Return tau^(1 / power) for arrays (..., n), power 1 or 2."""
    if isinstance(tau, float):
        return tau ** (1 / power)
    scale: Array = tau[..., 0]
    return scale if power == 1 else dense.wiring.xp.sqrt(scale)
