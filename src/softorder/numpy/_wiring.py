"""What NumPy adds to the array API standard: values, and the derivatives that it lacks.

One wiring serves plain and recorded arrays, in any mixture.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import array_api_compat.numpy
import numpy

from softorder import _checks
from softorder._array import Wiring, joined_parts, register
from softorder.numpy import _rules
from softorder.numpy._native import NativeProducts
from softorder.numpy._tape import Recorded, checkpoint, value_of

# Other functions of NumPy dispatch to a recorded array; this one would convert it.
_linalg = SimpleNamespace(solve=_rules.solve)
_namespace: Any = SimpleNamespace(**{**vars(array_api_compat.numpy), "linalg": _linalg})


def _gumbel(shape: tuple[int, ...], like: Any, generator: Any) -> numpy.ndarray:
    _checks.check_generator(generator, numpy.random.Generator, "numpy.random.default_rng(0)")
    source = numpy.random.default_rng() if generator is None else generator
    # NumPy draws again where the logarithm of 0 would be taken.
    return numpy.asarray(source.gumbel(size=shape), dtype=like.dtype)


NUMPY = Wiring(
    name="numpy",
    xp=_namespace,
    is_concrete=lambda x: True,
    stop_gradient=value_of,
    take_along_axis=numpy.take_along_axis,
    add_along_axis=_rules.add_along_axis,
    matmul=numpy.matmul,
    checkpoint=checkpoint,
    # A recorded array is never changed in place.
    copy=lambda x: x if isinstance(x, Recorded) else numpy.copy(x),
    logsumexp=_rules.logsumexp,
    cumulative_sum=numpy.cumsum,
    normal_cdf=_rules.normal_cdf,
    call_on_cpu=lambda function, x: function(value_of(x)),
    gumbel=_gumbel,
    running_maximum=lambda x: numpy.maximum.accumulate(x, axis=-1),
    by_parts=joined_parts(numpy.concatenate, checkpoint),
    scan=_rules.scan,
    native=NativeProducts(),
)
register(Recorded, NUMPY)
