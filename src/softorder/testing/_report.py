"""The report of `check_relaxation`, and the properties that it measures."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from softorder.testing._examined import BATCH, Operation


@dataclass(frozen=True)
class Report:
    """What `check_relaxation` found: the laws that hold, and properties that were measured.

    Attributes:
        name: The class of the relaxation.
        offers: What it offers, of sort, rank and matrix.
        laws: The laws that hold, in the order in which they were examined.
        skipped: The laws that were not examined, each with the reason.
        row_stochastic: Whether the rows of the matrix sum to one; None without a matrix.
        doubly_stochastic: Whether its columns do too, within 1e-3; None without a matrix.
        smooth_at_ties: Whether first derivatives agree on both sides of a tie; None without torch.
        translation_invariant: Whether to shift all scores shifts the sort and changes nothing else.
        scale_invariant: Whether to scale all scores scales the sort and changes nothing else.
    """

    name: str
    offers: tuple[str, ...]
    laws: tuple[str, ...]
    skipped: Mapping[str, str]
    row_stochastic: bool | None
    doubly_stochastic: bool | None
    smooth_at_ties: bool | None
    translation_invariant: bool
    scale_invariant: bool

    def __str__(self) -> str:
        lines = [f"{self.name} offers {', '.join(self.offers)} and keeps {len(self.laws)} laws."]
        reasons = sorted(self.skipped, key=self.skipped.__getitem__)
        for reason, names in itertools.groupby(reasons, key=self.skipped.__getitem__):
            lines.append(f"  not examined, {reason}: {', '.join(names)}")
        answers = {True: "yes", False: "no", None: "not measured"}
        for field in dataclasses.fields(self)[4:]:
            title = field.name.replace("_", " ") + ":"
            lines.append(f"  {title:<23}{answers[getattr(self, field.name)]}")
        return "\n".join(lines)


def measure(offered: list[Operation], **found: Any) -> Report:
    """Measure the properties of a relaxation that keeps the laws."""
    x, results = BATCH[..., 2], {f.name: f(BATCH[..., 2]) for f in offered}

    def follow(change: Callable[[Any], Any]) -> bool:
        expected = {name: change(y) if name == "sort" else y for name, y in results.items()}
        return all(np.allclose(f(change(x)), expected[f.name], atol=1e-6) for f in offered)

    def sum_to_one(axis: int) -> bool | None:
        matrix = results.get("matrix")
        return None if matrix is None else np.allclose(matrix.sum(axis), 1, rtol=0, atol=1e-3)

    return Report(
        name=type(offered[0].how).__name__,
        offers=tuple(results),
        row_stochastic=sum_to_one(-1),
        doubly_stochastic=sum_to_one(-2),
        smooth_at_ties=all(map(_is_smooth, offered)) if offered[0].torch else None,
        translation_invariant=follow(lambda x: x + 2.5),
        scale_invariant=follow(lambda x: 2.5 * x),
        **found,
    )


def _is_smooth(f: Operation) -> bool:
    """Tell whether first derivatives on both sides of a tie approach each other there.

    The difference goes like the distance for a smooth function, and like a power of it for one
    like |x|^1.5; a jump stays as it is.
    """

    def jacobian(gap: float) -> Any:
        x = f.torch.tensor([0.4, -0.7, 0.4 + gap, 1.3], dtype=f.torch.float64)
        return f.torch.autograd.functional.jacobian(f.on, x)

    far, near = (abs(jacobian(gap) - jacobian(-gap)).max().item() for gap in (1e-4, 1e-6))
    return near <= max(far / 3, 1e-8 * abs(jacobian(1e-4)).max().item())
