"""Relaxations and operations whose parameters are leaves, for Equinox, Flax and Optax."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import softorder
from softorder import _checks
from softorder._permutation import SoftPermutation
from softorder.relaxations.softsort import Metric


class SoftSort(softorder.Relaxation):
    """`softorder.SoftSort` with a temperature that learns.

    Its leaf is `log_tau`, so that tau stays positive whatever the optimiser does, and those of the
    metric if it is a pytree.

    Args:
        tau: The temperature to begin with.
        metric: As in `softorder.SoftSort`; `PowerMetric` and Equinox modules learn.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> import softorder as so
        >>> from softorder.jax import SoftSort
        >>> loss = lambda how: so.sort(jnp.array([2.0, 5.0, 4.0]), how)[0]
        >>> round(float(jax.grad(loss)(SoftSort(tau=0.5)).log_tau), 2)
        0.18
    """

    def __init__(self, tau: float = 1.0, metric: Metric = "abs") -> None:
        _checks.check_positive_number(tau, "tau", "Pass the temperature to begin with.")
        softorder.SoftSort(tau, metric)  # checks the metric
        self.log_tau = jnp.asarray(math.log(tau))
        self.metric: Any = metric

    @property
    def tau(self) -> Array:
        """The temperature."""
        return jnp.exp(self.log_tau)

    def permutation(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """Relax the permutation that sorts the scores; see `softorder.SoftSort`."""
        return softorder.SoftSort(self.tau, self.metric).permutation(scores, dim=dim, mask=mask)

    def __call__(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """The same as `permutation`."""
        return self.permutation(scores, dim=dim, mask=mask)

    def __repr__(self) -> str:
        return f"SoftSort(log_tau={self.log_tau}, metric={self.metric!r})"


def _flatten(how: SoftSort) -> tuple[Any, Any]:
    learns = not jax.tree_util.all_leaves([how.metric])
    return (how.log_tau, how.metric if learns else None), None if learns else how.metric


def _unflatten(metric: Any, leaves: Any) -> SoftSort:
    how = object.__new__(SoftSort)
    how.log_tau, learns = leaves
    how.metric = learns if metric is None else metric
    return how


jax.tree_util.register_pytree_node(SoftSort, _flatten, _unflatten)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["log_p"], meta_fields=[])
@dataclass(frozen=True, eq=False)
class PowerMetric:
    """The semi-metric |a - b|^p with a power that learns, kept positive as its leaf `log_p`.

    Args:
        log_p: The logarithm of the power to begin with.

    Example:
        >>> import jax.numpy as jnp
        >>> import softorder as so
        >>> from softorder.jax import PowerMetric, SoftSort
        >>> how = SoftSort(tau=0.5, metric=PowerMetric(jnp.log(1.5)))
        >>> [round(r, 2) for r in so.rank(jnp.array([2.0, 5.0, 4.0]), how).tolist()]
        [1.0, 2.88, 2.12]
    """

    log_p: Any = 0.0

    def __call__(self, a: Array, b: Array) -> Array:
        """Return |a - b|^p; SoftSort never asks for it at a = b."""
        return jnp.abs(a - b) ** jnp.exp(jnp.asarray(self.log_p, a.dtype))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["how"],
    meta_fields=["operation", "arguments"],
)
@dataclass(frozen=True, eq=False)
class Layer:
    """An operation with its arguments fixed: a callable pytree, whose leaves are those of `how`.

    A field of an Equinox module, an element of `equinox.nn.Sequential` or `flax.linen.Sequential`,
    or a function like any other.

    Args:
        operation: One of softorder's: `softorder.sort`, `softorder.topk`, ...
        how: A temperature, or a relaxation. `softorder.jax.SoftSort` has a temperature that learns.
        arguments: The operation's further arguments, by name.

    Example:
        >>> import jax.numpy as jnp
        >>> import softorder as so
        >>> from softorder.jax import Layer
        >>> top2 = Layer(so.topk, 0.1, dict(k=2))
        >>> [round(v, 3) for v in top2(jnp.array([2.0, 5.0, 4.0])).tolist()]
        [5.0, 4.0]
    """

    operation: Callable[..., Array]
    how: Any = 1.0
    arguments: Any = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the arguments something that JAX can compare."""
        object.__setattr__(self, "arguments", tuple(sorted(dict(self.arguments).items())))

    def __call__(self, *arrays: Array, key: Any = None, **arguments: Any) -> Array:
        """Call the operation; `key`, which Equinox gives to every layer, is not used."""
        return self.operation(*arrays, how=self.how, **dict(self.arguments), **arguments)
