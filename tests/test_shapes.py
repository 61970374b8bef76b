"""The shapes of every public function, as types that are checked when it runs."""

import pytest
import torch
from beartype import beartype
from jaxtyping import Float, Int, TypeCheckError, jaxtyped
from torch import Tensor

import softorder as so

checked = jaxtyped(typechecker=beartype)


@checked
def sort(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return so.sort(x, 0.5)


@checked
def sort_by(x: Float[Tensor, "b n f"], by: Float[Tensor, "b n"]) -> Float[Tensor, "b n f"]:
    return so.sort(x, 0.5, by=by, dim=1)


@checked
def argsort(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return so.argsort(x, 0.5)


@checked
def rank(x: Float[Tensor, "n *b"]) -> Float[Tensor, "n *b"]:
    return so.rank(x, 0.5, dim=0)


@checked
def topk(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b 2"]:
    return so.topk(x, 2, 0.5)


@checked
def topk_mask(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return so.topk_mask(x, 2, 0.5)


@checked
def quantile(x: Float[Tensor, "*b n"], q: Float[Tensor, " q"]) -> Float[Tensor, "q *b"]:
    return so.quantile(x, q, 0.5)


@checked
def median(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b 1"]:
    return so.median(x, 0.5, keepdim=True)


@checked
def knn(query: Float[Tensor, "*b q d"], points: Float[Tensor, "m d"]) -> Float[Tensor, "*b q m"]:
    return so.knn(query, points, 2, 0.5)


@checked
def classify(
    query: Float[Tensor, "*b q d"], points: Float[Tensor, "m d"], labels: Int[Tensor, " m"]
) -> Float[Tensor, "*b q 4"]:
    return so.knn(query, points, 2, 0.5, labels=labels, num_classes=4)


@checked
def matrix(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
    return so.SoftSort()(x).matrix()


@checked
def rows(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b 2 n"]:
    return so.SoftSort()(x).rows([0, -1])


@checked
def log_prob(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
    P = so.SoftSort()(x)
    return P.log_prob(P.order)


@checked
def entropy(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    return so.SoftSort()(x).entropy()


@checked
def product(x: Float[Tensor, "*b n"], v: Float[Tensor, "n f"]) -> Float[Tensor, "*b n f"]:
    return so.SoftSort()(x) @ v


SHAPES = [(5,), (3, 5), (2, 3, 5), (1, 1, 5)]
ONE_ARGUMENT = [sort, argsort, rank, topk, topk_mask, median, matrix, rows, log_prob, entropy]


@pytest.mark.parametrize("function", ONE_ARGUMENT, ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(function, shape):
    shape = shape[::-1] if function is rank else shape
    assert torch.isfinite(function(torch.randn(shape))).all()


def test_shapes_of_several_arguments():
    assert sort_by(torch.randn(2, 5, 3), torch.randn(2, 5)).shape == (2, 5, 3)
    assert quantile(torch.randn(2, 3, 5), torch.tensor([0.1, 0.5])).shape == (2, 2, 3)
    assert knn(torch.randn(2, 4, 3), torch.randn(6, 3)).shape == (2, 4, 6)
    assert classify(torch.randn(4, 3), torch.randn(6, 3), torch.arange(6) % 4).shape == (4, 4)
    assert product(torch.randn(2, 5), torch.randn(5, 3)).shape == (2, 5, 3)


def test_a_wrong_shape_would_be_noticed():
    @checked
    def wrong(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n n"]:
        return so.sort(x, 0.5)

    with pytest.raises(TypeCheckError):
        wrong(torch.randn(3, 5))
