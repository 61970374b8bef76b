"""The implementations of other packages, and the references they must agree with."""

from __future__ import annotations

from functools import partial

from benchmarks import peer_references, peers, references
from benchmarks.cases import BACKWARD, FORWARD
from benchmarks.implementation import SMALL_SHAPES, Implementation

# Strengths from "no pooling" to "everything pooled", for x in [0, 1). Apart from the default, 1, no
# round numbers: tied scores are multiples of 1/16, and where pools just touch, the gradient is not
# unique.
STRENGTHS_OF_SORT = (1.0, 123.4, 1234.5, 54321.0)
STRENGTHS_OF_RANK = (0.0789, 0.345, 1.0, 12.3)


def _diffsort(kind: str, largest_n: int) -> list[Implementation]:
    """Return the sorted values and the ranks by a kind of sorting network."""
    common = {
        "family": "diffsort",
        "tau": 0.1,
        "verified_at": (0.01, 0.1, 1.0),
        "verified_shapes": ((20, 5), (3, 100)),
        "up_to": {BACKWARD: largest_n},
        "missing": partial(peers.missing, "diffsort"),
        # Up to 100 consecutive float32 products.
        "value_tolerance": 1e-5,
        "gradient_tolerance": 1e-4,
    }
    return [
        Implementation(
            f"diffsort {kind} sort",
            compute=partial(peers.diffsort_sort, kind=kind),
            reference=partial(peer_references.network_sort, kind=kind),
            **common,
        ),
        Implementation(
            f"diffsort {kind} rank",
            compute=partial(peers.diffsort_rank, kind=kind),
            reference=partial(peer_references.network_rank, kind=kind),
            **common,
        ),
    ]


_DIFFTOPK = {
    "family": "difftopk",
    "missing": partial(peers.missing, "difftopk"),
    "up_to": {BACKWARD: 10**5},
}
_POT = {
    "family": "POT",
    "tau": 0.1,
    "verified_at": (0.03, 0.1, 10.0),
    "verified_shapes": SMALL_SHAPES,
    "missing": partial(peers.missing, "ot"),
    "up_to": {BACKWARD: 10**5},
    # 50 iterations in float32 on logits of up to 100.
    "value_tolerance": 1e-5,
    "gradient_tolerance": 1e-4,
}
_OTT = {
    "family": "OTT",
    "tau": 0.01,
    "verified_at": (0.01, 0.1, 1.0),
    "verified_shapes": ((20, 5), (3, 100)),
    "missing": partial(peers.missing, "ott"),
    # By default it stops when the sums of the plan are within 1e-3 of their targets; the reference
    # is the limit. With 1e-5, the errors would be 4e-4 in values and 3e-3 in gradients.
    "value_tolerance": 5e-3,
    "gradient_tolerance": 1e-1,
}
_TORCHSORT = {
    "tau": 1.0,
    "missing": partial(peers.missing, "torchsort"),
    # Its results are differences of float32 numbers up to n / strength, 1030 in the check.
    "value_tolerance": 1e-4,
}
TORCHSORT = (
    Implementation(
        "torchsort soft_sort",
        family="FastSoftSort",
        compute=peers.torchsort_sort,
        reference=partial(references.fast_soft_sort, pool=references.means),
        verified_at=STRENGTHS_OF_SORT,
        up_to={FORWARD: 10**6, BACKWARD: 10**6},
        **_TORCHSORT,
    ),
    Implementation(
        "torchsort soft_rank",
        family="FastSoftRank",
        compute=peers.torchsort_rank,
        reference=references.fast_soft_rank,
        verified_at=STRENGTHS_OF_RANK,
        up_to={BACKWARD: 10**6},
        **_TORCHSORT,
    ),
)
OTHER_PACKAGES = (
    *_diffsort("odd_even", largest_n=1000),
    *_diffsort("bitonic", largest_n=10**4),
    Implementation(
        "difftopk SoftSort sort",
        compute=peers.difftopk_softsort,
        reference=partial(references.softsort, power=1.0),
        tau=0.1,
        verified_at=(1e-3, 0.1, 10.0),
        # The dense formula in float32, as "dense abs".
        value_tolerance=1e-4,
        gradient_tolerance=1e-4,
        **_DIFFTOPK,
    ),
    Implementation(
        "difftopk SoftSort rank",
        compute=peers.difftopk_softsort_rank,
        reference=peer_references.softsort_rank,
        tau=0.1,
        verified_at=(1e-3, 0.1, 10.0),
        value_tolerance=1e-4,
        gradient_tolerance=1e-4,
        **_DIFFTOPK,
    ),
    Implementation(
        "difftopk NeuralSort sort",
        compute=peers.difftopk_neuralsort,
        reference=peer_references.neuralsort,
        tau=100.0,
        verified_at=(1.0, 100.0),
        # Differences of float32 numbers as large as n, as "NeuralSort published warm".
        value_tolerance=1e-4,
        gradient_tolerance=5e-4,
        **_DIFFTOPK,
    ),
    Implementation(
        "POT sort", compute=peers.pot_sort, reference=peer_references.transport_sort, **_POT
    ),
    Implementation(
        "POT rank", compute=peers.pot_rank, reference=peer_references.transport_rank, **_POT
    ),
    Implementation(
        "OTT sort",
        compute=peers.ott_sort,
        reference=peer_references.squashed_sort,
        up_to={BACKWARD: 10**5},
        **_OTT,
    ),
    Implementation(
        "OTT rank",
        compute=peers.ott_rank,
        reference=peer_references.squashed_rank,
        up_to={BACKWARD: 10**5},
        **_OTT,
    ),
    Implementation(
        "OTT rank, 20 targets",
        compute=partial(peers.ott_rank, targets=20),
        reference=partial(peer_references.squashed_rank, targets=20),
        up_to={BACKWARD: 10**6},
        **_OTT,
    ),
)
