"""The description of one implementation."""

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
"""The same for some positions or items only: (batch, rows)."""

VERIFIED_SHAPES: tuple[Shape, ...] = ((20, 5), (3, 257), (2, 1030))
SMALL_SHAPES: tuple[Shape, ...] = VERIFIED_SHAPES[:2]
"""The shapes for references that are slow or need much memory."""
LONG_SHAPE: Shape = (1, 10**5)
"""A row long enough that a kernel splits it among its threads."""


def _always() -> str | None:
    """Return no reason: the implementation is always available."""
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to sort or to rank softly.

    Attributes:
        name: The name in tables, figures and `--only`.
        family: The operator that it computes or is compared with; also for `--only`.
        compute: Returns the sorted values or the ranks of x at a temperature; differentiable.
        reference: Computes some rows of the result in plain operations, to check `compute`.
        tau: The temperature for timing.
        verified_at: The temperatures for the check.
        verified_shapes: The shapes for the check.
        up_to: The largest n to time, by direction. Empty: timed in comparisons only.
        smallest: The smallest n to time.
        baseline: The implementation whose time the table divides by this one's.
        kernel: The softorder kernel to use; None lets softorder choose.
        missing: Returns why it cannot run here, or None if it can.
        value_tolerance: The largest difference in results, relative to the largest entry.
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
        """Tell whether this shape is timed in this direction."""
        return self.smallest <= shape[1] <= self.up_to.get(direction, 0)

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Use the kernel that this implementation asks for."""
        if self.kernel is None:
            yield
        else:
            with so.config(kernel=self.kernel):
                yield
