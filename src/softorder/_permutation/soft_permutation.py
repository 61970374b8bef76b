"""The object in the middle: a soft permutation, a lazy linear operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from softorder import _checks
from softorder._array import (
    Array,
    arange_like,
    cast,
    count_valid,
    device_of,
    move_axis,
    own_copy,
    promote,
    read,
    wide_dtype,
    widen,
    wiring_of,
)
from softorder._kernels.operator import Operator
from softorder._kernels.views import Flipped, Hard, StraightThrough
from softorder._permutation.matrix_like import MatrixLike
from softorder._permutation.row_index import is_single, row_index
from softorder._permutation.transposed import TransposedPermutation

_Step: TypeAlias = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a soft permutation was made of besides its scores: enough to make it again.

    Attributes:
        relaxation: Maps scores to a soft permutation.
        mask: Which items take part, in the shape that it came in; None if all do.
        views: The names of the methods that were called on that: "hard", "flip", ...
    """

    relaxation: Any
    mask: Array | None = None
    views: tuple[str, ...] = ()


class SoftPermutation(MatrixLike):
    r"""A batch of relaxed permutation matrices P of shape (..., n, n), kept as an operator.

    Row i is a distribution over the items that could stand at position i; position 0 is that of
    the largest score. `P @ s` is s softly sorted in decreasing order. The n x n matrix exists
    only when `matrix()` is called. A relaxation makes these: `softorder.SoftSort(tau)(scores)`.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> P = so.SoftSort(tau=1.0)(np.array([2.0, 5.0, 4.0]))
        >>> P.matrix().round(2)
        array([[0.04, 0.71, 0.26],
               [0.09, 0.24, 0.67],
               [0.84, 0.04, 0.11]])
        >>> P.order
        array([1, 2, 0])
        >>> (P @ np.array([2.0, 5.0, 4.0])).round(2)
        array([4.64, 4.06, 2.35])
    """

    def __init__(
        self,
        matrix: Operator,
        renew: Callable[[], Operator],
        *,
        dim: int,
        scores: Array,
        recipe: Recipe,
    ) -> None:
        """Wrap an operator of the kernels; relaxations do this.

        Args:
            matrix: The operator, in the kernels' layout (batch first, items last).
            renew: Gives the same operator, without what the first has computed with a gradient.
            dim: The dimension of the scores that held the items, counted from the end.
            scores: The scores as they came; no one else may change them.
            recipe: How the operator was made of them.
        """
        self._built: Operator | None = matrix
        self._renew: Callable[[], Operator] = renew
        self._is_used = False
        self._has_gradient = matrix.wiring.is_recording()
        self._trace: object = matrix.wiring.trace()
        self._dim = dim
        self._scores = scores
        self._recipe = recipe

    @classmethod
    def from_parts(
        cls, relaxation: Any, scores: Any, mask: Any, dim: int, views: tuple[str, ...]
    ) -> SoftPermutation:
        """Return a permutation that is made when it is first used.

        For pickle, and for frameworks that take objects apart and put them together again: until it
        is used, the arguments may be anything.

        Args:
            relaxation: As in `Recipe`.
            scores: The scores.
            mask: As in `Recipe`.
            dim: The dimension of the scores that holds the items, counted from the end.
            views: As in `Recipe`.
        """
        P = object.__new__(cls)
        P._built, P._trace, P._dim, P._scores = None, None, dim, scores
        P._recipe = Recipe(relaxation, mask, views)
        return P

    def __reduce__(self) -> tuple[Any, ...]:
        recipe = self._recipe
        parts = recipe.relaxation, self._scores, recipe.mask, self._dim, recipe.views
        return SoftPermutation.from_parts, parts

    def __deepcopy__(self, memo: dict[int, Any]) -> SoftPermutation:
        """Return P itself: it never changes. A copy of its scores would lose their gradient."""
        return self

    @property
    def _operator(self) -> Operator:
        """The operator, for what is no product: its shape, its order."""
        if self._built is not None and self._trace is None:
            return self._built
        trace = wiring_of(scores=self._scores).trace()
        # What one traced program computes is unknown to another.
        if self._built is None or self._trace != trace:
            P = self._make()
            operator = P._operator
            self._built, self._renew, self._is_used = operator, P._renew, False
            self._has_gradient = P._has_gradient
            self._trace = trace
            return operator
        return self._built

    def _fresh_operator(self) -> Operator:
        """Return the operator for one product, which can then be differentiated by itself.

        Operators keep what products have in common. A backward pass through one product would free
        that for the others: each has an operator of its own, except for the order. One that was
        made where nothing is recorded has no gradient.
        """
        operator = self._operator
        if operator.wiring.survives_backward():
            return operator
        lacks_gradient = not self._has_gradient and operator.wiring.is_recording()
        if self._is_used or lacks_gradient:
            operator = self._built = self._renew()
            self._has_gradient = self._has_gradient or lacks_gradient
        self._is_used = True
        return operator

    def _make(self) -> SoftPermutation:
        how, recipe = self._recipe.relaxation, self._recipe
        # One that takes a matrix instead of scores has neither dimension nor mask.
        if hasattr(how, "permutation"):
            P = how.permutation(self._scores, dim=self._dim, mask=recipe.mask)
        else:
            P = how(self._scores)
        for view in recipe.views:
            P = getattr(P, view)()
        return P

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the matrix: (..., n, n)."""
        shape = self._operator.shape
        return (*shape, shape[-1])

    @property
    def dtype(self) -> Any:
        """The dtype of the scores, and of what comes out."""
        return self._scores.dtype

    @property
    def order(self) -> Array:
        """The exact argsort, decreasing, along the scores' own `dim`; masked items last."""
        # A copy: the kernels trust the order, and whoever asks for it may write to it.
        return self._along_dim(own_copy(self._operator.order))

    @property
    def sorted(self) -> Array:
        """The exact sort of the scores, decreasing, along their own `dim`; 0 where masked."""
        return self._along_dim(self._cast(self._fresh_operator().sorted()))

    @property
    def T(self) -> TransposedPermutation:
        """The transpose: `P.T @ u` spreads positions over items."""
        return TransposedPermutation(self)

    def apply(self, x: Array, dim: int = -1, *, rows: Any = None) -> Array:
        """Soft-permute x along one of its dimensions; never builds the matrix.

        Apart from `dim`, the dimensions of x begin with the batch dimensions of P (broadcast),
        and those that follow are features, permuted alike. An x with fewer dimensions than the
        batch is shared by all of it.

        Args:
            x: Values; along `dim` one for each item. Masked slots may hold anything.
            dim: The dimension of x to permute.
            rows: Only these positions (an int, a slice, a list, or an integer array whose
                dimensions before the last are the batch's). Default: all.

        Returns:
            x with `dim` replaced by the positions; an int in `rows` drops it.

        Example:
            >>> import numpy as np
            >>> import softorder as so
            >>> P = so.SoftSort(1e-3)(np.array([1.0, 3.0, 2.0]))
            >>> P.apply(np.array([[1.0, 10.0], [3.0, 30.0], [2.0, 20.0]]), dim=0)
            array([[ 3., 30.],
                   [ 2., 20.],
                   [ 1., 10.]])
        """
        index = row_index(self._operator, rows)
        n = self.shape[-1]
        y = self._permute(
            x, dim, n, self._clear_masked, lambda v: self._fresh_operator().apply(v, index)
        )
        if not is_single(rows):
            return y
        return self._operator.wiring.xp.squeeze(y, axis=_checks.check_dim(dim, x.ndim))

    def sort_scores(self, *, flip: bool = False) -> Array:
        """Return the scores themselves, softly sorted along their own `dim`: P s.

        The same as `P.apply(scores, dim)`, in fewer steps. `P.sorted` is the exact sort.

        Args:
            flip: Put the positions in the opposite order, as `P.flip().sort_scores()` does.

        Example:
            >>> import numpy as np
            >>> import softorder as so
            >>> so.SoftSort(0.1)(np.array([2.0, 5.0, 4.0])).sort_scores()
            array([4.9999546 , 4.00004539, 2.        ])
        """
        y = self._fresh_operator().sort_scores(flip=flip)
        if y is None:
            return (self.flip() if flip else self).apply(self._scores, self._dim)
        return self._along_dim(self._cast(y))

    def matrix(self) -> Array:
        """Build the dense matrix, (..., n, n): positions and items are the last two dimensions."""
        return self._cast(self._fresh_operator().rows())

    def log_matrix(self) -> Array:
        """Build log P, (..., n, n), accurate where P underflows; -inf where P is zero."""
        return self._cast(self._fresh_operator().log_rows())

    def rows(self, i: Any) -> Array:
        """Build the rows i alone.

        Args:
            i: An int, a slice, a list of ints, or an integer array whose dimensions before the
                last are the batch's. Negative ones count from the end.

        Returns:
            (..., k, n), or (..., n) for an int.
        """
        block = self._cast(self._fresh_operator().rows(row_index(self._operator, i)))
        return block[..., 0, :] if is_single(i) else block

    def log_prob(self, permutation: Array) -> Array:
        """Return the sum over positions i of log P[i, permutation_i].

        Its negative is the paper's cross-entropy. Rows are distributions of their own, so this is
        not normalised over permutations.

        Args:
            permutation: Which item stands at each position, the largest score first, as in
                `order`: `keys.argsort(descending=True)`, along the scores' own `dim`. One vector
                serves the whole batch. Under a mask the valid items come first; positions past
                their number are skipped. For increasing order: `P.flip().log_prob(...)`.

        Returns:
            The batch shape.
        """
        permutation = read(permutation, "permutation")
        wiring = wiring_of(permutation=permutation, scores=self._scores)
        _checks.check_has_dimension(permutation, "permutation")
        if permutation.ndim > 1:
            dim = _checks.check_dim(self._dim, permutation.ndim)
            permutation = move_axis(wiring.xp, permutation, dim, -1)
        *batch, n = self._operator.shape
        concrete = wiring.is_concrete(permutation)
        _checks.check_permutation(wiring.xp, permutation, n, batch, concrete)
        permutation = wiring.xp.astype(permutation, wiring.xp.int64)
        return self._cast(self._fresh_operator().log_prob(permutation))

    def entropy(self) -> Array:
        """Return the entropy of each row (in nats), along the scores' own `dim`; 0 when hard."""
        return self._along_dim(self._cast(self._fresh_operator().entropy()))

    def marginal_error(self) -> Array:
        """Return how far P is from doubly stochastic: the largest error of a row or column sum.

        Returns:
            The batch shape; 0 for an exact permutation. Rows sum to 1 by construction, so that this
            is the error of the columns, and for `Sinkhorn` and `OptimalTransportSort` what their
            iterations left.

        Example:
            >>> import numpy as np
            >>> import softorder as so
            >>> float(so.SoftSort(1.0)(np.array([2.0, 5.0, 4.0])).marginal_error().round(2))
            0.04
        """
        operator = self._fresh_operator()
        xp, valid = operator.wiring.xp, operator.valid
        ones = xp.ones(operator.shape, dtype=self._wide_dtype, device=device_of(self._scores))
        items = ones if valid is None else xp.where(valid, ones, 0.0)
        positions = self._clear_padding(ones[..., None])
        rows = operator.apply(items[..., None]) - positions
        columns = operator.apply_transposed(positions) - items[..., None]
        none = xp.zeros((*self.shape[:-2], 1, 1), dtype=rows.dtype, device=device_of(self._scores))
        errors = xp.concat([xp.abs(rows), xp.abs(columns), none], axis=-2)
        return self._cast(xp.max(errors, axis=(-2, -1)))

    def hard(self) -> SoftPermutation:
        """Return the exact permutation as a SoftPermutation; stable at ties, masked items last."""
        return self._with(lambda soft: Hard(soft, self._wide_dtype), "hard")

    def straight_through(self) -> SoftPermutation:
        """Return a SoftPermutation with the values of `hard()` and this one's gradient.

        It is the matrix that is replaced: in `P.straight_through() @ v` the scores receive the
        soft gradient, and v that of the exact permutation (which knows no ties).

        Others differ: `hard=True` in the public code of SoftSort and NeuralSort takes the largest
        entry of each row, which among tied scores is one item several times, while this is always a
        permutation. Where results are replaced in place of the matrix, v has a soft gradient too;
        in torch that is `(P.hard() @ v - P @ v).detach() + P @ v`.
        """
        return self._with(
            lambda soft: StraightThrough(Hard(soft, self._wide_dtype), soft), "straight_through"
        )

    def flip(self) -> SoftPermutation:
        """Return the same rows in increasing order of the scores; masked items stay last."""
        return self._with(Flipped, "flip")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype}, dim={self._dim})"

    def _with(self, view: Callable[[Operator], Operator], name: str) -> SoftPermutation:
        """Return a permutation like this one, with a view of its matrix; a method has that name."""
        matrix, recipe, renew = view(self._fresh_operator()), self._recipe, self._renew
        return SoftPermutation(
            matrix,
            lambda: view(renew()),
            dim=self._dim,
            scores=self._scores,
            recipe=replace(recipe, views=(*recipe.views, name)),
        )

    @property
    def _wide_dtype(self) -> Any:
        return wide_dtype(self._operator.wiring.xp, self.dtype)

    def _matmul(self, v: Array) -> Array:
        return self._multiply(v, self._clear_masked, lambda v: self._fresh_operator().apply(v))

    def _multiply(self, v: Array, keep: _Step, product: _Step) -> Array:
        """Apply a product of the kernels under the rules of matmul."""
        v, dtype = self._values(v, "v")
        vector = v.ndim == 1
        if vector:
            v = v[:, None]
        _checks.check_length(v.shape[-2], self.shape[-1], "v (its last dimension but one, if any)")
        _checks.check_batch(v.shape[:-2], self.shape[:-2], "the batch dimensions of v")
        y = cast(self._operator.wiring.xp, product(keep(v)), dtype)
        return y[..., 0] if vector else y

    def _permute(self, x: Array, dim: int, length: int, keep: _Step, product: _Step) -> Array:
        """Apply a product of the kernels along one dimension of x, features as they come."""
        xp = self._operator.wiring.xp
        x, dtype = self._values(x, "x")
        dim = _checks.check_dim(dim, x.ndim)
        batch = self.shape[:-2]
        _checks.check_length(x.shape[dim], length, f"x along dim {dim}")
        # (batch, n, features), features flattened; an x shared by the batch has none.
        v = move_axis(xp, x, dim, min(len(batch), x.ndim - 1))
        features = tuple(v.shape[len(batch) + 1 :])
        lead = tuple(v.shape[: v.ndim - len(features) - 1])
        _checks.check_batch(lead, batch, "the dimensions of x that come first, without dim,")
        if len(features) != 1:
            v = xp.reshape(v, (*lead, length, math.prod(features)))
        y = cast(xp, product(keep(v)), dtype)
        if len(features) != 1:
            y = xp.reshape(y, (*y.shape[:-1], *features))
        return move_axis(xp, y, len(batch), dim)

    def _values(self, x: Array, name: str) -> tuple[Array, Any]:
        """Check and widen an array that P is applied to; return the dtype of the result too."""
        x = read(x, name)
        xp = wiring_of(**{name: x, "scores": self._scores}).xp
        _checks.check_has_dimension(x, name)
        if x.dtype == self.dtype:
            return widen(xp, x), x.dtype
        if xp.isdtype(x.dtype, ("integral", "bool")):
            return xp.astype(x, self._wide_dtype), self.dtype
        _checks.check_floating(xp, x, name)
        return widen(xp, x), promote(xp, self.dtype, x.dtype)

    def _clear_masked(self, v: Array) -> Array:
        """Clear what v holds for masked items, NaN included."""
        valid = self._operator.valid
        return v if valid is None else self._operator.wiring.xp.where(valid[..., None], v, 0.0)

    def _clear_padding(self, u: Array, rows: Array | None = None) -> Array:
        """Clear what u holds for positions past the number of valid items."""
        valid = self._operator.valid
        if valid is None:
            return u
        xp = self._operator.wiring.xp
        place = arange_like(xp, valid.shape[-1], valid) if rows is None else rows
        return xp.where((place < count_valid(xp, valid))[..., None], u, 0.0)

    def _cast(self, y: Array) -> Array:
        """Return y in the dtype of the scores."""
        return cast(self._operator.wiring.xp, y, self.dtype)

    def _along_dim(self, x: Array) -> Array:
        return move_axis(self._operator.wiring.xp, x, -1, self._dim)
