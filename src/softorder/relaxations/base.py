"""What a relaxation is: hyper-parameters, and one or more of three methods."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from softorder import _checks
from softorder._array import (
    Array,
    cast,
    find_wiring,
    move_axis,
    own_copy,
    read,
    wide_dtype,
    wiring_of,
)
from softorder._config import chosen_kernel, config
from softorder._kernels.dispatch import Spec, dispatch
from softorder._kernels.operator import Operator
from softorder._kernels.scores import FINITE, MASKED, SortedScores, hard_sort
from softorder._permutation import Recipe, SoftPermutation

_Own = TypeVar("_Own")


class Relaxation:
    """A way to soften an order. It holds hyper-parameters, and offers at least one of these.

    - `permutation(scores, *, dim, mask)` gives a `SoftPermutation`, and serves every operation;
    - `rank(scores, *, dim, descending, mask)` serves `softorder.rank`;
    - `sort(values, *, dim, descending, mask)` serves `softorder.sort` without `by`.

    An operation calls the last two where they exist, and the first otherwise.
    """

    hint = ""
    """What to use instead, in the error of an operation that the relaxation does not serve."""


class PermutationRelaxation(Relaxation, ABC):
    """A relaxation with a matrix: scores in, `SoftPermutation` out.

    A subclass writes `weights` for clean scores in one layout. Taken care of here are
    dimensions, half precision, the gradients of ties, and that no weight crosses from one block
    to another (finite, +inf, -inf, masked). What is left to a subclass: where it uses the number
    of items, the number of a position, or sums over items, these are those of the block, for the
    slots of other blocks hold 0 (see _kernels/README.md).
    """

    @abstractmethod
    def weights(self, scores: SortedScores) -> Spec:
        """Return what the weights of P are, for sorted scores.

        For rows that are softmaxes, this is `RowSoftmax(logits)`, where `logits(scores, rows)`
        returns (..., k, n): the positions `rows` (all n for None) by the items as they came.
        `scores.at(rows)` has the sorted scores (..., k) and `scores.items` the items (..., n).
        """

    def permutation(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """Relax the permutation that sorts the scores in decreasing order.

        Args:
            scores: Any shape with at least one dimension; a floating dtype.
            dim: The dimension that holds the items.
            mask: True where an item takes part; broadcasts to the shape of the scores.

        Returns:
            A lazy matrix of shape (..., n, n); nothing of that size is computed here. It has copies
            of the scores, the mask and a temperature that is an array: what happens to these later
            does not change it.
        """
        how, scores = snapshot(self), own_copy(read(scores, "scores"))
        mask = own_copy(read(mask, "mask"))
        return how.short_lived_permutation(scores, dim=dim, mask=mask)

    def short_lived_permutation(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """Return the same without copies: for one operation, before its arguments can change."""
        scores = read(scores, "scores")
        ready, dim = prepare(scores, "scores", dim, mask)
        kernel = chosen_kernel()

        def renew() -> Operator:
            with config(kernel=kernel):
                renewed = ready.renewed()
                return dispatch(self.weights(renewed), renewed)

        return SoftPermutation(
            dispatch(self.weights(ready), ready),
            renew,
            dim=dim,
            scores=scores,
            recipe=Recipe(self, mask),
        )

    def __call__(
        self, scores: Array, *, dim: int = -1, mask: Array | None = None
    ) -> SoftPermutation:
        """The same as `permutation`."""
        return self.permutation(scores, dim=dim, mask=mask)


class RankRelaxation(Relaxation, ABC):
    """A relaxation with ranks of its own. A subclass writes `ranks` for clean scores."""

    @abstractmethod
    def ranks(self, scores: SortedScores) -> Array:
        """Return the rank of each position among those of its own block, (..., n), 1 the first.

        Masked positions may hold anything.
        """

    def rank(
        self, scores: Array, *, dim: int = -1, descending: bool = False, mask: Array | None = None
    ) -> Array:
        """Softly rank the scores along a dimension; see `softorder.rank`.

        Args:
            scores: Any shape with at least one dimension; a floating dtype.
            dim: The dimension that holds the items.
            descending: Give rank 1 to the largest instead of the smallest.
            mask: True where an item takes part; the rank of the others is 0.

        Returns:
            The shape and dtype of the scores; float32 for half precision, which cannot count far.
        """
        scores = read(scores, "scores")
        ready, dim = prepare(scores, "scores", dim, mask, negate=not descending)
        xp = ready.wiring.xp
        ranks = self.ranks(ready)
        ranks = ranks + xp.astype(ready.spans()[0], ranks.dtype)
        ranks = ready.by_item(_clean(ready, ranks))
        return move_axis(xp, cast(xp, ranks, wide_dtype(xp, scores.dtype)), -1, dim)


class SortRelaxation(Relaxation, ABC):
    """A relaxation with sorted values of its own. A subclass writes `values` for clean ones."""

    @abstractmethod
    def values(self, scores: SortedScores) -> Array:
        """Return the softly sorted values, largest first, (..., n); those of a block by its own.

        Positions of infinite or masked items may hold anything.
        """

    def sort(
        self, values: Array, *, dim: int = -1, descending: bool = False, mask: Array | None = None
    ) -> Array:
        """Softly sort values along a dimension; see `softorder.sort`.

        Args:
            values: Any shape with at least one dimension; a floating dtype.
            dim: The dimension to sort along.
            descending: Largest first.
            mask: True where an item takes part; zeros follow the valid results.

        Returns:
            The shape and dtype of the values.
        """
        values = read(values, "values")
        ready, dim = prepare(values, "values", dim, mask, negate=not descending)
        xp, exact = ready.wiring.xp, ready.sorted()
        y = xp.where(ready.position_block == FINITE, self.values(ready), exact)
        y = _clean(ready, y if descending else -y)
        return move_axis(xp, cast(xp, y, values.dtype), -1, dim)


def short_lived_permutation(
    relaxation: Any, scores: Array, dim: int, mask: Array | None
) -> SoftPermutation:
    """Return a permutation for one operation; a class may define its own `permutation`."""
    if getattr(type(relaxation), "permutation", None) is PermutationRelaxation.permutation:
        return relaxation.short_lived_permutation(scores, dim=dim, mask=mask)
    return relaxation.permutation(scores, dim=dim, mask=mask)


def snapshot(relaxation: _Own) -> _Own:
    """Return a relaxation whose arrays no one else can change."""
    how: Any = relaxation
    arrays = {}
    for name in getattr(how, "__dataclass_fields__", ()):
        value = getattr(how, name)
        if (copied := own_copy(value)) is not value:
            arrays[name] = copied
    return dataclasses.replace(how, **arrays) if arrays else relaxation


def prepare(
    x: Array, name: str, dim: int, mask: Array | None, *, negate: bool = False
) -> tuple[SortedScores, int]:
    """Check scores and a mask; return them sorted, and `dim` counted from the end."""
    wiring = wiring_of(**{name: x, "mask": mask})
    xp = wiring.xp
    _checks.check_floating(xp, x, name)
    _checks.check_has_dimension(x, name)
    dim = _checks.check_dim(dim, x.ndim)
    if mask is not None:
        _checks.check_mask(xp, mask, x.shape)
        mask = move_axis(xp, xp.broadcast_to(mask, x.shape), dim, -1)
    x = move_axis(xp, x, dim, -1)
    return hard_sort(wiring, -x if negate else x, mask), dim


def _clean(scores: SortedScores, y: Array) -> Array:
    """Return y with 0 at the positions past the valid items; NaN in a batch row that has a NaN."""
    xp = scores.wiring.xp
    with_nan = xp.any(xp.isnan(scores.position_scores), axis=-1, keepdims=True)
    # A product, so that derivatives become NaN too, those of a linear function as well.
    y = y * xp.astype(xp.where(with_nan, math.nan, 1.0), y.dtype)
    if scores.valid is None:
        return y
    empty = xp.astype(xp.where(with_nan, math.nan, 0.0), y.dtype)
    return xp.where(scores.position_block == MASKED, empty, y)


@dataclasses.dataclass(frozen=True, eq=False)
class WithTau:
    """The field of the relaxations that have a temperature and nothing else."""

    tau: float | Array = 1.0

    def __post_init__(self) -> None:
        """Check what can be checked without scores."""
        check_temperature(self.tau)


def check_temperature(tau: Any, name: str = "tau") -> None:
    """Check a temperature that is a number, for `__post_init__`; `temperature` checks an array."""
    if isinstance(tau, _checks.REAL) or find_wiring(tau) is None:
        _checks.check_positive_number(tau, name)


def temperature(tau: Any, scores: SortedScores, name: str = "tau") -> Any:
    """Check tau and return it ready to divide (..., k, n): a number, or an array (..., 1, 1)."""
    dtype = scores.dtype
    if isinstance(tau, _checks.REAL):
        smallest = float(scores.wiring.xp.finfo(dtype).smallest_normal)
        return _checks.check_positive_number(tau, name, smallest=smallest)
    of_scores = {"scores": scores.scores}
    return batch_temperature(tau, name, of_scores, scores.shape[:-1], dtype)


def batch_temperature(
    tau: Array,
    name: str,
    like: dict[str, Array],
    batch: Sequence[int],
    dtype: Any,
) -> Array:
    """Check an array tau, one value per batch row, and return it ready to divide (..., k, n).

    Args:
        tau: The temperatures.
        name: What they are called.
        like: An array of the same framework, by its name.
        batch: The batch shape.
        dtype: What to divide in.
    """
    tau = read(tau, name)
    wiring = wiring_of(**like, **{name: tau})
    xp = wiring.xp
    _checks.check_floating(xp, tau, name)
    _checks.check_temperature_shape(tau.shape, batch, name)
    concrete = wiring.is_concrete(tau)
    tau = xp.astype(tau, dtype)
    if concrete:
        _checks.check_temperature_values(xp, tau, float(xp.finfo(dtype).smallest_normal), name)
    return tau[..., None, None]


def temperature_of_row(tau: Any, scores: SortedScores, name: str = "tau") -> Any:
    """Return tau ready to divide (..., n) in float64: a number, or an array of shape (..., 1)."""
    tau = temperature(tau, scores, name)
    if isinstance(tau, float):
        return tau
    return scores.wiring.xp.astype(tau[..., 0], scores.wiring.xp.float64)
