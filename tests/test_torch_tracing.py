"""Programs that torch traces: make_fx, torch.export, torch.compile with shapes that vary."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import softorder as so
from inside import extension_module
from tolerances import VALUES, assert_close

LABELS = torch.tensor([0, 1, 1, 0])


def tensors(batch, n):
    """Return scores, a mask that leaves at least one item, queries and neighbours of these."""
    generator = torch.Generator().manual_seed(batch * 100 + n)
    x = torch.randn(batch, n, generator=generator, dtype=torch.float64)
    mask = torch.rand(batch, n, generator=generator) > 0.3
    mask[:, 0] = True
    return x, mask


def operations(x, mask):
    """What failed for a batch, or a number of items, that was left open; and a few more."""
    P = so.SoftSort(0.5, "square")(x)
    return (
        so.sort(x, so.NeuralSort(0.5)),
        so.sort(x, 0.5, mask=mask),
        so.rank(x, 0.5),
        so.rank(x, 0.5, mask=mask),
        so.argsort(x, 0.5),
        so.topk(x, 2, 0.5),
        so.topk(x, 2, so.SoftSort(0.5, 1.5)),
        so.topk_mask(x, 2, so.NeuralSort(0.5)),
        so.median(x, 0.5),
        so.quantile(x, [0.1, 0.7], 0.5, mask=mask),
        so.knn(x, x[:4] + 1, 2, 0.5, labels=LABELS, num_classes=2),
        so.median(x, so.OptimalTransportSort(0.5, 2, targets=[0.5])),
        so.rank(x, so.ApproximateRank(0.5)),
        P.entropy(),
        P.T @ x[0, :],
        P.log_prob(P.order),
        P.rows(slice(-2, None)),
    )


class Operations(torch.nn.Module):
    def forward(self, x, mask):
        return operations(x, mask)


SHAPES = [(5, 7), (4, 40), (9, 5)]


def test_a_dynamic_batch_and_a_dynamic_number_of_items_export():
    # No maximum: no choice may depend on how large they are.
    sizes = {0: torch.export.Dim("batch", min=4), 1: torch.export.Dim("n", min=4)}
    program = torch.export.export(Operations(), tensors(*SHAPES[0]), dynamic_shapes=(sizes, sizes))
    for shape in SHAPES:
        ours, eager = program.module()(*tensors(*shape)), operations(*tensors(*shape))
        for y, expected in zip(ours, eager, strict=True):
            assert_close(y, expected, VALUES)


def loss(x):
    P = so.SoftSort(0.5, "square")(x)
    parts = (so.rank(x, 0.5), so.median(x, 0.5), so.topk(x, 2, 0.5), P.entropy())
    return torch.cat([part.flatten() for part in parts]).square()


def loss_of_a_sort(x):
    return so.sort(x, so.SoftSort(0.5, "square")).square()


@pytest.mark.parametrize("how", [0.5, so.NeuralSort(0.5)], ids=str)
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_compiles_in_one_graph(half, how):
    def function(x):
        P = so.as_relaxation(how)(x)
        return (
            so.rank(x, how),
            so.argsort(x, how),
            so.topk_mask(x, 2, how),
            so.quantile(x, 0.3, how),
            so.sort(x.float(), how, by=x),
            P.apply(x.float()),
            P.T @ x[0].double(),
        )

    torch._dynamo.reset()
    x = torch.randn(3, 5).to(half)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for y, expected in zip(compiled(x), function(x), strict=True):
        assert y.dtype == expected.dtype
        assert_close(y, expected, VALUES)


# Without recompilation, which would hide a size that was fixed.
@pytest.mark.parametrize(("function", "kernel"), [(loss, None), (loss_of_a_sort, "portable")])
def test_a_dynamic_batch_and_a_dynamic_number_of_items_compile_once(function, kernel):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
    with so.config(kernel=kernel), torch._dynamo.config.patch(error_on_recompile=True):
        for shape in SHAPES:
            results = []
            for each in (function, compiled):
                x = tensors(*shape)[0].requires_grad_()
                y = each(x)
                results.append((y, *torch.autograd.grad(y.sum(), x)))
            for eager, ours in zip(*results, strict=True):
                assert_close(ours, eager, VALUES)


# ---------------------------------------------------------------- make_fx


def gradient(function):
    def differentiated(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(function(x).square().sum(), x)[0]

    return differentiated


@pytest.mark.parametrize("how", [so.NeuralSort(0.5), so.SoftSort(0.5), so.FastSoftSort(2.0)])
@pytest.mark.parametrize("mode", ["real", "fake"])
def test_make_fx_sees_what_the_native_kernel_computes(how, mode):
    """Not the memory that it writes to, which nothing has been written to when a trace is run."""
    x, other = tensors(3, 5)[0], tensors(3, 6)[0][:, :5]

    def sort(x):
        return so.sort(x, how)

    for function in (sort, gradient(sort)):
        traced = make_fx(function, tracing_mode=mode)(x)
        assert "empty" not in traced.code
        assert_close(traced(other), function(other), VALUES)


def test_make_fx_sees_what_autograd_does_to_a_gradient():
    x, other = tensors(3, 5)[0], tensors(3, 6)[0][:, :5]

    def sort(x):
        return so.sort(x, so.NeuralSort(0.5))

    def second(x):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(sort(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert_close(make_fx(second)(x)(other), second(other), VALUES)


class Watching(TorchDispatchMode):
    """Notes the names of all operators."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(extension_module.extension is None, reason="the native kernel was not built")
def test_a_dispatch_mode_sees_the_native_kernel_as_an_operator():
    x = tensors(3, 5)[0].requires_grad_()
    (expected,) = torch.autograd.grad(so.sort(x, so.NeuralSort(0.5)).square().sum(), x)
    watching = Watching()
    with watching:
        y = so.sort(x, so.NeuralSort(0.5)).square().sum()
        (inside,) = torch.autograd.grad(y, x, retain_graph=True)
    (outside,) = torch.autograd.grad(y, x)
    ours = {"softorder::sort", "softorder::product", "softorder::product_backward"}
    assert ours < set(watching.names)
    assert torch.equal(inside, expected)
    assert torch.equal(outside, expected)
