"""Relaxations of the argsort operator: one paper, one file, one frozen dataclass."""

from softorder.relaxations.approximate_rank import ApproximateRank
from softorder.relaxations.fast_soft import FastSoftRank, FastSoftSort
from softorder.relaxations.neuralsort import NeuralSort
from softorder.relaxations.optimal_transport import OptimalTransportSort
from softorder.relaxations.sinkhorn import Sinkhorn
from softorder.relaxations.softrank import SoftRank
from softorder.relaxations.softsort import SoftSort

__all__ = [
    "ApproximateRank",
    "FastSoftRank",
    "FastSoftSort",
    "NeuralSort",
    "OptimalTransportSort",
    "Sinkhorn",
    "SoftRank",
    "SoftSort",
]
