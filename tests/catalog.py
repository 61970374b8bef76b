"""Every relaxation and every operation, for the tests that go over all of them.

A relaxation that is added to `softorder.relaxations` is found here without further ado: the laws of
`softorder.testing` examine it in all that it offers (testing/test_laws.py), and the contract in one
operation. What an operation does with a permutation is the same for all relaxations, so that
SoftSort alone is examined in every operation: R + O pairs, not R x O.
"""

import dataclasses

import pytest
import torch

import softorder as so
from softorder import relaxations


def bent(a, b):
    """A semi-metric that depends on more than the difference."""
    return abs(a**3 - b**3) ** 0.5 + abs(a - b)


def on_engine(relaxation):
    """Return a relaxation that runs on the engine in its field `kernel`, however few its items."""

    @dataclasses.dataclass(frozen=True, eq=False)
    class OnEngine(relaxation):
        kernel: str = "dense"

        def short_lived_permutation(self, scores, *, dim=-1, mask=None):
            with so.config(kernel=self.kernel):
                return super().short_lived_permutation(scores, dim=dim, mask=mask)

    return OnEngine


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
        by_kernel = on_engine(getattr(relaxations, name))
        for settings in variants:
            yield pytest.param(by_kernel(**settings), id=f"{name}({_name(settings)})")


RELAXATIONS = list(every_relaxation())


# The field that makes a relaxation hard as it goes to 0.
TEMPERATURE = {
    "ApproximateRank": "tau",
    "FastSoftRank": "epsilon",
    "FastSoftSort": "epsilon",
    "NeuralSort": "tau",
    "OptimalTransportSort": "epsilon",
    "Sinkhorn": "tau",
    "SoftRank": "tau",
    "SoftSort": "tau",
    "OnEngine": "tau",
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


def main_operation(how):
    """Return the name of the operation in which a relaxation is examined; None if it has none."""
    return next((name for name in ("sort", "rank") if offers(how, name)), None)


WITH_MATRIX = [how for how in RELAXATIONS if hasattr(how.values[0], "permutation")]
# Sinkhorn takes a matrix, and none of the operations.
OF_SCORES = [how for how in RELAXATIONS if main_operation(how.values[0])]
ONE_OPERATION_EACH = [
    pytest.param(how.values[0], OPERATIONS[name], id=f"{how.id}-{name}")
    for how in OF_SCORES
    for name in [main_operation(how.values[0])]
]
EVERY_OPERATION = [
    pytest.param(so.SoftSort(), function, id=f"SoftSort()-{name}")
    for name, function in OPERATIONS.items()
]
R_PLUS_O = ONE_OPERATION_EACH + [
    pair for pair in EVERY_OPERATION if pair.id not in {each.id for each in ONE_OPERATION_EACH}
]
EVERY_OUTPUT = [
    pytest.param(so.SoftSort(), function, id=f"SoftSort()-{name}")
    for name, function in OF_THE_MATRIX.items()
]


# To compile takes long: the relaxations under a mask, the operations without one.
TO_COMPILE = [
    pytest.param(*each.values, True, id=f"{each.id}-masked") for each in ONE_OPERATION_EACH
]
TO_COMPILE += [pytest.param(*each.values, False, id=each.id) for each in EVERY_OPERATION]

every_pair = pytest.mark.parametrize(("how", "operation"), R_PLUS_O)
every_operation = pytest.mark.parametrize(("how", "operation"), EVERY_OPERATION)
every_relaxation = pytest.mark.parametrize(("how", "operation"), ONE_OPERATION_EACH)
with_matrix = pytest.mark.parametrize("how", WITH_MATRIX)


def gradient(function, x, weight=None):
    """Return d sum(weight * function(x)) / dx, with fixed uneven weights."""
    return value_and_gradient(function, x, weight)[1]


def value_and_gradient(function, x, weight=None):
    """Return function(x) and that gradient."""
    x = x.detach().clone().requires_grad_()
    y = function(x)
    if weight is None:
        weight = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
    return y.detach(), *torch.autograd.grad((y * weight).sum(), x)
