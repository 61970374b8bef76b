"""What `check_relaxation` measures, and how its report prints it."""

import numpy as np
import pytest
import torch

import softorder as so
from catalog import bent
from inside import Operation, measure
from softorder.testing import Report
from wrong_relaxations import HeavyRows, Rows

pytestmark = pytest.mark.usefixtures("small_tiles")


def measured(how, *names):
    operations = [Operation(name, how, torch, values_in_torch=False) for name in names]
    return measure(operations, laws=(), skipped={})


class Standardised(so.SoftSort):
    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores / scores.std(-1)[..., None], dim=dim, mask=mask)


class Sigmoids(so.Relaxation):
    """Ranks that are smooth at ties."""

    def rank(self, scores, *, dim, descending, mask):
        lead = scores[..., :, None] - scores[..., None, :]
        return 0.5 + (1 / (1 + np.e**-lead)).sum(-1)


def test_columns_that_sum_to_one_are_seen():
    assert not measured(so.SoftSort(0.5), "matrix").doubly_stochastic
    assert measured(so.SoftSort(1e-3), "matrix").doubly_stochastic
    assert measured(so.SoftSort(1e-3), "rank").doubly_stochastic is None
    assert measured(so.SoftSort(0.5), "matrix").row_stochastic
    assert not measured(Rows(rows=HeavyRows), "matrix").row_stochastic


def test_a_jump_of_derivatives_at_ties_is_seen():
    assert measured(Sigmoids(), "rank").smooth_at_ties
    for metric in ("abs", "square", 0.5, 1.5):
        assert not measured(so.SoftSort(1.0, metric), "sort", "rank", "matrix").smooth_at_ties


@pytest.mark.parametrize("name", ["sort", "rank", "matrix"])
def test_invariance_is_seen(name):
    plain = measured(so.SoftSort(), name)
    assert (plain.translation_invariant, plain.scale_invariant) == (True, False)
    divided = measured(Standardised(), "matrix")
    assert (divided.translation_invariant, divided.scale_invariant) == (True, True)
    assert not measured(so.SoftSort(metric=bent), name).translation_invariant


def test_a_report_prints_what_was_found():
    report = Report(
        "Mine", ("rank",), ("a", "b"), {"c": "why", "d": "so", "e": "why"}, None, None, *[True] * 3
    )
    assert str(report).splitlines() == [
        "Mine offers rank and keeps 2 laws.",
        "  not examined, so: d",
        "  not examined, why: c, e",
        "  row stochastic:        not measured",
        "  doubly stochastic:     not measured",
        "  smooth at ties:        yes",
        "  translation invariant: yes",
        "  scale invariant:       yes",
    ]
