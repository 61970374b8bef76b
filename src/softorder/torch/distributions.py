"""Distributions over permutations as `torch.distributions`: the core's, under torch's protocol."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

import softorder
from softorder._permutation import SoftPermutation


class _Permutation(constraints.Constraint):
    """Each of 0..n-1 once along the last dimension."""

    is_discrete = True
    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Tell which vectors are permutations."""
        items = torch.arange(value.shape[-1], device=value.device)
        return (value.sort(-1).values == items).all(-1)


class PlackettLuce(Distribution):
    """`softorder.PlackettLuce` as a torch.distributions.Distribution; items are the last dimension.

    `sample` gives indices. `rsample` gives a `SoftPermutation`, not a tensor: a soft draw, with the
    gradient of the scores. `torch.distributions.kl_divergence` of two of these is an estimate from
    1000 draws, with an unbiased gradient; `softorder.PlackettLuce.kl_divergence` lets you choose
    how many.

    Args:
        scores: Log-weights, (*batch_shape, n). They may be infinite.
        how: A temperature, or a relaxation that has a permutation.
        mask: True where an item takes part; broadcasts to the scores, which become 0 elsewhere.
        validate_args: Whether to refuse scores that are NaN; see torch.distributions.

    Example:
        >>> import torch
        >>> from softorder.torch import PlackettLuce
        >>> law = PlackettLuce(torch.zeros(8, 5))
        >>> law.batch_shape, law.event_shape
        (torch.Size([8]), torch.Size([5]))
        >>> law.log_prob(law.sample((100,))).shape
        torch.Size([100, 8])
        >>> law.rsample((100,)).shape
        (100, 8, 5, 5)
    """

    arg_constraints: Any = {"scores": constraints.real_vector}  # noqa: RUF012  # pyright: ignore
    support: Any = _Permutation()  # pyright: ignore[reportIncompatibleMethodOverride]
    has_rsample = True

    def __init__(
        self,
        scores: Tensor,
        how: Any = 1.0,
        *,
        mask: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        self._core = softorder.PlackettLuce(scores, how, mask=mask)
        # What a masked slot holds does not matter, so that it must not be refused either.
        self.scores = scores if mask is None else scores.masked_fill(~mask, 0.0)
        super().__init__(scores.shape[:-1], scores.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> PlackettLuce:
        """Return the same law for a larger batch."""
        new: Any = self._get_checked_instance(PlackettLuce, _instance)
        batch_shape = torch.Size(batch_shape)
        new.scores = self.scores.expand(batch_shape + self.event_shape)
        new._core = softorder.PlackettLuce(new.scores, self._core.how, mask=self._core.mask)
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mode(self) -> Tensor:
        """The likeliest permutation, (*batch_shape, n)."""
        return self._core.mode

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draw permutations (*sample_shape, *batch_shape, n): the item at each position."""
        return self._core.sample(sample_shape, generator=generator)

    def rsample(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> SoftPermutation:
        """Draw soft permutations, a batch of matrices (*sample_shape, *batch_shape, n, n)."""
        return self._core.rsample(sample_shape, generator=generator)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the exact log-likelihood of permutations (..., n)."""
        if self._validate_args:
            self._validate_sample(value)
        return self._core.log_prob(value)


@register_kl(PlackettLuce, PlackettLuce)
def _estimate_kl(p: PlackettLuce, q: PlackettLuce) -> Tensor:
    return p._core.kl_divergence(q._core)
