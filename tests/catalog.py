"""Every relaxation and every operation there is, for the tests that go over all of them.

A relaxation that is added to `softorder.relaxations` is found here by itself, and is then
examined by the whole of test_contract.py in each operation that it offers.
"""

import dataclasses

import pytest
import torch

import softorder as so
from softorder import relaxations


def bent(a, b):
    """A semi-metric that depends on more than the difference."""
    return abs(a**3 - b**3) ** 0.5 + abs(a - b)


def via(relaxation):
    """Return a relaxation by a kernel that would not be chosen for so few items."""

    @dataclasses.dataclass(frozen=True, eq=False)
    class Via(relaxation):
        kernel: str = "dense"

        def brief_permutation(self, scores, *, dim=-1, mask=None):
            with so.config(kernel=self.kernel):
                return super().brief_permutation(scores, dim=dim, mask=mask)

    return Via


# Further settings of a relaxation that deserve a run of their own.
VARIANTS = {
    "FastSoftRank": [{"epsilon": 3.0, "regularization": "kl"}],
    "FastSoftSort": [{"regularization": "kl"}],
    "SoftSort": [
        {"metric": "square"},
        {"metric": 0.5},
        {"metric": 1.5},
        {"tau": 0.3, "metric": bent},
    ],
}
KERNELS = {
    "NeuralSort": [{"kernel": "tiled"}, {"kernel": "dense"}],
    "SoftSort": [
        {"kernel": "portable"},
        {"kernel": "portable", "metric": "square"},
        {"kernel": "tiled", "metric": 1.5},
        {"kernel": "dense"},
    ],
}


def _name(settings):
    return ",".join(f"{k}={getattr(v, '__name__', v)}" for k, v in settings.items())


def every_relaxation():
    """Yield each relaxation with its defaults, then its variants, as pytest parameters."""
    for name in relaxations.__all__:
        for settings in [{}, *VARIANTS.get(name, [])]:
            yield pytest.param(
                getattr(relaxations, name)(**settings), id=f"{name}({_name(settings)})"
            )
    for name, variants in KERNELS.items():
        by_kernel = via(getattr(relaxations, name))
        for settings in variants:
            yield pytest.param(by_kernel(**settings), id=f"{name}({_name(settings)})")


RELAXATIONS = list(every_relaxation())


# The field that makes a relaxation hard as it goes to 0; None for one that has none.
TEMPERATURE = {
    "ApproximateRank": "tau",
    "FastSoftRank": "epsilon",
    "FastSoftSort": "epsilon",
    "NeuralSort": "tau",
    "OptimalTransportSort": "epsilon",
    "Sinkhorn": "tau",
    "SoftRank": "tau",
    "SoftSort": "tau",
    "Via": "tau",
}


def cold(how, temperature=1e-9):
    """Return the same relaxation close to its hard limit."""
    return dataclasses.replace(how, **{TEMPERATURE[type(how).__name__]: temperature})


def short(how):
    """Return the same relaxation with few iterations, if it has any: each is compiled anew."""
    return dataclasses.replace(how, iterations=3) if hasattr(how, "iterations") else how


def with_tau(how, tau):
    """Return the same relaxation at another temperature."""
    return cold(how, tau)


def soften(x, how, **arguments):
    """Return the sorted values, or the ranks if a relaxation has no more."""
    return (so.sort if offers(how, "sort") else so.rank)(x, how, **arguments)


# What comes out, by item or by position, has the length of what went in.
BY_POSITION = {
    "sort": so.sort,
    "sort_descending": lambda x, how, **kw: so.sort(x, how, descending=True, **kw),
}
BY_ITEM = {
    "rank": so.rank,
    "rank_descending": lambda x, how, **kw: so.rank(x, how, descending=True, **kw),
    "topk_mask": lambda x, how, **kw: so.topk_mask(x, 2, how, **kw),
    "topk_mask_smallest": lambda x, how, **kw: so.topk_mask(x, 2, how, largest=False, **kw),
}
SELECTING = {
    "topk": lambda x, how, **kw: so.topk(x, 2, how, **kw),
    "topk_smallest": lambda x, how, **kw: so.topk(x, 2, how, largest=False, **kw),
}
REDUCING = {
    "median": so.median,
    "quantile": lambda x, how, **kw: so.quantile(x, 0.3, how, **kw),
    "quantiles": lambda x, how, **kw: so.quantile(x, [0.0, 0.3, 1.0], how, **kw),
}
OPERATIONS = {"argsort": so.argsort, **BY_POSITION, **BY_ITEM, **SELECTING, **REDUCING}
# These count items; half precision cannot, and they give float32 for it.
_COUNTING = (so.argsort, so.rank, BY_ITEM["rank_descending"])
# What serves an operation, if a relaxation has no permutation.
_SHORTCUTS = {"sort": "sort", "sort_descending": "sort", "rank": "rank", "rank_descending": "rank"}


def dtype_of(operation, dtype):
    """Return the dtype of what an operation gives for scores of a dtype of torch."""
    return torch.float32 if operation in _COUNTING and dtype.itemsize == 2 else dtype


# What a soft permutation gives besides.
OF_THE_MATRIX = {
    "matrix": lambda P: P.matrix(),
    "log_matrix": lambda P: P.log_matrix(),
    "rows": lambda P: P.rows([0, -1]),
    "log_prob": lambda P: P.log_prob(P.order.flip(-1)),
    "entropy": lambda P: P.entropy(),
    "sorted": lambda P: P.sorted,
}


def offers(how, operation):
    """Tell whether a relaxation offers an operation of this file by its name."""
    return hasattr(how, "permutation") or hasattr(how, _SHORTCUTS.get(operation, "permutation"))


def pairs(operations):
    """Return (relaxation, operation) parameters for all that is offered."""
    return [
        pytest.param(*how.values, function, id=f"{how.id}-{name}")
        for how in RELAXATIONS
        for name, function in operations.items()
        if offers(how.values[0], name)
    ]


def few_pairs():
    """Return (relaxation, operation, masked) parameters for what is slow.

    Every operation for SoftSort, and two for each of the others, of which the ranks have a mask:
    what an operation does with a matrix is the same for all.
    """
    seen = set()
    for pair in EVERY_PAIR:
        how, operation = pair.id.rpartition("-")[0], pair.values[1]
        masked = operation is so.rank
        if how == "SoftSort()" or how not in seen or masked:
            seen.add(how)
            yield pytest.param(*pair.values, masked, id=f"{pair.id}{'-masked' if masked else ''}")


WITH_MATRIX = [how for how in RELAXATIONS if hasattr(how.values[0], "permutation")]
# Sinkhorn takes a matrix, and none of the operations.
OF_SCORES = [
    how for how in RELAXATIONS if offers(how.values[0], "sort") or offers(how.values[0], "rank")
]
WITH_LIMIT = [how for how in OF_SCORES if TEMPERATURE[type(how.values[0]).__name__]]
EVERY_PAIR = pairs(OPERATIONS)
