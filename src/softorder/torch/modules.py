"""The relaxations and operations as `nn.Module`s: optionally learnable, in a state_dict."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import softorder
from softorder import _checks, _messages
from softorder._kernels.scores import SortedScores
from softorder._kernels.spec import KernelSpec
from softorder._permutation import SoftPermutation
from softorder.relaxations.base import PermutationRelaxation
from softorder.relaxations.softsort import Metric


class SoftSort(nn.Module, softorder.Relaxation):
    """`softorder.SoftSort` as a module: a relaxation, with an optionally learnable temperature.

    Args:
        tau: The (initial) temperature.
        metric: "abs", "square", a positive power, or a callable d(a, b); an `nn.Module` such as
            `PowerMetric` is registered, so that its parameters learn.
        learnable_tau: Make the temperature a parameter. It is kept as `log_tau`, so that it stays
            positive whatever the optimiser does.

    Example:
        >>> import torch
        >>> import softorder as so
        >>> from softorder.torch import SoftSort
        >>> relax = SoftSort(tau=0.5, learnable_tau=True)
        >>> so.sort(torch.tensor([2.0, 5.0, 4.0]), relax).sum().backward()
        >>> relax.log_tau.grad.shape
        torch.Size([])
    """

    def __init__(
        self, tau: float = 1.0, metric: Metric = "abs", *, learnable_tau: bool = False
    ) -> None:
        super().__init__()
        _checks.check_positive_number(
            tau, "tau", "Pass a number; learnable_tau=True makes it learn."
        )
        softorder.SoftSort(tau, metric)  # checks the metric
        self.log_tau = nn.Parameter(torch.tensor(math.log(tau))) if learnable_tau else None
        self._initial_tau = float(tau)
        self.metric: Any = metric

    @property
    def tau(self) -> float | Tensor:
        """The temperature: a number, or if it learns a positive scalar tensor."""
        return self._initial_tau if self.log_tau is None else self.log_tau.exp()

    def permutation(
        self, scores: Tensor, *, dim: int = -1, mask: Tensor | None = None
    ) -> SoftPermutation:
        """Relax the permutation that sorts the scores; see `softorder.SoftSort`."""
        if self.log_tau is None:
            how = softorder.SoftSort(self._initial_tau, self.metric)
        else:
            how = _Learned(self.log_tau, self.metric)
        return how.permutation(scores, dim=dim, mask=mask)

    def forward(
        self, scores: Tensor, *, dim: int = -1, mask: Tensor | None = None
    ) -> SoftPermutation:
        """The same as `permutation`."""
        return self.permutation(scores, dim=dim, mask=mask)

    def extra_repr(self) -> str:
        """Show the hyper-parameters."""
        metric = "" if isinstance(self.metric, nn.Module) else f", metric={self.metric!r}"
        learns = "" if self.log_tau is None else ", learnable_tau=True"
        tau = self._initial_tau if self.log_tau is None else self.log_tau.exp().item()
        return f"tau={tau:.4g}{metric}{learns}"


@dataclasses.dataclass(frozen=True, eq=False)
class _Learned(PermutationRelaxation):
    """SoftSort of the temperature exp(log_tau), one for each product."""

    log_tau: Tensor
    metric: Any

    def weights(self, scores: SortedScores) -> KernelSpec:
        return softorder.SoftSort(self.log_tau.exp(), self.metric).weights(scores)


class PowerMetric(nn.Module):
    """The semi-metric |a - b|^p with a power that learns, kept positive as `log_p`.

    Args:
        p: The initial power.

    Example:
        >>> from softorder.torch import PowerMetric, SoftSort
        >>> SoftSort(tau=0.5, metric=PowerMetric(1.5))
        SoftSort(
          tau=0.5
          (metric): PowerMetric(p=1.5)
        )
    """

    def __init__(self, p: float = 1.0) -> None:
        super().__init__()
        _checks.check_positive_number(p, "p", "Pass a power p > 0, such as 1.5.")
        self.log_p = nn.Parameter(torch.tensor(math.log(p)))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return |a - b|^p; SoftSort never asks for it at a = b."""
        return (a - b).abs() ** self.log_p.exp().to(a.dtype)

    def extra_repr(self) -> str:
        """Show the power."""
        return f"p={self.log_p.exp().item():.4g}"


