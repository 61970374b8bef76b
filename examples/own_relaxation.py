"""A relaxation of your own in ten lines, examined by every law of the contract.

python examples/own_relaxation.py            prints the report
python examples/own_relaxation.py --broken   shows what is said of one that breaks a law
"""

import argparse
import sys
from dataclasses import dataclass

import softorder as so
from softorder.extend import RowSoftmax, temperature
from softorder.testing import LawBroken, check_relaxation


@dataclass(frozen=True, eq=False)
class CauchySort(so.PermutationRelaxation):
    """Row r weighs item j by 1 / (1 + ((x_r - s_j) / tau)^2): heavier tails than SoftSort's."""

    tau: float = 1.0

    def weights(self, scores):
        """Return the logits of the rows; x is s in decreasing order."""
        tau = temperature(self.tau, scores)

        def logits(scores, rows):
            gap = scores.at(rows)[..., :, None] - scores.items[..., None, :]
            return -scores.wiring.xp.log1p((gap / tau) ** 2)

        return RowSoftmax(logits)


class CarelessSort(CauchySort):
    """The same, but the mask never arrives."""

    def permutation(self, scores, *, dim=-1, mask=None):
        """Relax the permutation of all items, those of the mask too."""
        return super().permutation(scores, dim=dim)


def main() -> None:
    """Examine one of the two."""
    parser = argparse.ArgumentParser(description="Examine a relaxation of your own.")
    parser.add_argument("--broken", action="store_true", help="examine one that breaks a law")
    relaxation = CarelessSort() if parser.parse_args().broken else CauchySort()
    try:
        print(check_relaxation(relaxation))
    except LawBroken as broken:
        sys.exit(f"LawBroken: {broken}")


if __name__ == "__main__":
    main()
