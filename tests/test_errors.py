"""Bad input: each is an error in three parts, what was expected, what came, how to fix it."""

import re

import numpy as np
import pytest
import scipy.sparse
import torch

import softorder as so
from softorder.torch import KNN, PowerMetric, SoftSort, Sort

X = torch.tensor([[2.0, 5.0, 4.0], [1.0, 0.0, 3.0]])
P = so.SoftSort()(X)
POINTS = torch.ones(4, 2)
LABELS = torch.tensor([0, 1, 0, 1])

CASES = {
    "tau zero": (lambda: so.sort(X, 0.0), ValueError, "tau must be positive", "0", "hard()"),
    "tau zero that may be a dimension": (
        lambda: so.sort(X, 0),
        ValueError,
        "tau where torch.sort has dim",
        "0",
        "dim=0. For the hard limit",
    ),
    "tau below zero that may be a dimension": (
        lambda: so.topk(X, 2, -1),
        ValueError,
        "tau where torch.topk has dim",
        "-1",
        "dim=-1.",
    ),
    "tau that is no float": (
        lambda: so.sort(X, so.SoftSort(10**400)),
        ValueError,
        "tau must be positive and finite",
        "int 1000",
        "hard()",
    ),
    "a tau that is no float where dim may be meant": (
        lambda: so.sort(X, -(10**400)),
        ValueError,
        "tau where torch.sort has dim",
        "-1000",
        "dim=-1000",
    ),
    "an integer of NumPy": (
        lambda: so.sort(X, np.int64(-1)),
        ValueError,
        "tau where torch.sort has dim",
        "-1",
        "dim=-1",
    ),
    "a dimension for argsort": (
        lambda: so.argsort(X, -1),
        ValueError,
        "tau where torch.argsort has dim",
        "-1",
        "dim=-1",
    ),
    "a dimension for median": (
        lambda: so.median(X, 0),
        ValueError,
        "tau where torch.median has dim",
        "0",
        "dim=0",
    ),
    "a dimension for quantile": (
        lambda: so.quantile(X, 0.5, 0),
        ValueError,
        "tau where torch.quantile has dim",
        "0",
        "dim=0",
    ),
    "q that is no float": (
        lambda: so.quantile(X, 10**400, 0.1),
        ValueError,
        "every q must lie in [0, 1]",
        "1000",
        "divide by 100",
    ),
    "a row that is no number of a row": (
        lambda: P.rows(10**400),
        TypeError,
        "rows must be an int",
        "int 1000",
        "counted from 0",
    ),
    "a sparse mask": (
        lambda: so.sort(X, 0.1, mask=(X > 0).to_sparse()),
        TypeError,
        "mask must be a dense array",
        "layout torch.sparse_coo",
        "mask.to_dense()",
    ),
    "a sparse matrix": (
        lambda: so.Sinkhorn()(torch.eye(3).to_sparse()),
        TypeError,
        "matrix must be a dense array",
        "layout torch.sparse_coo",
        "matrix.to_dense()",
    ),
    "sparse labels": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS.to_sparse()),
        TypeError,
        "labels must be a dense array",
        "layout torch.sparse_coo",
        "labels.to_dense()",
    ),
    "numpy's name for interpolation": (
        lambda: so.quantile(X, 0.5, method="lower"),  # pyright: ignore[reportCallIssue]
        TypeError,
        "quantile has the arguments",
        "method=str 'lower'",
        "Write interpolation= in place of method=",
    ),
    "torchsort's name for the temperature": (
        lambda: so.rank(X, regularization_strength=1.0),  # pyright: ignore[reportCallIssue]
        TypeError,
        "rank has the arguments",
        "regularization_strength=float 1.0",
        "Write how=",
    ),
    "tau by its own name": (
        lambda: so.sort(X, tau=0.1),  # pyright: ignore[reportCallIssue]
        TypeError,
        "sort has the arguments x, how, dim, descending, by, mask",
        "tau=float 0.1",
        "Write how= in place of tau=",
    ),
    "axis for dim": (
        lambda: so.quantile(X, 0.5, axis=0),  # pyright: ignore[reportCallIssue]
        TypeError,
        "quantile has the arguments",
        "axis=int 0",
        "Write dim= in place of axis=",
    ),
    "an argument that only torch has": (
        lambda: so.topk(X, 1, sorted=True),  # pyright: ignore[reportCallIssue]
        TypeError,
        "topk has the arguments x, k, how, dim, largest, mask",
        "sorted=bool True",
        "Leave it out",
    ),
    "a place for the result": (
        lambda: so.median(X, out=X),  # pyright: ignore[reportCallIssue]
        TypeError,
        "median has the arguments",
        "out=Tensor of shape (2, 3)",
        "Use the result",
    ),
    "an index": (lambda: P[0], TypeError, "no entries to index", "SoftPermutation[0]", "P.rows(0)"),
    "an index of the transpose": (
        lambda: P.T[0, 1],
        TypeError,
        "no entries to index",
        "[(0, 1)]",
        "P.matrix()",
    ),
    "rows one after the other": (lambda: list(P), TypeError, "no entries", "[0]", "P.rows"),  # pyright: ignore
    "a sparse tensor": (
        lambda: so.sort(X.to_sparse()),
        TypeError,
        "x must be a dense array",
        "layout torch.sparse_coo",
        "x.to_dense()",
    ),
    "a sparse v": (
        lambda: P @ torch.ones(3).to_sparse(),
        TypeError,
        "v must be a dense array",
        "layout torch.sparse_coo",
        "v.to_dense()",
    ),
    "a sparse array": (
        lambda: so.rank(scipy.sparse.coo_array(np.eye(3))),
        TypeError,
        "x must be an array of numpy",
        "coo_array of shape (3, 3)",
        "toarray()",
    ),
    "a list of tensors": (
        lambda: so.sort([torch.tensor(1.0), torch.tensor(2.0)]),
        TypeError,
        "x must be an array",
        "list [tensor(1.), tensor(2.)]",
        "torch.stack",
    ),
    "dim none": (
        lambda: so.sort(X, dim=None),  # pyright: ignore[reportArgumentType]
        TypeError,
        "dim must be an integer",
        "NoneType None",
        "x.reshape(-1)",
    ),
    "an unknown interpolation": (
        lambda: so.quantile(X, 0.5, interpolation="cubic"),
        ValueError,
        "'linear', 'lower', 'higher', 'nearest', 'midpoint'",
        "'cubic'",
        "torch.quantile",
    ),
    "integer keys": (
        lambda: so.sort(X, by=X.long()),
        TypeError,
        "by must have a real floating dtype",
        "torch.int64",
        "by.to(torch.float32)",
    ),
    "knn with no neighbour": (
        lambda: so.knn(POINTS, POINTS, 0),
        ValueError,
        "k must lie in [1, 4]",
        "0",
        "at least 1",
    ),
    "knn with square one-hot labels": (
        lambda: so.knn(POINTS, POINTS, 1, labels=torch.eye(4, dtype=torch.int64)),
        ValueError,
        "the shape of labels must broadcast to (4,)",
        "shape (4, 4)",
        "labels.argmax(-1)",
    ),
    "tau negative": (lambda: so.SoftSort(-1), ValueError, "tau must be positive", "-1", "hard()"),
    "tau nan": (
        lambda: so.rank(X, float("nan")),
        ValueError,
        "tau must be positive",
        "nan",
        "hard()",
    ),
    "integer scores": (
        lambda: so.sort(torch.tensor([1, 2])),
        TypeError,
        "real floating dtype",
        "torch.int64",
        "torch.float32",
    ),
    "integer numpy scores": (
        lambda: so.rank(np.arange(3)),
        TypeError,
        "real floating dtype",
        "int64",
        "numpy.float32",
    ),
    "complex scores": (
        lambda: so.sort(np.ones(3, complex)),
        TypeError,
        "real floating dtype",
        "complex128",
        "Convert",
    ),
    "unknown metric": (
        lambda: so.SoftSort(metric="cosine"),  # pyright: ignore[reportArgumentType]
        ValueError,
        "'abs', 'square'",
        "'cosine'",
        "callable",
    ),
    "metric of power zero": (
        lambda: so.SoftSort(metric=0),
        ValueError,
        "metric must be positive",
        "0",
        "power p > 0",
    ),
    "metric none": (
        lambda: so.SoftSort(metric=None),  # pyright: ignore[reportArgumentType]
        TypeError,
        "metric must be",
        "None",
        "callable",
    ),
    "metric that reduces": (
        lambda: so.SoftSort(metric=lambda a, b: (a - b).abs().sum())(X).matrix(),
        ValueError,
        "element by element",
        "shape ()",
        "reduce nothing",
    ),
    "k above n": (lambda: so.topk(X, 4), ValueError, "k must lie in [0, 3]", "4", "only 3"),
    "k negative": (lambda: so.topk(X, -1), ValueError, "k must lie in [0, 3]", "-1", "at least 0"),
    "k fractional": (
        lambda: so.topk_mask(X, 1.5),  # pyright: ignore[reportArgumentType]
        TypeError,
        "k must be an integer",
        "1.5",
        "how many",
    ),
    "q above one": (lambda: so.quantile(X, 50), ValueError, "in [0, 1]", "50", "divide by 100"),
    "q below zero": (
        lambda: so.quantile(X, [0.5, -0.1]),
        ValueError,
        "in [0, 1]",
        "-0.1",
        "divide by 100",
    ),
    "q nan": (lambda: so.quantile(X, float("nan")), ValueError, "in [0, 1]", "nan", "100"),
    "q of two dimensions": (
        lambda: so.quantile(X, [[0.5]]),
        ValueError,
        "1-dimensional",
        "(1, 1)",
        "Flatten",
    ),
    "mask of the wrong shape": (
        lambda: so.sort(X, mask=torch.ones(2, dtype=torch.bool)),
        ValueError,
        "mask must broadcast to (2, 3)",
        "shape (2,)",
        "one entry for each score",
    ),
    "mask with too many dimensions": (
        lambda: so.sort(X, mask=torch.ones(1, 2, 3, dtype=torch.bool)),
        ValueError,
        "mask must broadcast to (2, 3)",
        "shape (1, 2, 3)",
        "one entry for each score",
    ),
    "mask of numbers": (
        lambda: so.sort(X, mask=torch.ones(2, 3)),
        TypeError,
        "mask must be boolean",
        "torch.float32",
        "Compare first",
    ),
    "matmul with the wrong length": (
        lambda: P @ torch.ones(4),
        ValueError,
        "must have length 3",
        "4",
        "matmul",
    ),
    "matmul with a batch of vectors": (
        lambda: P @ X,
        ValueError,
        "must have length 3",
        "2",
        "v[..., None]",
    ),
    "transposed matmul with the wrong length": (
        lambda: P.T @ torch.ones(4),
        ValueError,
        "must have length 3",
        "4",
        "matmul",
    ),
    "apply with the wrong length": (
        lambda: P.apply(torch.ones(2, 4)),
        ValueError,
        "x along dim -1 must have length 3",
        "4",
        "dim=...",
    ),
    "apply with another batch": (
        lambda: P.apply(torch.ones(4, 3)),
        ValueError,
        "x that come first, without dim, must broadcast with the batch shape (2,)",
        "(4,)",
        "Batch dimensions come first",
    ),
    "matmul with a number": (lambda: P @ torch.tensor(1.0), ValueError, "v must", "0-dim", "one"),
    "matmul with a list": (
        lambda: P @ [1.0, 2.0, 3.0],
        TypeError,
        "v must be an array",
        "list",
        "torch.tensor",
    ),
    "log_prob with a repeated index": (
        lambda: P.log_prob(torch.tensor([0, 0, 1])),
        ValueError,
        "each of 0..2 once",
        "[0, 0, 1]",
        "from 0",
    ),
    "log_prob counted from one": (
        lambda: P.log_prob(torch.tensor([1, 2, 3])),
        ValueError,
        "each of 0..2 once",
        "[1, 2, 3]",
        "from 0",
    ),
    "log_prob of the wrong length": (
        lambda: P.log_prob(torch.tensor([0, 1])),
        ValueError,
        "permutation must have length 3",
        "2",
        "dim",
    ),
    "log_prob of numbers": (
        lambda: P.log_prob(torch.ones(3)),
        TypeError,
        "integer indices",
        "torch.float32",
        "P.order",
    ),
    "log_prob of a number": (
        lambda: P.log_prob(torch.tensor(0)),
        ValueError,
        "permutation must have at least one dimension",
        "0-dim",
        "reshape",
    ),
    "dim outside": (lambda: so.sort(X, dim=2), ValueError, "dim must lie in [-2, 1]", "2", "-1"),
    "dim fractional": (
        lambda: so.sort(X, dim=0.5),  # pyright: ignore[reportArgumentType]
        TypeError,
        "dim must be an integer",
        "0.5",
        "one dimension",
    ),
    "a list": (
        lambda: so.sort([3.0, 1.0]),
        TypeError,
        "x must be an array of numpy or torch",
        "list [3.0, 1.0]",
        "numpy.asarray",
    ),
    "a long list": (
        lambda: so.sort([3.0] * 99),
        TypeError,
        "must be an array",
        "...",
        "numpy.asarray",
    ),
    "a number": (
        lambda: so.SoftSort()(torch.tensor(1.0)),
        ValueError,
        "scores must have at least one dimension",
        "0-dim",
        "reshape",
    ),
    "mixed frameworks": (
        lambda: so.sort(X, by=np.ones((2, 3))),
        TypeError,
        "one framework",
        "x of torch and by of numpy",
        "Convert one",
    ),
    "mixed frameworks in tau": (
        lambda: so.sort(X, np.ones(2)),
        TypeError,
        "one framework",
        "x of torch and how of numpy",
        "Convert one",
    ),
    "knn with one point": (
        lambda: so.knn(torch.ones(2), POINTS, 1),
        ValueError,
        "query must have shape",
        "(2,)",
        "query[None, :]",
    ),
    "knn with other features": (
        lambda: so.knn(torch.ones(3, 5), POINTS, 1),
        ValueError,
        "same number of features",
        "5 and 2",
        "same network",
    ),
    "knn with k above m": (
        lambda: so.knn(POINTS, POINTS, 5),
        ValueError,
        "k must lie in [1, 4]",
        "5",
        "only 4",
    ),
    "knn with too few labels": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS[:3]),
        ValueError,
        "each of the 4 neighbors",
        "(3,)",
        "(..., m)",
    ),
    "knn with fractional labels": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS.float()),
        TypeError,
        "labels must be integers",
        "torch.float32",
        "class indices",
    ),
    "knn with negative labels": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS - 1),
        ValueError,
        "not be negative",
        "-1",
        "mask=",
    ),
    "knn with too few classes": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS, num_classes=1),
        ValueError,
        "below num_classes = 1",
        "1",
        "from 0",
    ),
    "knn with integer points": (
        lambda: so.knn(POINTS.long(), POINTS, 1),
        TypeError,
        "query must have a real floating dtype",
        "torch.int64",
        "Convert",
    ),
    "a module with a learnable relaxation": (
        lambda: Sort(SoftSort(), learnable_tau=True),
        ValueError,
        "needs a number",
        "SoftSort",
        "nn.Module",
    ),
    "a module with a tensor tau": (
        lambda: Sort(torch.tensor(0.5, requires_grad=True)),
        TypeError,
        "tau must be a positive number",
        "Tensor of shape ()",
        "learnable_tau=True",
    ),
    "tau below the dtype": (
        lambda: so.sort(X, 1e-46),
        ValueError,
        "tau must be at least 1.18e-38",
        "1e-46",
        "hard()",
    ),
    "tau below the dtype in a tensor": (
        lambda: so.sort(X, torch.tensor([1.0, 1e-39])),
        ValueError,
        "every tau must be at least 1.18e-38",
        "tensor",
        "hard()",
    ),
    "tau that underflows when converted": (
        lambda: so.sort(X, torch.tensor(1e-60, dtype=torch.float64)),
        ValueError,
        "every tau must be positive",
        "0",
        "hard()",
    ),
    "rows that are true or false": (
        lambda: P.rows([True, False]),
        TypeError,
        "rows must be an int, a slice",
        "list [True, False]",
        "from 0",
    ),
    "rows of a string": (lambda: P.rows("a"), TypeError, "rows must be an int", "'a'", "from 0"),
    "rows that are none of these": (
        lambda: P.rows(1.5),
        TypeError,
        "rows must be an int",
        "1.5",
        "from 0",
    ),
    "rows of another framework": (
        lambda: P.rows(np.array([0])),
        TypeError,
        "one framework",
        "rows of numpy",
        "Convert one",
    ),
    "q that is a string": (
        lambda: so.quantile(X, "median"),
        TypeError,
        "q must be a number in [0, 1]",
        "'median'",
        "0.5",
    ),
    "q that is nothing": (lambda: so.quantile(X, None), TypeError, "q must be", "None", "0.5"),
    "q of integers": (
        lambda: so.quantile(X, torch.tensor([0, 1])),
        TypeError,
        "q must have a real floating dtype",
        "torch.int64",
        "Convert",
    ),
    "matmul with another batch": (
        lambda: P @ torch.ones(4, 3, 1),
        ValueError,
        "batch dimensions of v must broadcast with the batch shape (2,)",
        "(4,)",
        "first",
    ),
    "log_prob with another batch": (
        lambda: P.log_prob(torch.tensor([[0, 1, 2]] * 4)),
        ValueError,
        "batch dimensions of a permutation must broadcast",
        "(4,)",
        "first",
    ),
    "keys of another length": (
        lambda: so.sort(X, by=torch.ones(2, 4)),
        ValueError,
        "by must have one key for each of the 3 values",
        "4",
        "feature",
    ),
    "a number with keys": (
        lambda: so.sort(torch.tensor(1.0), by=X),
        ValueError,
        "x must have at least one dimension",
        "0-dim",
        "reshape",
    ),
    "knn with another batch": (
        lambda: so.knn(torch.ones(3, 4, 2), torch.ones(5, 4, 2), 1),
        ValueError,
        "batch dimensions of neighbors must broadcast with the batch shape (3,)",
        "(5,)",
        "first",
    ),
    "knn with another batch of labels": (
        lambda: so.knn(POINTS, torch.ones(3, 4, 2), 1, labels=LABELS.expand(5, 4)),
        ValueError,
        "the shape of labels must broadcast to (3, 4)",
        "(5, 4)",
        "(..., m)",
    ),
    "knn with no class": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS, num_classes=-1),
        ValueError,
        "num_classes must lie in [1,",
        "-1",
        "at least 1",
    ),
    "knn with half a class": (
        lambda: so.knn(POINTS, POINTS, 1, labels=LABELS, num_classes="a"),  # pyright: ignore
        TypeError,
        "num_classes must be an integer",
        "'a'",
        "how many",
    ),
    "a masked array": (
        lambda: so.sort(np.ma.masked_array(np.ones(3))),
        TypeError,
        "x must be an array",
        "MaskedArray",
        "mask=",
    ),
    "a module with tau zero": (
        lambda: KNN(1, 0.0),
        ValueError,
        "tau must be positive",
        "0",
        "hard",
    ),
    "a learned metric of power zero": (
        lambda: PowerMetric(0),
        ValueError,
        "p must be positive",
        "0",
        "1.5",
    ),
}


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
