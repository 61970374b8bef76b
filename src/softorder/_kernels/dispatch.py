"""The one dispatcher: the engine that was asked for, or the fastest that can serve."""

from __future__ import annotations

import functools
import math

from softorder import _messages
from softorder._array import Array, Wiring
from softorder._config import chosen_kernel
from softorder._extension import is_built
from softorder._kernels.dense import Dense
from softorder._kernels.native import Native
from softorder._kernels.operator import Operator, ScoresOperator
from softorder._kernels.portable import Portable
from softorder._kernels.scores import SortedScores
from softorder._kernels.spec import (
    Explicit,
    Formula,
    KernelSpec,
    RowSoftmax,
    SemiMetric,
    Stationary,
)
from softorder._kernels.tiled import Tiled

# Up to this many entries in all matrices together, the dense formula is faster than the portable
# scan and than tiles (measured: benchmarks/README.md).
DENSE_ENTRIES = 1 << 18

Spec = KernelSpec | RowSoftmax | Explicit


def dispatch(spec: Spec, scores: SortedScores) -> Operator:
    """Return the operator with these weights for sorted scores.

    Raises:
        ValueError: If the engine that was asked for cannot serve.
        RuntimeError: If it was not built.
    """
    if isinstance(spec, Explicit):
        return spec.operator(scores)
    name = chosen_kernel()
    if name is None:
        return _build(automatic(spec, scores), spec, scores)
    if not serves(name, spec, scores):
        raise _refusal(name, spec, scores)
    return _build(name, spec, scores)


def dispatch_arrays(spec: KernelSpec | RowSoftmax, scores: SortedScores) -> ScoresOperator:
    """Return the same by the fastest engine that is made of array operations."""
    return _build(_automatic_arrays(spec, scores), spec, scores)


def automatic(spec: KernelSpec | RowSoftmax, scores: SortedScores) -> str:
    """Return the name of the engine that serves these scores best."""
    return "native" if serves("native", spec, scores) else _automatic_arrays(spec, scores)


def _automatic_arrays(spec: KernelSpec | RowSoftmax, scores: SortedScores) -> str:
    sizes_may_vary = scores.wiring.sizes_may_vary(scores.shape)
    if not sizes_may_vary and math.prod(scores.shape) * scores.shape[-1] <= DENSE_ENTRIES:
        return "dense"
    if serves("portable", spec, scores):
        return "portable"
    # Tiles are cut for sizes that are known.
    return "dense" if sizes_may_vary else "tiled"


def serves(name: str, spec: KernelSpec | RowSoftmax, scores: SortedScores) -> bool:
    """Tell whether an engine can serve."""
    if name in ("tiled", "dense"):
        return True
    if not isinstance(spec, KernelSpec):
        return False
    wiring, formula = scores.wiring, spec.formula
    if name == "native":
        return formula.native is not None and may_be_native(wiring, scores.scores)
    exponentials = formula.exponentials
    # Complex terms cancel: in float32 nothing would be left.
    return exponentials is not None and (exponentials.is_real or wiring.has_float64())


def may_be_native(wiring: Wiring, x: Array) -> bool:
    """Tell whether the native kernel was built, and can read arrays such as x."""
    return is_built() and wiring.native is not None and wiring.native.is_on_cpu(x)


def _build(name: str, spec: KernelSpec | RowSoftmax, scores: SortedScores) -> ScoresOperator:
    if name == "native" and isinstance(spec, KernelSpec):
        return Native(spec, scores, functools.partial(dispatch_arrays, spec, scores))
    if name == "portable" and isinstance(spec, KernelSpec):
        return Portable(spec, scores)
    rows = spec.formula.rows(scores, spec.tau) if isinstance(spec, KernelSpec) else spec
    return Tiled(rows, scores) if name == "tiled" else Dense(rows, scores)


def _refusal(
    name: str, spec: KernelSpec | RowSoftmax, scores: SortedScores
) -> ValueError | RuntimeError:
    """Return why an engine cannot serve."""
    formula = spec.formula if isinstance(spec, KernelSpec) else None
    could_serve = formula is not None and formula.native is not None
    if name == "native" and could_serve and not is_built() and scores.wiring.native is not None:
        return RuntimeError(
            _messages.message(
                'kernel="native" needs the compiled extension softorder._native',
                "an installation without it",
                "Reinstall softorder with a C++ compiler and without SOFTORDER_NATIVE=0, or use "
                'another kernel, such as kernel="portable" or kernel="tiled".',
            )
        )
    served, found = 'SoftSort with metric="abs" and metric="square"', _describe(formula)
    fix = 'Use kernel="tiled" or kernel="dense" for it, or leave the choice to softorder.'
    if name == "native":
        served += ", and NeuralSort, for arrays of NumPy, torch and JAX on the CPU"
        found += f" for arrays of {scores.wiring.name} on {scores.device or 'the CPU'}"
        fix = 'Use kernel="tiled", "dense" or "portable", or leave the choice to softorder.'
    elif not scores.wiring.has_float64():
        served += " where there is float64"
        found += " in JAX without 64-bit types"
        fix = f'{fix} jax.config.update("jax_enable_x64", True) brings float64.'
    return _messages.value_error(f'kernel="{name}" serves {served}', found, fix)


def _describe(formula: Formula | None) -> str:
    if isinstance(formula, Stationary):
        return f"metric={formula.power}"
    if isinstance(formula, SemiMetric):
        return f"metric={_messages.describe(formula.metric)}"
    return "another relaxation"
