"""The implementations to measure, and the references they must agree with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

import softorder as so
from benchmarks import baselines, peer_references, references
from benchmarks.cases import BACKWARD, FORWARD
from benchmarks.implementation import (
    LONG_SHAPE,
    SMALL_SHAPES,
    VERIFIED_SHAPES,
    Implementation,
    Operation,
)
from benchmarks.peer_registry import (
    OTHER_PACKAGES,
    STRENGTHS_OF_RANK,
    STRENGTHS_OF_SORT,
    TORCHSORT,
)
from softorder_experiments import formulas


def _sorted_with(relaxation: Callable[[float], Any], *, descending: bool = False) -> Operation:
    """Return a soft sort, written as users of softorder write it."""
    return lambda x, tau: so.sort(x, relaxation(tau), descending=descending)


def _ranked_with(relaxation: Callable[[float], Any]) -> Operation:
    """Return a soft rank, written as users of softorder write it."""
    return lambda x, tau: so.rank(x, relaxation(tau))


def _balanced(x: torch.Tensor, tau: float) -> torch.Tensor:
    """Apply the Sinkhorn balancing of the matrix y x^T to x, with y from 1 down to 0."""
    y = torch.linspace(1, 0, x.shape[-1])
    return so.Sinkhorn(tau)(y.unsqueeze(-1) * x.unsqueeze(-2)).apply(x)


def _kernel_missing(kernel: str) -> str | None:
    """Return why a kernel of softorder cannot be used here, or None."""
    if not hasattr(so, "config"):
        return "softorder.config does not exist"
    try:
        with so.config(kernel=kernel):
            so.sort(torch.rand(8), 0.1)
    except (ImportError, NotImplementedError, RuntimeError, ValueError) as error:
        return str(error)
    return None


def _softsort(metric: str, tau: float, power: float) -> list[Implementation]:
    """Return the dense formula and softorder's ways to compute it."""
    common = {
        "family": "SoftSort",
        "reference": partial(references.softsort, power=power),
        "tau": tau,
        "verified_at": (1e-3, tau, 10.0),
    }
    distance = {"abs": torch.abs, "square": torch.square}[metric]
    fast = {
        "compute": _sorted_with(partial(so.SoftSort, metric=metric), descending=True),
        "verified_shapes": (*VERIFIED_SHAPES, LONG_SHAPE),
        "baseline": f"dense {metric}",
    }
    return [
        Implementation(
            f"dense {metric}",
            compute=partial(baselines.softsort, distance=distance),
            up_to={FORWARD: 10**4, BACKWARD: 10**4},
            # In float32 the baseline itself loses up to 1e-5 in values and 3e-5 in gradients.
            value_tolerance=1e-4,
            gradient_tolerance=1e-4,
            **common,
        ),
        Implementation(
            f"softorder {metric}",
            up_to={FORWARD: 10**8 if metric == "abs" else 10**7, BACKWARD: 10**7},
            **fast,
            **common,
        ),
        Implementation(
            f"native {metric}",
            up_to={},
            kernel="native",
            missing=partial(_kernel_missing, "native"),
            **fast,
            **common,
        ),
        Implementation(
            f"portable {metric}",
            up_to={FORWARD: 10**6, BACKWARD: 10**6},
            kernel="portable",
            missing=partial(_kernel_missing, "portable"),
            **fast,
            **common,
        ),
    ]


def _neuralsort(
    kind: str,
    tau: float,
    verified_at: tuple[float, ...],
    largest_n: int,
    dense_gradient_tolerance: float,
) -> list[Implementation]:
    """Return the published formula, the corrected one and softorder at a temperature."""
    common = {
        "family": "NeuralSort",
        "reference": references.neuralsort,
        "tau": tau,
        "verified_at": verified_at,
        "smallest": 100,
    }
    # Differences of float32 numbers as large as n, divided by tau.
    inexact = {"value_tolerance": 1e-4, "gradient_tolerance": dense_gradient_tolerance}
    return [
        Implementation(
            f"NeuralSort published {kind}",
            compute=partial(baselines.neuralsort, distances=formulas.distances_by_product),
            up_to={BACKWARD: 1000},
            baseline=f"NeuralSort corrected {kind}",
            **inexact,
            **common,
        ),
        Implementation(
            f"NeuralSort corrected {kind}",
            compute=partial(baselines.neuralsort, distances=formulas.distances_by_sum),
            up_to={BACKWARD: 10**4},
            **inexact,
            **common,
        ),
        Implementation(
            f"softorder NeuralSort {kind}",
            compute=_sorted_with(so.NeuralSort, descending=True),
            verified_shapes=(*VERIFIED_SHAPES, LONG_SHAPE),
            up_to={BACKWARD: largest_n},
            baseline=f"NeuralSort corrected {kind}",
            **common,
        ),
    ]


def _fast_soft(regularization: str) -> list[Implementation]:
    """Return softorder's fast soft sort and rank with a regularization."""
    common = {"tau": 1.0, "up_to": {BACKWARD: 10**6}}
    pool, rank = {
        "l2": (references.means, references.fast_soft_rank),
        "kl": (references.log_sums, references.fast_soft_rank_kl),
    }[regularization]
    return [
        Implementation(
            f"softorder FastSoftSort {regularization}",
            family="FastSoftSort",
            compute=_sorted_with(partial(so.FastSoftSort, regularization=regularization)),
            reference=partial(references.fast_soft_sort, pool=pool),
            verified_at=STRENGTHS_OF_SORT,
            baseline="torchsort soft_sort" if regularization == "l2" else None,
            **common,
        ),
        Implementation(
            f"softorder FastSoftRank {regularization}",
            family="FastSoftRank",
            compute=_ranked_with(partial(so.FastSoftRank, regularization=regularization)),
            reference=rank,
            verified_at=STRENGTHS_OF_RANK,
            baseline="torchsort soft_rank" if regularization == "l2" else None,
            **common,
        ),
    ]


