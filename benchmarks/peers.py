"""Other packages that sort or rank differentiably, called as their users call them.

The results are converted to one convention: sorted values, and ranks from 1 for the smallest. Each
package is imported only where it is called, because all of them are optional.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch

PACKAGES = ("torchsort", "diffsort", "difftopk", "POT", "ott-jax", "jax")
"""The packages whose versions a line of results records."""
ITERATIONS = 50
"""The iterations of POT: as many as in softorder. Its own stopping rule depends on the values."""


def missing(module: str) -> str | None:
    """Return why a module cannot run here, or None."""
    return None if importlib.util.find_spec(module) else "not installed"


def torchsort_sort(x: torch.Tensor, strength: float) -> torch.Tensor:
    """Sort by the projection of Blondel et al. (2020), with torchsort."""
    import torchsort

    return torchsort.soft_sort(x, regularization="l2", regularization_strength=strength)


def torchsort_rank(x: torch.Tensor, strength: float) -> torch.Tensor:
    """Rank by the projection of Blondel et al. (2020), with torchsort."""
    import torchsort

    return torchsort.soft_rank(x, regularization="l2", regularization_strength=strength)


@lru_cache(maxsize=1)
def _network(kind: str, n: int) -> Any:
    """Return a sorting network, cached because users build it once and that is slow."""
    import diffsort

    return diffsort.DiffSortNet(kind, n)


def diffsort_sort(x: torch.Tensor, tau: float, kind: str) -> torch.Tensor:
    """Sort ascending by a network of soft comparators."""
    return _diffsort(x, tau, kind)[0]


def diffsort_rank(x: torch.Tensor, tau: float, kind: str) -> torch.Tensor:
    """Rank by the network's matrix, whose rows are the items and columns the positions."""
    return _diffsort(x, tau, kind)[1] @ _positions(x)


def _diffsort(x: torch.Tensor, tau: float, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values and matrix, with comparators of steepness 1 / tau."""
    network = _network(kind, x.shape[-1])
    network.steepness = 1 / tau
    return network(x)


def difftopk_softsort(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Sort descending by the matrix of difftopk's SoftSort, whose rows are the positions."""
    import difftopk

    return (difftopk.SoftSort(tau=tau)(x) @ x.unsqueeze(-1)).squeeze(-1)


def difftopk_softsort_rank(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Rank by that matrix: the mean position of each item; its columns do not sum to 1."""
    import difftopk

    P = difftopk.SoftSort(tau=tau)(x)
    return _positions(x).flip(-1) @ P / P.sum(-2)


def difftopk_neuralsort(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Sort ascending by the matrix of difftopk's NeuralSort, whose columns are the positions."""
    import difftopk

    return (x.unsqueeze(-2) @ difftopk.NeuralSort(tau=tau)(x)).squeeze(-2)


def pot_sort(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Sort ascending by POT's plan, whose columns are the positions."""
    return (x.unsqueeze(-2) @ _pot_plan(x, epsilon)).squeeze(-2) * x.shape[-1]


def pot_rank(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Rank by POT's plan: the mean position of each item."""
    return _pot_plan(x, epsilon) @ _positions(x) * x.shape[-1]


def _pot_plan(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Transport standardized scores to targets from 0 to 1, as OptimalTransportSort does."""
    import ot

    z = (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)
    y = torch.linspace(0, 1, x.shape[-1])
    cost = (z.unsqueeze(-1) - y).square() / 2
    # grad: by default only the cost has a gradient, not the plan.
    result = ot.solve_batch(cost, epsilon, max_iter=ITERATIONS, tol=0.0, grad="autodiff")
    return cast("torch.Tensor", result.plan)  # the type allows None, but this result has a plan


def ott_sort(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Sort ascending by the transport of OTT."""
    return _FromJax.apply(x, epsilon, _ott("sort", None))


def ott_rank(x: torch.Tensor, epsilon: float, targets: int | None = None) -> torch.Tensor:
    """Rank by the transport of OTT, which counts from 0."""
    return _FromJax.apply(x, epsilon, _ott("ranks", targets)) + 1


@dataclass(frozen=True)
class _Compiled:
    """A JAX function: its value, its linearization, and the gradient from that."""

    value: Callable[..., Any]
    linearize: Callable[..., Any]
    pull: Callable[..., Any]


@lru_cache
def _ott(name: str, targets: int | None) -> _Compiled:
    """Compile a function of OTT."""
    import jax
    from ott.initializers.linear.initializers import DefaultInitializer
    from ott.tools import soft_sort

    def compute(x: Any, epsilon: Any) -> Any:
        return getattr(soft_sort, name)(
            x,
            num_targets=targets,
            epsilon=epsilon,
            # The start that `sort` takes by default is a loop that JAX cannot differentiate.
            initializer=DefaultInitializer(),
            # Differentiate through the iterations: the default solves a singular linear system,
            # which fails for the smaller inputs here.
            implicit_diff=None,
        )

    return _Compiled(
        jax.jit(compute),
        jax.jit(lambda x, epsilon: jax.vjp(lambda v: compute(v, epsilon), x)),
        jax.jit(lambda pull, cotangent: pull(cotangent)[0]),
    )


class _FromJax(torch.autograd.Function):
    """Calls compiled JAX functions on torch tensors without copying."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, epsilon: float, compiled: _Compiled) -> torch.Tensor:
        """Compute values, and the linearization only if a gradient is needed."""
        if not ctx.needs_input_grad[0]:
            return torch.from_dlpack(_guarded(compiled.value, _to_jax(x), epsilon))
        y, ctx.residuals = _guarded(compiled.linearize, _to_jax(x), epsilon)
        ctx.compiled = compiled
        return torch.from_dlpack(y)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Compute the gradient."""
        cotangent = _to_jax(cotangents[0].contiguous())
        return torch.from_dlpack(_guarded(ctx.compiled.pull, ctx.residuals, cotangent)), None, None


def _to_jax(x: torch.Tensor) -> Any:
    import jax

    return jax.dlpack.from_dlpack(x.detach())


def _guarded(function: Any, *arguments: Any) -> Any:
    """Call and wait; translate JAX's own out-of-memory error."""
    import jax

    try:
        return jax.block_until_ready(function(*arguments))
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise MemoryError(str(error)) from error


def _positions(x: torch.Tensor) -> torch.Tensor:
    """Return 1, ..., n."""
    return torch.arange(1, x.shape[-1] + 1).to(x.dtype)
