"""What NumPy lacks: derivatives. One wiring serves plain and recorded arrays, in any mixture."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy

from softorder._array import NUMPY as VALUES
from softorder._array import Wiring, joined_parts, register
from softorder._kernels.scan import cumulative_logsumexp
from softorder.numpy import _rules
from softorder.numpy._native import NativeProducts
from softorder.numpy._tape import Recorded, checkpoint, value_of

# Other functions of NumPy dispatch to a recorded array; this one would convert it.
_linalg = SimpleNamespace(solve=_rules.solve)
_namespace: Any = SimpleNamespace(**{**vars(VALUES.xp), "linalg": _linalg})


def _cumulative_logsumexp(x: Any, axis: int) -> Any:
    if not isinstance(x, Recorded):
        return VALUES.cumulative_logsumexp(x, axis)
    return cumulative_logsumexp(
        RECORDING, lambda values: numpy.maximum.accumulate(values, axis=-1), x, axis
    )


RECORDING: Wiring = dataclasses.replace(
    VALUES,
    xp=_namespace,
    stop_gradient=value_of,
    add_along_axis=_rules.add_along_axis,
    checkpoint=checkpoint,
    native_can_read=lambda *arrays: VALUES.native_can_read(*map(value_of, arrays)),
    logsumexp=_rules.logsumexp,
    normal_cdf=_rules.normal_cdf,
    call_on_cpu=lambda function, x: VALUES.call_on_cpu(function, value_of(x)),
    cumulative_logsumexp=_cumulative_logsumexp,
    by_parts=joined_parts(numpy.concatenate, checkpoint),
    scan=_rules.scan,
    native=NativeProducts(),
    # A recorded array is never changed in place.
    copy=lambda x: x if isinstance(x, Recorded) else VALUES.copy(x),
)
register(Recorded, RECORDING)
