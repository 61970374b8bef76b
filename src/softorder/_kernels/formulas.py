"""The formulas that have products in C++."""

from __future__ import annotations

from softorder._kernels.neuralsort import NEURALSORT
from softorder._kernels.spec import Formula, Stationary

ABS, SQUARE = Stationary(1.0), Stationary(2.0)
FORMULAS: dict[str, Formula] = {"abs": ABS, "square": SQUARE, "neuralsort": NEURALSORT}
NAMES = {formula: name for name, formula in FORMULAS.items()}
