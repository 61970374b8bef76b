"""What is measured: the implementations, and the references they must agree with."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import torch

import softorder as so
from benchmarks.cases import BACKWARD, FORWARD, Shape

Values: TypeAlias = Callable[[torch.Tensor, float], torch.Tensor]
"""Soft-sorted values of x (batch, n) at a temperature."""
Rows: TypeAlias = Callable[[torch.Tensor, float, torch.Tensor], torch.Tensor]
"""The same at some positions only: (batch, positions)."""

VERIFIED_SHAPES: tuple[Shape, ...] = ((20, 5), (3, 257), (2, 1030))
LONG_SHAPE: Shape = (1, 10**5)
"""Long enough for a kernel to cut one row into segments for its threads."""


def _always() -> str | None:
    """Return no reason to be missing."""
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to sort softly.

    Attributes:
        name: What tables, figures and `--only` call it.
        values: Soft-sorted values of x at a temperature; differentiable.
        reference: Some positions of it in plain operations, run in float64 to check `values`.
        tau: The temperature that is timed.
        verified_at: The temperatures at which it is checked.
        verified_shapes: The shapes at which it is checked.
        up_to: The largest n that is timed, by pass. Empty: only timed in comparisons.
        kernel: The softorder kernel to ask for; None leaves softorder's own choice.
        missing: Why it cannot run here, or None where it can.
        value_tolerance: Largest difference in values, relative to the largest value.
        gradient_tolerance: The same for gradients.
    """

    name: str
    values: Values
    reference: Rows
    tau: float
    verified_at: tuple[float, ...]
    up_to: Mapping[str, int]
    verified_shapes: tuple[Shape, ...] = VERIFIED_SHAPES
    kernel: str | None = None
    missing: Callable[[], str | None] = field(default=_always)
    value_tolerance: float = 1e-6
    gradient_tolerance: float = 1e-5

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Hold the kernel that this implementation asks for."""
        if self.kernel is None:
            yield
        else:
            with so.config(kernel=self.kernel):
                yield


def dense(
    x: torch.Tensor, tau: float, distance: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Sort softly by the paper's three lines, which build the n x n matrix."""
    ordered = torch.sort(x, dim=-1, descending=True).values
    P = torch.softmax(-distance(ordered.unsqueeze(-1) - x.unsqueeze(-2)) / tau, dim=-1)
    return (P @ x.unsqueeze(-1)).squeeze(-1)


def dense_rows(x: torch.Tensor, tau: float, rows: torch.Tensor, power: float) -> torch.Tensor:
    """Compute some rows of the dense formula with distance |a - b|^power."""
    ordered = torch.sort(x, dim=-1, descending=True).values[..., rows]
    distance = (ordered.unsqueeze(-1) - x.unsqueeze(-2)).abs() ** power
    return (torch.softmax(-distance / tau, dim=-1) @ x.unsqueeze(-1)).squeeze(-1)


def soft(x: torch.Tensor, tau: float, metric: str | float) -> torch.Tensor:
    """Sort softly with softorder, as its users write it."""
    return so.sort(x, so.SoftSort(tau, metric=metric), descending=True)