# Balanced in float64, but applied as a float32 matrix, whose product has n roundings.
_BALANCED = {"verified_shapes": SMALL_SHAPES, "value_tolerance": 1e-5, "smallest": 100}

_ALL = (
    # The temperatures of the paper's speed experiment: 0.1 for |.|, 0.03 for the square.
    *_softsort("abs", tau=0.1, power=1.0),
    *_softsort("square", tau=0.03, power=2.0),
    Implementation(
        "softorder power 1.5",
        family="SoftSort",
        compute=_sorted_with(partial(so.SoftSort, metric=1.5), descending=True),
        reference=partial(references.softsort, power=1.5),
        tau=0.05,
        verified_at=(1e-3, 0.05, 10.0),
        up_to={FORWARD: 10**4, BACKWARD: 10**4},
        # Its rows are those of the dense formula, softmax in float32.
        value_tolerance=1e-4,
        gradient_tolerance=1e-4,
    ),
    Implementation(
        "torch.sort",
        family="torch.sort",
        compute=baselines.sort,
        reference=references.hard_sort,
        tau=0.0,
        verified_at=(0.0,),
        up_to={FORWARD: 10**7, BACKWARD: 10**7},
    ),
    # The paper's speed experiment uses 100 for NeuralSort, where most of a row has weight. At 1e-3,
    # only a few items near the diagonal have weight.
    *_neuralsort(
        "cold",
        tau=1e-3,
        verified_at=(1e-3, 0.1),
        largest_n=10**6,
        dense_gradient_tolerance=5e-2,
    ),
    *_neuralsort(
        "warm",
        tau=100.0,
        verified_at=(1.0, 100.0),
        largest_n=10**5,
        dense_gradient_tolerance=5e-4,
    ),
    Implementation(
        "softorder OptimalTransportSort sort",
        family="OptimalTransportSort",
        compute=_sorted_with(so.OptimalTransportSort),
        reference=references.transport_sort,
        tau=0.1,
        verified_at=(0.01, 0.1, 10.0),
        up_to={BACKWARD: 100},
        **_BALANCED,
    ),
    Implementation(
        "softorder OptimalTransportSort rank, 20 targets",
        family="OptimalTransportSort",
        compute=_ranked_with(partial(so.OptimalTransportSort, targets=20)),
        reference=partial(references.transport_rank, targets=20),
        tau=0.1,
        verified_at=(0.01, 0.1, 10.0),
        up_to={BACKWARD: 10**5},
        **_BALANCED,
    ),
    Implementation(
        "softorder Sinkhorn",
        family="Sinkhorn",
        compute=_balanced,
        reference=references.sinkhorn,
        tau=0.1,
        verified_at=(0.03, 0.1, 10.0),
        up_to={BACKWARD: 1000},
        **_BALANCED,
    ),
    Implementation(
        "softorder SoftRank rank",
        family="SoftRank",
        compute=_ranked_with(so.SoftRank),
        reference=references.softrank,
        tau=0.01,
        verified_at=(1e-3, 0.01, 10.0),
        up_to={BACKWARD: 10**4},
        smallest=100,
    ),
    Implementation(
        "softorder SoftRank sort",
        family="SoftRank",
        compute=_sorted_with(so.SoftRank),
        reference=references.softrank_sort,
        tau=0.01,
        verified_at=(1e-3, 0.01, 10.0),
        verified_shapes=((20, 5), (3, 20)),
        up_to={BACKWARD: 10},  # at (20, 100) its O(n^3) takes minutes
    ),
    Implementation(
        "softorder ApproximateRank",
        family="ApproximateRank",
        compute=_ranked_with(so.ApproximateRank),
        reference=partial(references.pairwise_ranks, chance=torch.sigmoid),
        tau=0.1,
        verified_at=(0.01, 0.1, 10.0),
        up_to={BACKWARD: 10**4},
        smallest=100,
    ),
    *_fast_soft("l2"),
    *_fast_soft("kl"),
    *TORCHSORT,
    Implementation(
        "softorder abs rank",
        family="ranks",
        compute=_ranked_with(so.SoftSort),
        reference=peer_references.softsort_rank,
        tau=0.1,
        # Not 1e-3: the gradient among tied scores, 1/16 apart, is then below 1e-22.
        verified_at=(0.01, 0.1, 10.0),
        up_to={BACKWARD: 10**6},
    ),
    *OTHER_PACKAGES,
)
IMPLEMENTATIONS: Mapping[str, Implementation] = {each.name: each for each in _ALL}
# The other packages, and the parts of softorder that they are compared with.
_PEERS = (
    "softorder abs",
    "softorder abs rank",
    "softorder NeuralSort warm",
    "softorder OptimalTransportSort sort",
    "softorder OptimalTransportSort rank, 20 targets",
    "softorder FastSoftSort l2",
    "softorder FastSoftRank l2",
    "torchsort soft_sort",
    "torchsort soft_rank",
    *(each.name for each in _ALL if each.family in {"diffsort", "difftopk", "POT", "OTT"}),
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "torchsort": ("torchsort soft_sort", "torchsort soft_rank"),
    "peers": _PEERS,
}
FAMILIES: tuple[str, ...] = (*dict.fromkeys(each.family for each in _ALL), *GROUPS)


def select(wanted: Iterable[str]) -> list[str]:
    """Return the names of the implementations that have one of these names, families or groups."""
    wanted = set(wanted)
    wanted |= {name for group in wanted & GROUPS.keys() for name in GROUPS[group]}
    return [each.name for each in _ALL if {each.name, each.family} & wanted]
