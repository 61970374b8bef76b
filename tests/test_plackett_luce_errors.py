"""Bad input for Plackett-Luce: each is an error in three parts."""

import numpy as np
import pytest
import torch

import softorder as so


class OnlyRanks(so.Relaxation):
    def rank(self, scores, *, dim=-1, descending=False, mask=None):
        return scores


LAW = so.PlackettLuce(torch.zeros(2, 3))
ERRORS = {
    "integer scores": (
        lambda: so.PlackettLuce(torch.tensor([1, 2])),
        (TypeError, "scores must have a real floating dtype", "torch.int64", "Convert"),
    ),
    "a list": (
        lambda: so.PlackettLuce([1.0, 2.0]),
        (TypeError, "scores must be an array", "list", "Convert"),
    ),
    "no dimension": (
        lambda: so.PlackettLuce(torch.tensor(1.0)),
        (ValueError, "at least one dimension", "0-dimensional", "reshape"),
    ),
    "dim": (
        lambda: so.PlackettLuce(torch.zeros(2), dim=1),
        (ValueError, "dim must lie in [-1, 0]", "1", "Pass the dimension"),
    ),
    "how": (
        lambda: so.PlackettLuce(torch.zeros(2), "soft"),
        (TypeError, "how must be a temperature", "soft", "Pass for example 0.1"),
    ),
    "tau": (
        lambda: so.PlackettLuce(torch.zeros(2), -1.0),
        (ValueError, "tau must be positive", "-1", "hard()"),
    ),
    "no permutation": (
        lambda: so.PlackettLuce(torch.zeros(2), OnlyRanks()),
        (TypeError, "permutation matrix", "OnlyRanks, which has none", "SoftSort"),
    ),
    "mask": (
        lambda: so.PlackettLuce(torch.zeros(2), mask=torch.ones(2)),
        (TypeError, "mask must be boolean", "torch.float32", "Compare first"),
    ),
    "shape": (
        lambda: LAW.sample(5),
        (TypeError, "sequence of integers", "int 5", "(1000,)"),
    ),
    "negative shape": (
        lambda: LAW.rsample((-1,)),
        (ValueError, "must not be negative", "(-1,)", "0 or more"),
    ),
    "generator of numpy": (
        lambda: LAW.sample(generator=np.random.default_rng()),
        (TypeError, "generator must be", "Generator(PCG64)", "torch.Generator()"),
    ),
    "generator of torch": (
        lambda: so.PlackettLuce(np.zeros(2)).rsample(generator=torch.Generator()),
        (TypeError, "generator must be", "torch", "numpy.random.default_rng(0)"),
    ),
    "permutation of floats": (
        lambda: LAW.log_prob(torch.zeros(3)),
        (TypeError, "integer indices", "torch.float32", "argsort"),
    ),
    "no permutation at all": (
        lambda: LAW.log_prob(torch.tensor([0, 1, 1])),
        (ValueError, "each of 0..2 once", "[0, 1, 1]", "counted from 0"),
    ),
    "permutation too short": (
        lambda: LAW.log_prob(torch.tensor([0, 1])),
        (ValueError, "must have length 3", "2", "Check the dimension"),
    ),
    "permutation of another batch": (
        lambda: LAW.log_prob(torch.arange(3).expand(4, 3)),
        (ValueError, "broadcast with the batch shape (2,)", "(4,)", "Batch dimensions"),
    ),
    "permutation of another framework": (
        lambda: LAW.log_prob(np.arange(3)),
        (TypeError, "one framework", "permutation of numpy", "Convert"),
    ),
    "scalar permutation": (
        lambda: LAW.log_prob(torch.tensor(0)),
        (ValueError, "at least one dimension", "0-dimensional", "reshape"),
    ),
    "no samples": (
        lambda: LAW.kl_divergence(LAW, samples=0),
        (ValueError, "samples must be at least 1", "0", "1000"),
    ),
    "half a sample": (
        lambda: LAW.kl_divergence(LAW, samples=0.5),
        (TypeError, "samples must be an integer", "0.5", "1000"),
    ),
    "other is an array": (
        lambda: LAW.kl_divergence(torch.zeros(2, 3)),
        (TypeError, "other must be a PlackettLuce", "Tensor of shape (2, 3)", "Wrap"),
    ),
    "other has more items": (
        lambda: LAW.kl_divergence(so.PlackettLuce(torch.zeros(2, 4))),
        (ValueError, "same number of items, 3", "4", "dim="),
    ),
    "other has another batch": (
        lambda: LAW.kl_divergence(so.PlackettLuce(torch.zeros(5, 3))),
        (ValueError, "the batch shape of other", "(5,)", "Batch dimensions"),
    ),
    "other of another framework": (
        lambda: LAW.kl_divergence(so.PlackettLuce(np.zeros(3))),
        (TypeError, "one framework", "other.scores of numpy", "Convert"),
    ),
}


@pytest.mark.parametrize("case", ERRORS.values(), ids=ERRORS.keys())
def test_errors_have_three_parts(case):
    call, (kind, expected, received, fix) = case
    with pytest.raises(kind) as error:
        call()
    text = str(error.value)
    got, rest = text.index("; got "), text.rindex(". ")
    assert expected in text[:got]
    assert received in text[got:]
    assert fix in text[got:]
    assert got < rest


def test_repr():
    law = so.PlackettLuce(torch.zeros(2, 3), 0.5, dim=0, mask=torch.ones(3, dtype=torch.bool))
    assert repr(law) == (
        "PlackettLuce(shape=(2, 3), dtype=torch.float32, how=SoftSort(tau=0.5, metric='abs'), "
        "dim=-2, masked)"
    )
