"""What the laws examine: arrays, operations, and the comparison of results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import softorder as so

# How close a result must come, relative to the largest element of what is expected: rounding may
# add up over many steps, a wrong formula is farther off.
VALUES, GRADIENTS, LIMIT = 1e-9, 1e-7, 1e-6
ROUNDING = {"float64": VALUES, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
# The defaults of gradcheck would let a derivative pass that is wrong by 1e-3.
GRADCHECK = {"eps": 1e-5, "atol": 1e-7, "rtol": 1e-6}

BATCH = np.random.default_rng(20200713).normal(size=(2, 5, 3))
SCORES = np.array([0.3, 9.0, -0.8, 1.7, -5.0, 0.4])
MASK = np.array([True, False, True, True, False, True])
MASKED_NAN = np.where(MASK, SCORES, [0, np.nan, 0, 0, np.inf, 0])
INFINITE = np.array([0.3, np.inf, -0.8, -np.inf, 1.7, np.inf])
FINITE = np.isfinite(INFINITE)
TIED = np.array([0.5, -1.0, 0.5, 2.0, -1.0, 0.5])
TIED_PAIRS = np.array([0.5, -1.0, 0.5, 2.0, -1.0, 1.25])


def _of_matrix(function: Callable[[so.SoftPermutation], Any]) -> Callable[..., Any]:
    return lambda x, how, **arguments: function(how.permutation(x, **arguments))


# Each operation, and what the last axes of its result count. One without such an axis gives what
# neither the order of the items nor masked ones change.
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "sort": (so.sort, ("position",)),
    "rank": (so.rank, ("item",)),
    "matrix": (_of_matrix(lambda P: P.matrix()), ("position", "item")),
    "topk": (lambda x, how, **kw: so.topk(x, 2, how, **kw), ()),
    "topk_mask": (lambda x, how, **kw: so.topk_mask(x, 2, how, **kw), ("item",)),
    "quantile": (lambda x, how, **kw: so.quantile(x, 0.3, how, **kw), ()),
    "log_prob": (_of_matrix(lambda P: P.log_prob(P.order)), ()),
    "entropy": (_of_matrix(lambda P: P.entropy()), ("position",)),
    "argsort": (so.argsort, ("position",)),
}
MAIN = ("sort", "rank", "matrix")
EVERY = tuple(OPERATIONS)
# An argsort gives the numbers of items, which change where items are moved or left out.
ALL_BUT_ARGSORT = EVERY[:-1]


@dataclass(frozen=True)
class Operation:
    """One operation of the relaxation that is examined: NumPy arrays in, NumPy arrays out."""

    name: str
    how: Any
    torch: Any
    values_in_torch: bool

    tolerance: ClassVar[float] = VALUES

    @property
    def axes(self) -> tuple[str, ...]:
        """What the last axes of a result count."""
        return OPERATIONS[self.name][1]

    def __call__(self, x: np.ndarray, **arguments: Any) -> Any:
        if "mask" in arguments:
            arguments["mask"] = self.array(arguments["mask"])
        return self.values(self.on(self.array(x), **arguments))

    def on(self, x: Any, **arguments: Any) -> Any:
        """Call the operation on an array as it is, of any framework."""
        return OPERATIONS[self.name][0](x, self.how, **arguments)

    def gradient(self, x: np.ndarray, loss: Callable[[Any], Any], **arguments: Any) -> np.ndarray:
        """Return the gradient of the loss of the result."""
        leaf = self.torch.tensor(x, requires_grad=True)
        if "mask" in arguments:
            arguments["mask"] = self.torch.tensor(arguments["mask"])
        return self.torch.autograd.grad(loss(self.on(leaf, **arguments)), leaf)[0].numpy()

    def array(self, x: np.ndarray) -> Any:
        """Return x in the framework in which values are examined."""
        return self.torch.tensor(x) if self.values_in_torch else x

    def values(self, y: Any) -> Any:
        """Return an array of that framework in NumPy."""
        return y.detach().numpy() if self.values_in_torch else y

    def at(self, *, items: Any, positions: Any) -> tuple[Any, ...]:
        """Return the index of these items and positions in a result."""
        places = {"item": np.asarray(items), "position": np.asarray(positions)}
        return (..., *np.ix_(*(places[axis] for axis in self.axes)))


class Gradient(Operation):
    """The gradient of the squares of a result; it belongs to items, whatever the result."""

    tolerance: ClassVar[float] = GRADIENTS

    @property
    def axes(self) -> tuple[str, ...]:
        return ("item",)

    def __call__(self, x: np.ndarray, **arguments: Any) -> Any:
        return self.gradient(x, lambda y: y.square().sum(), **arguments)


class MismatchError(Exception):
    """What a law expected, and what it got."""


def require(holds: Any, expected: str, got: object) -> None:
    if not holds:
        raise MismatchError(expected, got)


def close(got: Any, expected: Any, tolerance: float = VALUES, what: str = "") -> None:
    """Require equality up to rounding; exactly for zeros, infinities and NaN."""
    got, expected = np.asarray(got), np.asarray(expected)
    require(got.shape == expected.shape, f"the shape {expected.shape}{what}", got.shape)
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    wrong = ~np.isclose(got, expected, rtol=0, atol=tolerance * scale, equal_nan=True)
    for place in np.argwhere(wrong)[:1].tolist():
        here = tuple(place)
        require(False, f"{expected[here]:.9g} at {place}{what}", f"{got[here]:.9g}")


def uneven(y: Any) -> Any:
    """Return a loss in which each entry of a tensor has another weight."""
    return (y.flatten() * y.new_tensor(np.cos(np.arange(y.numel())))).sum()


def offers(relaxation: Any, operation: str) -> bool:
    """Tell whether a relaxation offers an operation."""
    own = operation in ("sort", "rank") and hasattr(relaxation, operation)
    return own or hasattr(relaxation, "permutation")
