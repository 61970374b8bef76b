"""Differentiable ranks and sorting using optimal transport (Cuturi et al., NeurIPS 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from softorder import _checks
from softorder._array import Array, arange_like, count_valid, take_along
from softorder._kernels.dense import ExplicitMatrix, GroupedMatrix
from softorder._kernels.doubly_stochastic import Balance
from softorder._kernels.quantile_positions import quantile_places
from softorder._kernels.scan import shift
from softorder._kernels.scores import FINITE, MASKED, SortedScores
from softorder._kernels.spec import Explicit
from softorder.relaxations.base import (
    PermutationRelaxation,
    check_temperature,
    temperature_of_row,
)


@dataclass(frozen=True, eq=False)
class OptimalTransportSort(PermutationRelaxation):
    r"""The doubly stochastic P that carries the scores to evenly spaced targets, with entropy.

    .. math:: P = \mathrm{argmax}_P \sum_{ij} P_{ij} y_i z_j - \epsilon \sum_{ij} P_{ij} \log P_{ij}

    over matrices whose rows and columns sum to 1, which is the transport of least squared distance.
    y are the targets, evenly spaced from 1 for the largest to 0 for the smallest. z are the scores
    less their mean, divided by their standard deviation: P does not change when the scores are
    shifted or scaled, and epsilon has no unit. Where all scores are equal it has no derivative, and
    the gradient is zero. P goes to the exact permutation as epsilon goes to 0; the iterations begin
    at the potentials of the exact sort, so that this holds for any number of them. Each costs
    O(n^2), or O(n m) with m targets. `P.marginal_error()` is what is left.

    Args:
        epsilon: The strength of the entropy: a positive number, or an array with one value per
            batch row, which receives its gradient.
        iterations: How many iterations are done, if `tolerance` is None.
        tolerance: Come so close to the limit that each sum is 1 within this, instead of a fixed
            number of iterations (by Newton's method, O(n m^2) a step). It looks at values, and
            cannot be compiled.
        targets: None for one target per position. A number m: neighbouring positions share m
            targets, and have their group's average in a sort; ranks are as fine as the groups.
            Several quantiles in [0, 1]: the positions that these quantiles need have targets of
            their own, and those between share one: what `softorder.quantile` needs in O(n).

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> how = so.OptimalTransportSort(epsilon=0.1)
        >>> so.sort(np.array([2.0, 5.0, 4.0]), how).round(2)
        array([2.03, 4.08, 4.88])
        >>> median = so.OptimalTransportSort(epsilon=1e-5, targets=[0.5])
        >>> float(so.median(np.arange(101.0), median).round(2))
        50.0
    """

    epsilon: float | Array = 0.1
    iterations: int = 50
    tolerance: float | None = None
    targets: int | Sequence[float] | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without scores."""
        check_temperature(self.epsilon, "epsilon")
        _checks.check_iterations(self.iterations)
        _checks.check_tolerance(self.tolerance)
        _checks.check_targets(self.targets)

    def weights(self, scores: SortedScores) -> Explicit:
        """Return the matrix for sorted scores of shape (..., n)."""
        epsilon = temperature_of_row(self.epsilon, scores, "epsilon")
        transport = _Transport(scores, epsilon, self.targets)

        def log_matrix() -> Array:
            balance, start = transport.balance(), transport.start()
            log_p = balance.solve(start, self.iterations, self.tolerance)
            return scores.wiring.xp.astype(log_p, scores.dtype)

        if self.targets is None:
            return Explicit(lambda scores: ExplicitMatrix(scores, log_matrix))
        return Explicit(lambda scores: GroupedMatrix(scores, transport.group, log_matrix))


class _Transport:
    """The transport of scores to targets, in float64; (..., m) by target, (..., n) by position."""

    def __init__(self, scores: SortedScores, epsilon: Any, targets: Any) -> None:
        self.scores = scores
        self.epsilon = epsilon
        self.group, self.count = _groups(scores, targets)

    def balance(self) -> Balance:
        """Return the problem: logits y_i z_j / epsilon within a block, and the sums of the rows.

        Less the potentials of the exact sort, which make the logits at most 0, and 0 for the exact
        permutation: epsilon divides what is left, and no large numbers cancel.
        """
        scores, xp = self.scores, self.scores.wiring.xp
        z, y = self._standardized(), self._targets()
        own_y = take_along(scores.wiring, y, self.group, axis=-1)
        # Potentials belong to positions, which share their gradient among tied items.
        ties = scores.ties
        potential = self._potentials(z if ties is None else ties.average_gradient(z), own_y)
        own_potential = take_along(scores.wiring, potential, self.group, axis=-1)
        of_items = scores.by_item(own_y * z + own_potential)
        epsilon = self.epsilon if isinstance(self.epsilon, float) else self.epsilon[..., None]
        gain = y[..., :, None] * scores.by_item(z)[..., None, :] + potential[..., :, None]
        logits = (gain - of_items[..., None, :]) / epsilon
        sums = self._sum_of_group(xp.astype(scores.position_block != MASKED, xp.float64))
        # All positions of a group are of one block; a group of none must not pass for a finite one.
        block = self._mean_of_group(xp.astype(scores.position_block, xp.float64))
        block = xp.where(sums == 0, MASKED, block)[..., :, None]
        of_item = xp.astype(scores.block, xp.float64)[..., None, :]
        no_pair = (block != of_item) | (block == MASKED)
        return Balance(scores.wiring, xp.where(no_pair, -math.inf, logits), sums)

    def start(self) -> Array:
        """Return what the iterations begin with, (..., m): the size of each group."""
        xp = self.scores.wiring.xp
        sums = self._sum_of_group(
            xp.ones(self.scores.shape, dtype=xp.float64, device=self.scores.device)
        )
        return xp.log(xp.where(sums == 0, 1.0, sums))

    def _potentials(self, z: Array, y: Array) -> Array:
        """Return the potentials of the exact sort, (..., m): those half-way between neighbours.

        Both are by position, (..., n): standardized scores z, and the targets y of their groups.

        The transport without entropy, which sends each item to the target of its own position,
        allows for potentials whose steps lie between z_{i-1} and z_i times the step of the targets.
        """
        xp, scores = self.scores.wiring.xp, self.scores
        steps = 0.5 * (shift(xp, z) + z) * (shift(xp, y) - y)
        steps = xp.where(scores.spans()[0] == _positions(scores), 0.0, steps)
        return self._mean_of_group(scores.wiring.cumulative_sum(steps, -1))

    def _standardized(self) -> Array:
        """Return the finite scores less their mean, over their standard deviation; 0 elsewhere.

        By position, each with its item's own gradient; none where all scores are equal.
        """
        xp, finite = self.scores.wiring.xp, self.scores.position_block == FINITE
        x = xp.astype(self.scores.sorted_items, xp.float64)
        number = xp.astype(count_valid(xp, finite), xp.float64)
        number = xp.where(number == 0, 1.0, number)
        # Measured from the first score, so that equal scores have a variance of exactly 0.
        first = finite & (_positions(self.scores) == self.scores.spans()[0])
        x = x - self.scores.wiring.stop_gradient(
            xp.sum(xp.where(first, x, 0.0), axis=-1, keepdims=True)
        )
        mean = xp.sum(xp.where(finite, x, 0.0), axis=-1, keepdims=True) / number
        x = xp.where(finite, x - mean, 0.0)
        variance = xp.sum(xp.square(x), axis=-1, keepdims=True) / number
        equal = variance == 0
        return xp.where(equal, 0.0, x / xp.sqrt(xp.where(equal, 1.0, variance)))

    def _targets(self) -> Array:
        """Return the targets: from 1 down to 0 within each block, those of a group averaged."""
        xp = self.scores.wiring.xp
        begin, size = self.scores.spans()
        in_block = xp.astype(_positions(self.scores) - begin, xp.float64)
        last = xp.astype(xp.where(size > 1, size - 1, 1), xp.float64)
        return self._mean_of_group(1.0 - in_block / last)

    def _sum_of_group(self, x: Array) -> Array:
        return self.scores.wiring.add_along_axis(x[..., None], self.group, self.count)[..., 0]

    def _mean_of_group(self, x: Array) -> Array:
        xp = self.scores.wiring.xp
        size = self._sum_of_group(xp.ones_like(x))
        return self._sum_of_group(x) / xp.where(size == 0, 1.0, size)


def _groups(scores: SortedScores, targets: Any) -> tuple[Array, int]:
    """Return the number of each position's group, (..., n), and how many groups there can be."""
    xp, n = scores.wiring.xp, scores.shape[-1]
    position = _positions(scores)
    if targets is None:
        return position, n
    begin, size = scores.spans()
    in_block = position - begin
    begins = in_block == 0
    if isinstance(targets, int):
        number = targets
        new = (in_block * targets) // size != ((in_block - 1) * targets) // size
        begins = begins | ((scores.position_block == FINITE) & new)
    else:
        number = 3 * len(targets)
        valid = n if scores.valid is None else count_valid(xp, scores.valid)
        for q in targets:
            # The two positions next to the quantile, as `softorder.quantile` finds them: each
            # begins a group, and so does the one after.
            low, _ = quantile_places(scores.wiring, [q], valid, scores.order)
            begins = begins | (xp.abs(position - (valid - 1 - low)) <= 1)
    group = scores.wiring.cumulative_sum(xp.astype(begins, xp.int64), -1) - 1
    # One more for each kind of block. There may be more numbers than groups.
    most = number + 4
    return group, most if scores.wiring.sizes_may_vary((n,)) else min(n, most)


def _positions(scores: SortedScores) -> Array:
    xp = scores.wiring.xp
    return xp.broadcast_to(arange_like(xp, scores.shape[-1], scores.order), scores.shape)
