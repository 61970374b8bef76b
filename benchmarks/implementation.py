"""What one implementation is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

import softorder as so
from benchmarks.cases import Shape

Operation: TypeAlias = Callable[[torch.Tensor, float], torch.Tensor]
"""Soft-sorted values, or soft ranks, of x (batch, n) at a temperature."""
ReferenceRows: TypeAlias = Callable[[torch.Tensor, float, torch.Tensor], torch.Tensor]
"""The same at some places only, positions or items: (batch, places)."""

VERIFIED_SHAPES: tuple[Shape, ...] = ((20, 5), (3, 257), (2, 1030))
SMALL_SHAPES: tuple[Shape, ...] = VERIFIED_SHAPES[:2]
"""For references that are slow or need much memory."""
LONG_SHAPE: Shape = (1, 10**5)
"""Long enough for a kernel to cut one row into segments for its threads."""


def _always() -> str | None:
    """Return no reason to be missing."""
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to sort or to rank softly.

    Attributes:
        name: What tables, figures and `--only` call it.
        family: The operator that it computes or is compared with; `--only` knows it too.
        compute: The sorted values or the ranks of x at a temperature; differentiable.
        reference: Some places of it in plain operations, run in float64 to check `compute`.
        tau: The temperature that is timed.
        verified_at: The temperatures at which it is checked.
        verified_shapes: The shapes at which it is checked.
        up_to: The largest n that is timed, by pass. Empty: only timed in comparisons.
        smallest: The smallest n that is timed.
        baseline: The name of the implementation whose time the table divides by its own.
        kernel: The softorder kernel to ask for; None leaves softorder's own choice.
        missing: Why it cannot run here, or None where it can.
        value_tolerance: Largest difference in results, relative to the largest.
        gradient_tolerance: The same for gradients.
    """

    name: str
    family: str
    compute: Operation
    reference: ReferenceRows
    tau: float
    verified_at: tuple[float, ...]
    up_to: Mapping[str, int]
    verified_shapes: tuple[Shape, ...] = VERIFIED_SHAPES
    smallest: int = 0
    baseline: str | None = None
    kernel: str | None = None
    missing: Callable[[], str | None] = field(default=_always)
    value_tolerance: float = 1e-6
    gradient_tolerance: float = 1e-5

    def is_timed(self, shape: Shape, direction: str) -> bool:
        """Tell whether a run times this shape in this direction."""
        return self.smallest <= shape[1] <= self.up_to.get(direction, 0)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Hold the kernel that this implementation asks for."""
        if self.kernel is None:
            yield
        else:
            with so.config(kernel=self.kernel):
                yield
