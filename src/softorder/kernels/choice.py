"""Which kernel serves: the one that was asked for, or the fastest that can."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from softorder import _checks
from softorder._array import Array
from softorder._config import chosen_kernel
from softorder.kernels import native
from softorder.kernels.dense import RowSoftmax
from softorder.kernels.exponentials import BY_POWER
from softorder.kernels.native import NativeScan
from softorder.kernels.operator import Operator
from softorder.kernels.scan import Scan
from softorder.kernels.scores import SortedScores
from softorder.kernels.tiled import Tiled

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
    if is_scan and native.is_built() and _is_on_cpu(scores):
        return "native"
    n = scores.shape[-1]
    if math.prod(scores.shape) * n <= DENSE_ENTRIES:
        return "dense"
    return "portable" if is_scan else "tiled"


def _is_on_cpu(scores: SortedScores) -> bool:
    return str(scores.device) == "cpu"


def _native(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    if not native.is_built():
        raise RuntimeError(
            _checks.message(
                'kernel="native" needs the compiled extension softorder._native',
                "an installation without it",
                "Reinstall softorder with a C++ compiler and without SOFTORDER_NATIVE=0, or use "
                'kernel="portable".',
            )
        )
    if not _is_on_cpu(dense.scores):
        raise ValueError(
            _checks.message(
                'kernel="native" serves arrays on the CPU',
                f"scores on {dense.scores.device}",
                'Use kernel="portable" there.',
            )
        )
    return _scan(NativeScan, "native", dense, tau, metric)


def _portable(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
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

    def radius(scores: SortedScores) -> float | None:
        largest = _largest(dense, tau)
        if largest is None:
            return None
        # exp of less than this is 0 in the dtype that the rows are computed in.
        info = scores.wiring.xp.finfo(scores.dtype)
        lowest = -math.log(float(info.smallest_normal) * float(info.eps)) + 1
        return (lowest * largest) ** (1 / metric)

    return Tiled(dense, radius)


def _dense(dense: RowSoftmax, tau: Any, metric: Metric) -> Operator:
    return dense


_KERNELS = {"native": _native, "portable": _portable, "tiled": _tiled, "dense": _dense}


def _root(dense: RowSoftmax, tau: Any, power: float) -> Any:
    """Return tau^(1 / power) for arrays (..., n), power 1 or 2."""
    if isinstance(tau, float):
        return tau ** (1 / power)
    scale: Array = tau[..., 0]
    return scale if power == 1 else dense.wiring.xp.sqrt(scale)


def _largest(dense: RowSoftmax, tau: Any) -> float | None:
    """Return the largest temperature; None if it cannot be looked at, or the scores cannot."""
    wiring = dense.wiring
    if not wiring.is_concrete(dense.scores.scores):
        return None
    if isinstance(tau, float):
        return tau
    if not wiring.is_concrete(tau) or math.prod(tau.shape) == 0:
        return None
    return float(wiring.xp.max(wiring.stop_gradient(tau)))
