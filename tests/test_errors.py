"""Bad input: each is an error in three parts, what was expected, what came, how to fix it."""

import re

import pytest
import torch

import bad_arguments_cases
import bad_scores_cases
import softorder as so
from softorder.torch import Sort

X = torch.tensor([[2.0, 5.0, 4.0], [1.0, 0.0, 3.0]])
POINTS = torch.ones(4, 2)
LABELS = torch.tensor([0, 1, 0, 1])
CASES = {**bad_scores_cases.CASES, **bad_arguments_cases.CASES}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_a_clear_error(name):
    call, kind, expected, received, fix = CASES[name]
    with pytest.raises(kind) as error:
        call()
    assert type(error.value) is kind
    text = str(error.value)
    parts = re.fullmatch(r"(.+?); got (.+?)\. ([A-Z].+)", text, re.DOTALL)
    assert parts is not None, f"not in three parts: {text}"
    for part, fragment in zip(parts.groups(), (expected, received, fix), strict=True):
        assert fragment in part, f"{fragment!r} is not in {part!r} of {text!r}"


def test_labels_that_cannot_be_looked_at_need_num_classes():
    def predict(query):
        return so.knn(query, POINTS, 1, labels=LABELS)

    with pytest.raises(Exception, match="num_classes is needed"):
        torch.compile(predict, fullgraph=True, backend="eager")(POINTS)


def test_a_failed_call_leaves_nothing_behind():
    for _ in range(3):
        with pytest.raises(ValueError, match="tau"):
            so.sort(X, 0.0)
        assert so.sort(X, 1e-6).equal(X.sort().values)


@pytest.mark.parametrize(
    ("call", "dim"), [(lambda how: so.sort(X, how), 1), (lambda how: so.topk(X, 2, how), 3)]
)
def test_an_integer_that_may_be_a_dimension_is_a_warning(call, dim):
    with pytest.warns(UserWarning, match=rf"temperature tau where .* dim={dim}, .* how={dim}") as w:
        y = call(dim)
    assert w[0].filename == __file__
    assert torch.equal(y, call(float(dim)))


def test_true_is_no_integer_that_may_be_a_dimension():
    with pytest.raises(TypeError, match="must be a positive number; got bool True"):
        so.sort(X, True)


def test_a_huge_integer_is_a_temperature_that_is_too_large():
    with pytest.warns(UserWarning, match="temperature tau"), pytest.raises(ValueError, match="tau"):
        so.sort(X, 10**400)


def test_a_nested_tensor_is_refused():
    with pytest.warns(UserWarning, match="nested"):
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(TypeError, match="x must be a dense array"):
        so.sort(nested)


def test_an_integer_that_cannot_be_a_dimension_is_no_warning():
    """Warnings are errors in this suite."""
    so.sort(X, how=1)
    so.topk(X, 2, how=1)
    so.sort(X, so.SoftSort(1))
    so.rank(X, 1)
    so.argsort(X, 2)
    so.median(X, 1)
    so.topk_mask(X, 2, 1)
    so.knn(POINTS, POINTS, 1, 2)
    Sort(1)(X)


def test_a_compiled_sort_takes_an_integer_for_tau():
    compiled = torch.compile(lambda x: so.sort(x, 2), fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), so.sort(X, 2.0))
