"""What JAX adds to the array API standard: tracing, transformations, keys. No mathematics."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
from jax import Array
from jax.core import Tracer

from softorder import _checks
from softorder._array import Wiring, move_axis
from softorder._extension import extension
from softorder._kernels.on_cpu import FUNCTIONS
from softorder._kernels.scan import shift
from softorder.jax import _native, _pytrees
from softorder.jax._namespace import has_float64, xp
from softorder.jax._primitives import NativeProducts

try:
    from jax.extend.core import get_opaque_trace_state
except ImportError:  # before JAX 0.10
    from jax.core import get_opaque_trace_state  # pyright: ignore[reportAttributeAccessIssue]

_pytrees.register()


with jax.ensure_compile_time_eval():
    _EAGER = get_opaque_trace_state(convention="nnx")


def _trace() -> object:
    trace = get_opaque_trace_state(convention="nnx")
    return None if trace == _EAGER else trace


def _is_concrete(x: Array) -> bool:
    """Tell whether x has values, and what is computed of them now has too.

    While jit traces, an operation on constants becomes a part of the program.
    """
    if isinstance(x, Tracer) or not NativeProducts.is_on_cpu(x):
        return False
    return _trace() is None or not isinstance(jax.lax.neg(numpy.float32(0)), Tracer)


def _take_along_axis(x: Array, index: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, index, axis, mode="promise_in_bounds")


def _add_along_axis(x: Array, index: Array, n: int) -> Array:
    batch = numpy.broadcast_shapes(x.shape[:-2], index.shape[:-1])
    rows = math.prod(batch)
    features = x.shape[-1]
    x = jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(rows, x.shape[-2], features)
    index = jnp.broadcast_to(index, (*batch, index.shape[-1])).reshape(rows, index.shape[-1])
    place = (jnp.arange(rows)[:, None], index)
    total = jnp.zeros((rows, n, features), x.dtype).at[place].add(x, mode="promise_in_bounds")
    return total.reshape(*batch, n, features)


def _fold(step: Callable[[Array, Any], Array], state: Array, xs: Any) -> Array:
    xs = jnp.arange(len(xs)) if isinstance(xs, range) else xs
    return jax.lax.scan(lambda state, x: (step(state, x), None), state, xs)[0]


def _cond(predicate: Array, usual: Callable[[], Array], careful: Callable[[], Array]) -> Array:
    if _is_concrete(predicate):
        return usual() if bool(predicate) else careful()
    return jax.lax.cond(predicate, usual, careful)


def _by_parts(function: Callable[[Array], Array], rows: Array, height: int, axis: int) -> Array:
    """Return function(rows) part by part, in a loop that is compiled once."""
    n = rows.shape[0]
    parts = -(-n // height)
    # All parts are as long as the first: the last row fills the last one.
    padded = jnp.concat([rows, jnp.broadcast_to(rows[-1:], (parts * height - n,))])
    whole = jax.lax.map(jax.checkpoint(function), padded.reshape(parts, height))
    axis = axis % (whole.ndim - 1)
    whole = move_axis(jnp, whole, 0, axis)
    whole = whole.reshape(*whole.shape[:axis], parts * height, *whole.shape[axis + 2 :])
    return jax.lax.slice_in_dim(whole, 0, n, axis=axis)


def _recurrence(gate: Array, v: Array) -> Array:
    """Return F with F_i = v_i + gate_i F_{i-1}; quicker to compile and to run than chunks."""
    if v.shape[-1] == 0:
        return v

    def join(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[1] + right[0] * left[1]

    gates = jnp.broadcast_to(gate[..., None, :], v.shape)
    return jax.lax.associative_scan(join, (gates, v), axis=v.ndim - 1)[1]


@jax.custom_jvp
def _scan(gate: Array, v: Array) -> Array:
    return _recurrence(gate, v)


@_scan.defjvp
def _differentiate_scan(primals: Any, tangents: Any) -> tuple[Array, Array]:
    """The same recurrence, of which JAX can take the transpose."""
    gate, v = primals
    to_gate, to_v = tangents
    f = _scan(gate, v)
    entering = to_v + to_gate[..., None, :] * shift(jnp, f)
    return f, _recurrence(gate, entering)


def _host(function: Callable[[numpy.ndarray], numpy.ndarray], x: Array) -> Array:
    """Call a function of `_kernels.on_cpu`: in C++ on the CPU if it has it, else through Python."""
    x = jax.lax.stop_gradient(x)
    name = function.__name__
    shape = jax.ShapeDtypeStruct((*x.shape[:-2], x.shape[-1]), xp.int64)

    def by_callback(x: Array) -> Array:
        return jax.pure_callback(
            functools.partial(_call_host, name), shape, x, vmap_method="broadcast_all"
        )

    if extension is None or not hasattr(extension, name):
        return by_callback(x)
    in_c = functools.partial(_native.pool, name)
    return jax.lax.platform_dependent(x, cpu=in_c, default=by_callback)


def _call_host(name: str, x: Any) -> numpy.ndarray:
    index = FUNCTIONS[name](numpy.asarray(x, dtype=numpy.float64))
    return index if has_float64() else index.astype(numpy.int32)


def _gumbel(shape: Sequence[int], like: Array, key: Any) -> Array:
    _checks.check_key(key, isinstance(key, Array))
    return jax.random.gumbel(key, tuple(shape), like.dtype)


JAX = Wiring(
    name="jax",
    xp=xp,
    is_concrete=_is_concrete,
    stop_gradient=jax.lax.stop_gradient,
    take_along_axis=_take_along_axis,
    add_along_axis=_add_along_axis,
    matmul=functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST),
    checkpoint=lambda function, *arrays: jax.checkpoint(function)(*arrays),
    logsumexp=jax.scipy.special.logsumexp,
    cumulative_sum=jnp.cumsum,
    normal_cdf=lambda x: 0.5 * jax.scipy.special.erfc(-math.sqrt(0.5) * x),
    call_on_cpu=_host,
    gumbel=_gumbel,
    running_maximum=lambda x: jax.lax.cummax(x, x.ndim - 1),
    by_parts=_by_parts,
    fold=_fold,
    cond=_cond,
    trace=_trace,
    new_shapes_are_cheap=False,
    has_float64=has_float64,
    random_source="key",
    scan=_scan,
    native=NativeProducts(),
)