class _Operation(nn.Module):
    """An operation with its arguments fixed: what every module below shares.

    A number for `how`, or a `softorder.SoftSort` without a parameter, becomes a `SoftSort` module;
    relaxations that are modules are registered, so that their parameters learn, and so are the
    parameters and modules that any other relaxation holds in its fields, under the names of these.
    """

    def __init__(self, how: Any, learnable_tau: bool, **arguments: Any) -> None:
        super().__init__()
        relaxation = softorder.as_relaxation(how)
        tau = getattr(relaxation, "tau", None)
        if isinstance(relaxation, softorder.SoftSort) and not isinstance(tau, nn.Parameter):
            # As a module, so that what learns in it is registered.
            relaxation = SoftSort(relaxation.tau, relaxation.metric, learnable_tau=learnable_tau)
        elif learnable_tau:
            raise _messages.value_error(
                "learnable_tau=True needs a number, the temperature to begin with",
                f"how = {_messages.describe(how)}",
                "Pass an nn.Module that is a relaxation and has a parameter of its own.",
            )
        self.arguments = arguments
        self.how = relaxation

    @property
    def how(self) -> Any:
        """The relaxation, with whatever stands under the names of its registered fields now.

        These may differ from the tensors that it was made with: `load_state_dict(assign=True)`,
        `torch.func.functional_call` and assignments replace them.
        """
        if "how" in self._modules:
            return self._modules["how"]
        if not self._learning_fields:
            return self._plain_how
        relaxation = copy.copy(self._plain_how)
        for name in self._learning_fields:
            # Frozen, but this one is ours.
            object.__setattr__(relaxation, name, getattr(self, name))
        return relaxation

    @how.setter
    def how(self, relaxation: Any) -> None:
        # torch registers a module by itself, and does not come here.
        self._plain_how = relaxation
        self._learning_fields = _fields_that_learn(relaxation)
        for name in self._learning_fields:
            setattr(self, name, getattr(relaxation, name))

    def extra_repr(self) -> str:
        """Show the arguments, and the relaxation if it is not a module of its own."""
        shown = dict(self.arguments)
        if not isinstance(self.how, nn.Module):
            shown["how"] = self.how
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def _fields_that_learn(relaxation: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass that hold a parameter or a module."""
    if not dataclasses.is_dataclass(relaxation):
        return ()
    names = (field.name for field in dataclasses.fields(relaxation))
    learns = (nn.Parameter, nn.Module)
    return tuple(name for name in names if isinstance(getattr(relaxation, name), learns))


class _Directed(_Operation):
    """An operation along a dimension, in increasing or decreasing order."""

    def __init__(
        self,
        how: Any = 1.0,
        *,
        dim: int = -1,
        descending: bool = False,
        learnable_tau: bool = False,
    ) -> None:
        super().__init__(how, learnable_tau, dim=dim, descending=descending)


class Sort(_Directed):
    """`softorder.sort` as a module.

    Args:
        how: A temperature, or a relaxation.
        dim: The dimension to sort along.
        descending: Largest first.
        learnable_tau: Make the temperature a parameter.
    """

    def forward(self, x: Tensor, *, by: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Sort x, or sort it by other keys."""
        return softorder.sort(x, self.how, by=by, mask=mask, **self.arguments)


class Rank(_Directed):
    """`softorder.rank` as a module.

    Args:
        how: A temperature, or a relaxation.
        dim: The dimension to rank along.
        descending: Give rank 1 to the largest.
        learnable_tau: Make the temperature a parameter.
    """

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Rank x."""
        return softorder.rank(x, self.how, mask=mask, **self.arguments)


class TopK(_Operation):
    """`softorder.topk` as a module; `softorder.topk_mask` with `as_mask=True`.

    Args:
        k: How many items.
        how: A temperature, or a relaxation.
        dim: The dimension to select along.
        largest: False for the smallest.
        as_mask: Give each item's share in the k, instead of the k values.
        learnable_tau: Make the temperature a parameter.
    """

    def __init__(
        self,
        k: int,
        how: Any = 1.0,
        *,
        dim: int = -1,
        largest: bool = True,
        as_mask: bool = False,
        learnable_tau: bool = False,
    ) -> None:
        super().__init__(how, learnable_tau, k=k, dim=dim, largest=largest)
        self.as_mask = as_mask

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Select from x."""
        operation = softorder.topk_mask if self.as_mask else softorder.topk
        return operation(x, how=self.how, mask=mask, **self.arguments)


class Quantile(_Operation):
    """`softorder.quantile` as a module; q = 0.5 is the median.

    Args:
        q: A number in [0, 1], or several.
        how: A temperature, or a relaxation.
        dim: The dimension to reduce.
        keepdim: Keep `dim`, with length 1.
        learnable_tau: Make the temperature a parameter.
    """

    def __init__(
        self,
        q: float | Sequence[float] = 0.5,
        how: Any = 1.0,
        *,
        dim: int = -1,
        keepdim: bool = False,
        learnable_tau: bool = False,
    ) -> None:
        super().__init__(how, learnable_tau, q=q, dim=dim, keepdim=keepdim)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Take the quantiles of x."""
        return softorder.quantile(x, how=self.how, mask=mask, **self.arguments)


class KNN(_Operation):
    """`softorder.knn` as a module: the paper's differentiable nearest neighbours.

    Args:
        k: How many neighbours.
        how: A temperature, or a relaxation.
        num_classes: The number of classes; needed under torch.compile and torch.export.
        learnable_tau: Make the temperature a parameter.

    Example:
        >>> import torch
        >>> from softorder.torch import KNN
        >>> knn = KNN(k=3, how=0.1, num_classes=10)
        >>> query, neighbors = torch.randn(5, 8), torch.randn(20, 8)
        >>> knn(query, neighbors, torch.arange(20) % 10).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        k: int,
        how: Any = 1.0,
        *,
        num_classes: int | None = None,
        learnable_tau: bool = False,
    ) -> None:
        super().__init__(how, learnable_tau, k=k, num_classes=num_classes)

    def forward(
        self,
        query: Tensor,
        neighbors: Tensor,
        labels: Tensor | None = None,
        *,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return weights of the neighbours, or with labels the probabilities of the classes."""
        return softorder.knn(
            query, neighbors, how=self.how, labels=labels, mask=mask, **self.arguments
        )
