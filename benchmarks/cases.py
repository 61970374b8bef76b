"""The cases: an implementation, a shape and a direction."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

FORWARD = "forward"
BACKWARD = "forward+backward"

Shape: TypeAlias = tuple[int, int]
"""Batch and n."""

SHAPES: tuple[Shape, ...] = (
    (20, 5),
    (1, 10),
    (1, 100),
    (20, 100),
    (1, 1000),
    (20, 1000),
    (20, 4000),
    (1, 10**4),
    (1, 10**5),
    (1, 10**6),
    (1, 10**7),
    (1, 10**8),
)
QUICK_SHAPES: tuple[Shape, ...] = ((20, 100),)


@dataclass(frozen=True)
class Case:
    """One direction of one implementation on one shape."""

    implementation: str
    shape: Shape
    direction: str = BACKWARD

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Case:
        """Read a case from a JSON line."""
        return cls(entry["implementation"], tuple(entry["shape"]), entry["direction"])

    def to_json(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.implementation} {shape_name(self.shape)} {self.direction}"


def shape_name(shape: Shape) -> str:
    """Write a shape: (20, 4000), (1, 10^6)."""
    batch, n = shape
    digits = len(str(n)) - 1
    return f"({batch}, 10^{digits})" if n == 10**digits and digits > 3 else f"({batch}, {n})"