def hard(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Sort with torch.sort; there is no temperature."""
    return torch.sort(x, dim=-1).values


def hard_by_counting(x: torch.Tensor, tau: float, rows: torch.Tensor) -> torch.Tensor:
    """Sort by counting, for each item, the items before it: a permutation matrix times x."""
    row, column = x.unsqueeze(-1), x.unsqueeze(-2)
    n = x.shape[-1]
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    place = ((column < row) | ((column == row) & earlier)).sum(-1)
    P = (place.unsqueeze(-2) == rows.unsqueeze(-1)).to(x.dtype)
    return (P @ row).squeeze(-1)


def projection(x: torch.Tensor, strength: float) -> torch.Tensor:
    """Sort with torchsort: the projection of Blondel et al. (2020), another operator than ours."""
    import torchsort

    return torchsort.soft_sort(x, regularization="l2", regularization_strength=strength)


def projection_by_averages(x: torch.Tensor, strength: float, rows: torch.Tensor) -> torch.Tensor:
    """Compute what torchsort does from all O(n^2) averages of the isotonic regression.

    The decreasing v nearest to y is v_i = min over j <= i of max over k >= i of mean(y_j..y_k).
    """
    n = x.shape[-1]
    target = torch.arange(n, 0, -1, dtype=x.dtype) / strength
    y = target + torch.sort(x, dim=-1).values
    total = torch.nn.functional.pad(y.cumsum(-1), (1, 0))
    index = torch.arange(n)
    length = index - index.unsqueeze(-1) + 1
    average = (total[..., None, 1:] - total[..., :-1, None]) / length.clamp(min=1)
    highest = average.masked_fill(length < 1, -torch.inf).flip(-1).cummax(-1).values.flip(-1)
    return (highest.masked_fill(length < 1, torch.inf).amin(-2) - target)[..., rows]


def _kernel_missing(kernel: str) -> str | None:
    """Return why softorder cannot be held to a kernel here, or None."""
    if not hasattr(so, "config"):
        return "softorder.config does not exist"
    try:
        with so.config(kernel=kernel):
            so.sort(torch.rand(8), 0.1)
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return str(error)
    return None


def _torchsort_missing() -> str | None:
    """Return why torchsort cannot run here, or None."""
    return None if importlib.util.find_spec("torchsort") else "not installed"


def _for_metric(metric: str, tau: float, power: float) -> list[Implementation]:
    """Return the dense formula and softorder's ways to compute it."""
    common = {
        "reference": partial(dense_rows, power=power),
        "tau": tau,
        "verified_at": (1e-3, tau, 10.0),
    }
    distance = {"abs": torch.abs, "square": torch.square}[metric]
    fast = {
        "values": partial(soft, metric=metric),
        "verified_shapes": (*VERIFIED_SHAPES, LONG_SHAPE),
    }
    return [
        Implementation(
            f"dense {metric}",
            partial(dense, distance=distance),
            up_to={FORWARD: 10**4, BACKWARD: 10**4},
            # The baseline's own float32 sums: they lose up to 1e-5 in values, 3e-5 in gradients.
            value_tolerance=1e-4,
            gradient_tolerance=1e-4,
            **common,
        ),
        Implementation(
            f"softorder {metric}",
            up_to={FORWARD: 10**8 if metric == "abs" else 10**7, BACKWARD: 10**7},
            **fast,
            **common,
        ),
        Implementation(
            f"native {metric}",
            up_to={},
            kernel="native",
            missing=partial(_kernel_missing, "native"),
            **fast,
            **common,
        ),
        Implementation(
            f"portable {metric}",
            up_to={FORWARD: 10**6, BACKWARD: 10**6},
            kernel="portable",
            missing=partial(_kernel_missing, "portable"),
            **fast,
            **common,
        ),
    ]


# The temperatures of the paper's speed experiment: 0.1 for |.|, 0.03 for the square.
_ALL = (
    *_for_metric("abs", tau=0.1, power=1.0),
    *_for_metric("square", tau=0.03, power=2.0),
    Implementation(
        "softorder power 1.5",
        partial(soft, metric=1.5),
        reference=partial(dense_rows, power=1.5),
        tau=0.05,
        verified_at=(1e-3, 0.05, 10.0),
        up_to={FORWARD: 10**4, BACKWARD: 10**4},
        # Its rows are those of the dense formula, softmax in float32.
        value_tolerance=1e-4,
        gradient_tolerance=1e-4,
    ),
    Implementation(
        "torch.sort",
        hard,
        reference=hard_by_counting,
        tau=0.0,
        verified_at=(0.0,),
        up_to={FORWARD: 10**7, BACKWARD: 10**7},
    ),
    Implementation(
        "torchsort",
        projection,
        reference=projection_by_averages,
        # Its default. On inputs in [0, 1) nothing is pooled there, which is its fastest case.
        tau=1.0,
        verified_at=(1.0, 123.4, 1234.5, 54321.0),
        up_to={FORWARD: 10**6, BACKWARD: 10**6},
        missing=_torchsort_missing,
        # Its values are differences of float32 numbers up to n / strength, 1030 in the check.
        value_tolerance=1e-4,
    ),
)
IMPLEMENTATIONS: Mapping[str, Implementation] = {each.name: each for each in _ALL}
