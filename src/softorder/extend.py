"""What a relaxation of your own needs.

Write a frozen dataclass that inherits from `softorder.PermutationRelaxation`, and in it
`weights(scores)`, which returns a `RowSoftmax`; examples/own_relaxation.py does it in ten lines.
`softorder.testing.check_relaxation` then examines it.

Example:
    >>> import dataclasses
    >>> import numpy as np
    >>> import softorder as so
    >>> from softorder.extend import RowSoftmax, temperature
    >>> @dataclasses.dataclass(frozen=True, eq=False)
    ... class CauchySort(so.PermutationRelaxation):
    ...     tau: float = 1.0
    ...
    ...     def weights(self, scores):
    ...         tau = temperature(self.tau, scores)
    ...
    ...         def logits(scores, rows):
    ...             gap = scores.at(rows)[..., :, None] - scores.items[..., None, :]
    ...             return -scores.wiring.xp.log1p((gap / tau) ** 2)
    ...
    ...         return RowSoftmax(logits)
    >>> so.sort(np.array([2.0, 5.0, 4.0]), CauchySort(0.01)).round(2)
    array([2., 4., 5.])
"""

from softorder._kernels.scores import SortedScores
from softorder._kernels.spec import RowSoftmax
from softorder.relaxations.base import (
    PermutationRelaxation,
    RankRelaxation,
    SortRelaxation,
    check_temperature,
    temperature,
    temperature_of_row,
)

__all__ = [
    "PermutationRelaxation",
    "RankRelaxation",
    "RowSoftmax",
    "SortRelaxation",
    "SortedScores",
    "check_temperature",
    "temperature",
    "temperature_of_row",
]
