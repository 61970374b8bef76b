"""The products that native/call.hpp computes, for Python and for XLA: one table."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from softorder._array import Array
from softorder._kernels.formulas import FORMULAS, NAMES
from softorder._kernels.operator import Operator
from softorder._kernels.spec import Formula


class Product(enum.IntEnum):
    """The numbers are those of Product in native/call.hpp."""

    APPLY = 0
    APPLY_TRANSPOSED = 1
    LOG_PROB = 2


@dataclass(frozen=True)
class Definition:
    """What a product is, for flat arrays: scores (rows, n) and values.

    Attributes:
        shape: Of the result, given the shapes of scores and values.
        compute: The product in array operations, given the operator and the values.
    """

    shape: Callable[[Sequence[int], Sequence[int]], Sequence[int]]
    compute: Callable[[Operator, Array], Array]


DEFINITIONS = {
    # v (rows, n, f), by item
    Product.APPLY: Definition(lambda scores, v: v, lambda P, v: P.apply(v)),
    # u (rows, n, f), by position
    Product.APPLY_TRANSPOSED: Definition(lambda scores, u: u, lambda P, u: P.apply_transposed(u)),
    # items (rows, n) or (1, n): which item stands at each position
    Product.LOG_PROB: Definition(lambda scores, items: scores[:1], lambda P, i: P.log_prob(i)),
}


@dataclass(frozen=True)
class Call:
    """A product of one formula: everything about a call except its arrays, and hashable.

    Attributes:
        product: Which product.
        formula: What the weights are.
        own_scores: Whether the values of P v are the scores themselves: there is no array v, and
            the result is (rows, n).
        flip: Whether the valid positions of P v are in increasing order of the scores.
    """

    product: Product
    formula: Formula
    own_scores: bool = False
    flip: bool = False

    def result_shape(self, scores: Sequence[int], values: Sequence[int] | None) -> Sequence[int]:
        """Return the shape of the result for scores and values of these shapes."""
        if self.own_scores or values is None:
            return scores
        return DEFINITIONS[self.product].shape(scores, values)

    def saved_size(self, scores: Sequence[int], values: Sequence[int] | None) -> int:
        """Return how many numbers forward can save for backward, which would compute them again."""
        if not self.formula.saves_sums or self.product is Product.APPLY_TRANSPOSED:
            return 0
        features = {Product.LOG_PROB: 0}.get(self.product, values[-1] if values else 1)
        return 2 * math.prod(scores) * (1 + features)

    @property
    def takes_items(self) -> bool:
        """Whether the values are indices of items, and have no gradient."""
        return self.product is Product.LOG_PROB

    @property
    def fields(self) -> tuple[str, str, bool, bool]:
        """The call in plain types, for a compiler that takes no objects: see `of_fields`."""
        return self.product.name, NAMES[self.formula], self.own_scores, self.flip

    @staticmethod
    def of_fields(product: str, formula: str, own_scores: bool, flip: bool) -> Call:
        """Return the call with these fields."""
        return Call(Product[product], FORMULAS[formula], own_scores, flip)

    def arguments(self, threads: int) -> dict[str, Any]:
        """Return the call as both C++ adaptors take it."""
        return {
            "product": int(self.product),
            "formula": self.formula.native,
            "own_scores": self.own_scores,
            "flip": self.flip,
            "threads": threads,
        }
