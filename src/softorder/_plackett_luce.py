"""The Plackett-Luce distribution over permutations: exact draws, soft draws, likelihoods."""

from __future__ import annotations

import math
from typing import Any

from softorder import _checks
from softorder._array import (
    Array,
    Wiring,
    any_infinite,
    arange_like,
    cast,
    count_valid,
    move_axis,
    promote,
    read,
    take_along,
    wiring_of,
)
from softorder._kernels.scan import cumulative_logsumexp
from softorder._ops.common import How, as_relaxation, relax
from softorder._permutation import SoftPermutation

# Items of one block all come before those of the next, whatever is drawn.
_PLUS_INFINITY, _FINITE, _MINUS_INFINITY, _MASKED = range(4)


class PlackettLuce:
    r"""Draw items one after the other, each from those left with a chance of exp(score).

    .. math:: p(\pi) = \prod_i \exp(s_{\pi_i}) / \sum_{j \ge i} \exp(s_{\pi_j})

    The same law as sorting the scores in decreasing order after adding Gumbel noise to each, which
    is how draws are made. With it a relaxation becomes stochastic, as in the paper: `rsample`.

    Items of score +inf come first and those of -inf last, each among themselves in any order with
    equal chance. A NaN spoils its own batch row.

    Args:
        scores: Log-weights, any batch shape; a floating dtype.
        how: A temperature, or a relaxation that has a permutation; only `rsample` softens.
        dim: The dimension that holds the items.
        mask: True where an item takes part; the others come last and have no part in any
            likelihood. Broadcasts to the shape of the scores.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> law = so.PlackettLuce(np.log([0.5, 0.3, 0.2]))
        >>> law.sample((2,), generator=np.random.default_rng(0))
        array([[2, 1, 0],
               [0, 1, 2]])
        >>> np.exp(law.log_prob(np.array([0, 1, 2]))).round(3)  # 0.5 * 0.3 / (0.3 + 0.2)
        np.float64(0.3)
        >>> law.mode
        array([0, 1, 2])

    Reference: R. D. Luce, Individual Choice Behavior, 1959; R. L. Plackett, The Analysis of
    Permutations, 1975.
    """

    def __init__(
        self, scores: Array, how: How = 1.0, *, dim: int = -1, mask: Array | None = None
    ) -> None:
        """Hold the arguments; nothing is computed yet."""
        self.scores = scores = read(scores, "scores")
        self.how = as_relaxation(how)
        self.dim = dim
        self.mask = mask
        # Relaxing the scores once checks every argument.
        self._relax(scores)
        self.dim = _checks.check_dim(dim, scores.ndim)

    @property
    def mode(self) -> Array:
        """The likeliest permutation, along `dim`: the exact argsort, decreasing."""
        return self._relax(self.scores).order

    def sample(self, shape: Any = (), *, generator: Any = None, key: Any = None) -> Array:
        """Draw permutations, exactly; they carry no gradient.

        Args:
            shape: How many, as a shape that comes first in the result.
            generator: A torch.Generator for tensors, a numpy.random.Generator for NumPy arrays, a
                tf.random.Generator for TensorFlow. None takes the framework's own, and in NumPy a
                new one.
            key: In JAX, which has no generators, a key of jax.random.

        Returns:
            int64, (*shape, *scores.shape): which item stands at each position along `dim`, masked
            items last.
        """
        drawn = self._draw(_checks.check_sample_shape(shape), self._source(generator, key))
        return move_axis(self._wiring.xp, drawn, -1, self.dim)

    def rsample(
        self, shape: Any = (), *, generator: Any = None, key: Any = None
    ) -> SoftPermutation:
        """Draw soft permutations: scores with Gumbel noise, relaxed by `how`.

        They are differentiable in the scores, and in whatever learns in `how`. The order of
        `hard()` is distributed as `sample`, up to the rounding of the scores' dtype; items of
        equal infinite scores are tied, and there it keeps them as they came.

        Args:
            shape: How many, as a shape that comes first in the batch.
            generator: As in `sample`. The same seed gives the same draws there.
            key: As in `sample`.

        Returns:
            A batch of matrices whose scores have the shape (*shape, *scores.shape).

        Example:
            >>> import numpy as np
            >>> import softorder as so
            >>> law = so.PlackettLuce(np.log([0.5, 0.3, 0.2]), 0.1)
            >>> P = law.rsample((1000,), generator=np.random.default_rng(0))
            >>> P.rows(0).mean(axis=0).round(1)  # who comes first: the weights
            array([0.5, 0.3, 0.2])
        """
        xp = self._wiring.xp
        scores = xp.astype(self._items_last(self.scores), xp.float64)
        source = self._source(generator, key)
        noisy = scores + self._noise(_checks.check_sample_shape(shape), source, scores)
        return self._relax(move_axis(xp, cast(xp, noisy, self.scores.dtype), -1, self.dim))

    def log_prob(self, permutation: Array) -> Array:
        """Return the exact log-likelihood of permutations, in O(n).

        Args:
            permutation: Which item stands at each position, along `dim`, as `sample` gives them;
                further dimensions may come first. One vector serves the whole batch. Under a mask
                the valid items come first, and positions past their number are skipped.

        Returns:
            The shape of the permutations without `dim`, broadcast with the batch; -inf where a
            permutation cannot be drawn.
        """
        wiring = wiring_of(scores=self.scores, permutation=permutation)
        xp = wiring.xp
        _checks.check_has_dimension(permutation, "permutation")
        if permutation.ndim > 1:
            dim = _checks.check_dim(self.dim, permutation.ndim)
            permutation = move_axis(xp, permutation, dim, -1)
        *batch, n = self._items_last(self.scores).shape
        _checks.check_permutation(xp, permutation, n, batch, wiring.is_concrete(permutation))
        log_p = self._log_prob(xp.astype(permutation, xp.int64))
        return cast(xp, log_p, self.scores.dtype)

    def kl_divergence(
        self, other: PlackettLuce, *, samples: int = 1000, generator: Any = None, key: Any = None
    ) -> Array:
        """Estimate KL(self || other), the mean of log p - log q over draws from p = self.

        The estimate is unbiased, and so are its derivatives of any order in the scores of both.

        Args:
            other: Another law over the same items (and the same mask).
            samples: How many permutations to draw.
            generator: As in `sample`.
            key: As in `sample`.

        Returns:
            The batch shape of both, broadcast.

        Example:
            >>> import numpy as np
            >>> import softorder as so
            >>> p, q = so.PlackettLuce(np.array([2.0, 0.0])), so.PlackettLuce(np.zeros(2))
            >>> p.kl_divergence(q, generator=np.random.default_rng(0)).round(2)  # exactly 0.328
            np.float64(0.32)
        """
        _checks.check_comparable(other, PlackettLuce)
        wiring = wiring_of(scores=self.scores, **{"other.scores": other.scores})
        xp = wiring.xp
        *batch, n = self._items_last(self.scores).shape
        *other_batch, other_n = other._items_last(other.scores).shape
        _checks.check_item_counts(n, other_n)
        _checks.check_batch(other_batch, batch, "the batch shape of other")
        # Draws come before the dimensions of both batches.
        missing = max(len(other_batch) - len(batch), 0)
        shape = (_checks.check_sample_count(samples), *[1] * missing)
        drawn = self._draw(shape, self._source(generator, key))
        log_p = self._log_prob(drawn)
        # This factor is 1; its derivatives are those of the likelihood of the draws.
        likelihood = xp.exp(log_p - wiring.stop_gradient(log_p))
        estimate = xp.mean((log_p - other._log_prob(drawn)) * likelihood, axis=0)
        return cast(xp, estimate, promote(xp, self.scores.dtype, other.scores.dtype))

    def __repr__(self) -> str:
        masked = "" if self.mask is None else ", masked"
        return (
            f"{type(self).__name__}(shape={tuple(self.scores.shape)}, dtype={self.scores.dtype}, "
            f"how={self.how!r}, dim={self.dim}{masked})"
        )

    @property
    def _wiring(self) -> Wiring:
        return wiring_of(scores=self.scores)

    def _relax(self, scores: Array) -> SoftPermutation:
        return relax(self.how, scores, self.dim, self.mask)

    def _items_last(self, x: Array) -> Array:
        return move_axis(self._wiring.xp, x, self.dim, -1)

    def _blocks(self) -> tuple[Array, Array]:
        """Return the scores (..., n), 0 where infinite or masked, and the block of each item.

        In float64 whatever the dtype: noise must not be lost beside large scores.
        """
        xp = self._wiring.xp
        scores = xp.astype(self._items_last(self.scores), xp.float64)
        first, last = (xp.astype(scores == end, xp.int8) for end in (math.inf, -math.inf))
        block = _FINITE - first + last
        if self.mask is not None:
            valid = self._items_last(xp.broadcast_to(self.mask, self.scores.shape))
            block = xp.where(valid, block, _MASKED)
        return xp.where(block == _FINITE, scores, 0.0), block

    def _source(self, generator: Any, key: Any) -> Any:
        return _checks.random_source(self._wiring.random_source, generator, key)

    def _noise(self, shape: tuple[int, ...], source: Any, scores: Array) -> Array:
        return self._wiring.gumbel((*shape, *scores.shape), scores, source)

    def _draw(self, shape: tuple[int, ...], source: Any) -> Array:
        """Return permutations (*shape, ..., n), items last."""
        wiring, xp = self._wiring, self._wiring.xp
        scores, block = self._blocks()
        noisy = wiring.stop_gradient(scores) + self._noise(shape, source, scores)
        # Masked items stay as they came.
        noisy = xp.where(block == _MASKED, -math.inf, noisy)
        order = xp.argsort(noisy, axis=-1, descending=True, stable=True)
        if self.mask is None and not any_infinite(wiring, self.scores):
            return order
        placed = take_along(wiring, block, order, axis=-1)
        return take_along(wiring, order, xp.argsort(placed, axis=-1, stable=True), axis=-1)

    def _log_prob(self, permutation: Array) -> Array:
        """Return log-likelihoods (...) in float64, for permutations (..., n), items last."""
        wiring, xp = self._wiring, self._wiring.xp
        scores, block = self._blocks()
        expected, left = _expected_blocks(xp, block)
        x = take_along(wiring, scores, permutation, axis=-1)
        finite = expected == _FINITE
        backwards = xp.flip(xp.where(finite, x, -math.inf), axis=-1)
        rest = xp.flip(cumulative_logsumexp(wiring, backwards), axis=-1)
        log_p = xp.where(finite, x - rest, -xp.log(xp.astype(left, xp.float64)))
        # Adds 0, or NaN where a score is NaN.
        total = xp.sum(log_p + 0.0 * x, axis=-1)
        possible = xp.all(take_along(wiring, block, permutation, axis=-1) == expected, axis=-1)
        return xp.where(possible | xp.isnan(total), total, -math.inf)


def _expected_blocks(xp: Any, block: Array) -> tuple[Array, Array]:
    """Return, by position, the block of the item that stands there, and how many it is drawn from.

    Of a finite item's block the second is of no use, of the masked block it is 1.
    """
    position = arange_like(xp, block.shape[-1], block)
    ends = [count_valid(xp, block <= kind) for kind in (_PLUS_INFINITY, _FINITE, _MINUS_INFINITY)]
    expected = sum(xp.astype(position >= end, xp.int8) for end in ends)
    left = xp.where(expected == _PLUS_INFINITY, ends[0], ends[-1]) - position
    return expected, xp.where(expected == _MASKED, 1, left)
