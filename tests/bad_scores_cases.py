"""Bad scores, temperatures, masks and metrics."""

import numpy as np
import torch

import softorder as so
from softorder.torch import SoftSort, Sort

X = torch.tensor([[2.0, 5.0, 4.0], [1.0, 0.0, 3.0]])
P = so.SoftSort()(X)
POINTS = torch.ones(4, 2)
LABELS = torch.tensor([0, 1, 0, 1])

# What is called, the error, and a fragment of each of its three parts.
CASES = {
    "tau zero": (lambda: so.sort(X, 0.0), ValueError, "tau must be positive", "0", "hard()"),
    "tau zero that may be a dimension": (
        lambda: so.sort(X, 0),
        ValueError,
        "tau where torch.sort has dim",
        "0",
        "dim=0. For the hard limit",
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
    "a sparse mask": (
        lambda: so.sort(X, 0.1, mask=(X > 0).to_sparse()),
        TypeError,
        "mask must be a dense array",
        "layout torch.sparse_coo",
        "mask.to_dense()",
    ),
    "tau by its own name": (
        lambda: so.sort(X, tau=0.1),  # pyright: ignore[reportCallIssue]
        TypeError,
        "sort has the arguments x, how, dim, descending, by, mask",
        "tau=float 0.1",
        "Write how= in place of tau=",
    ),
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
    "integer keys": (
        lambda: so.sort(X, by=X.long()),
        TypeError,
        "by must have a real floating dtype",
        "torch.int64",
        "by.to(torch.float32)",
    ),
    "tau negative": (lambda: so.SoftSort(-1), ValueError, "tau must be positive", "-1", "hard()"),
    "integer scores": (
        lambda: so.sort(torch.tensor([1, 2])),
        TypeError,
        "real floating dtype",
        "torch.int64",
        "torch.float32",
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
    "matmul with a number": (lambda: P @ torch.tensor(1.0), ValueError, "v must", "0-dim", "one"),
    "matmul with a list": (
        lambda: P @ [1.0, 2.0, 3.0],
        TypeError,
        "v must be an array",
        "list",
        "torch.tensor",
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
    "matmul with another batch": (
        lambda: P @ torch.ones(4, 3, 1),
        ValueError,
        "batch dimensions of v must broadcast with the batch shape (2,)",
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
    "a masked array": (
        lambda: so.sort(np.ma.masked_array(np.ones(3))),
        TypeError,
        "x must be an array",
        "MaskedArray",
        "mask=",
    ),
}
