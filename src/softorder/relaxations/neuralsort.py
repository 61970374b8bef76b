"""NeuralSort: stochastic optimization of sorting networks via continuous relaxations.

Grover, Wang, Zweig & Ermon, ICLR 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

from softorder._kernels.neuralsort import NEURALSORT
from softorder._kernels.scores import SortedScores
from softorder._kernels.spec import KernelSpec
from softorder.relaxations.base import PermutationRelaxation, WithTau, temperature


@dataclass(frozen=True, eq=False)
class NeuralSort(WithTau, PermutationRelaxation):
    r"""Row i is the softmax of logits that the i-th largest score maximises.

    .. math:: P_i = \mathrm{softmax}([(n + 1 - 2i) s - A_s 1] / \tau), \quad A_s = |s_j - s_k|

    Rows are unimodal distributions, and the matrix goes to the exact permutation as tau goes to 0.
    Products cost O(n^2) time, less where tau is small (n times the width of the band that has
    weight), and O(n) memory.

    Args:
        tau: The temperature, in the units of the scores: a positive number, or an array with one
            value per batch row (it broadcasts against the scores' shape without `dim`), which
            receives its gradient.

    Example:
        >>> import numpy as np
        >>> import softorder as so
        >>> P = so.NeuralSort(tau=1.0)(np.array([2.0, 5.0, 4.0]))
        >>> P.matrix().round(2)
        array([[0.  , 0.73, 0.27],
               [0.09, 0.24, 0.67],
               [0.88, 0.01, 0.12]])
    """

    def weights(self, scores: SortedScores) -> KernelSpec:
        """Return the weights of its formula, which are in _kernels/neuralsort.py."""
        return KernelSpec(NEURALSORT, temperature(self.tau, scores))
