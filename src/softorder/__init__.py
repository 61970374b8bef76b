"""Sort, argsort, rank, top-k, quantile and nearest neighbours, made differentiable.

    >>> import numpy as np
    >>> import softorder as so
    >>> so.sort(np.array([2.0, 5.0, 4.0]), 0.1)
    array([2.        , 4.00004539, 4.9999546 ])

Importing softorder imports no framework; `softorder.torch` has the torch modules.
"""

from softorder._autograph import skip_autograph as _skip_autograph
from softorder._config import config
from softorder._ops.common import as_relaxation
from softorder._ops.neighbors import knn
from softorder._ops.quantiles import median, quantile
from softorder._ops.selection import topk, topk_mask
from softorder._ops.sorting import argsort, rank, sort
from softorder._permutation import SoftPermutation, TransposedPermutation
from softorder._plackett_luce import PlackettLuce
from softorder.numpy import vjp
from softorder.relaxations import (
    ApproximateRank,
    FastSoftRank,
    FastSoftSort,
    NeuralSort,
    OptimalTransportSort,
    Sinkhorn,
    SoftRank,
    SoftSort,
)
from softorder.relaxations.base import (
    PermutationRelaxation,
    RankRelaxation,
    Relaxation,
    SortRelaxation,
)
from softorder.relaxations.sinkhorn import gumbel_sinkhorn

__version__ = "0.2.0"

__all__ = [
    "ApproximateRank",
    "FastSoftRank",
    "FastSoftSort",
    "NeuralSort",
    "OptimalTransportSort",
    "PermutationRelaxation",
    "PlackettLuce",
    "RankRelaxation",
    "Relaxation",
    "Sinkhorn",
    "SoftPermutation",
    "SoftRank",
    "SoftSort",
    "SortRelaxation",
    "TransposedPermutation",
    "argsort",
    "as_relaxation",
    "config",
    "gumbel_sinkhorn",
    "knn",
    "median",
    "quantile",
    "rank",
    "sort",
    "topk",
    "topk_mask",
    "vjp",
]

_skip_autograph(globals()[name] for name in __all__)
