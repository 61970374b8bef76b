"""softorder.torch: the modules, and the compiler on the parts that the contract does not reach."""

import copy
import io
import pickle
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn

import softorder as so
from softorder.torch import KNN, PowerMetric, Quantile, Rank, SoftSort, Sort, TopK
from tolerances import FINITE_DIFFERENCES, VALUES, assert_close

X = torch.tensor([[2.0, 5.0, 4.0, -1.0], [0.5, 0.1, 3.0, 0.2]])
MASK = torch.tensor([[True, True, False, True], [True, False, True, True]])


class Net(nn.Module):
    """A small model with a learned metric and a learned temperature inside."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.sort = Sort(SoftSort(0.5, PowerMetric(1.5), learnable_tau=True))

    def forward(self, x):
        return self.sort(self.linear(x))


CALLS = {
    "Sort": (Sort(0.1), lambda x: so.sort(x, 0.1)),
    "Sort descending": (
        Sort(so.SoftSort(0.1), descending=True, dim=0),
        lambda x: so.sort(x, 0.1, descending=True, dim=0),
    ),
    "Rank": (Rank(0.1), lambda x: so.rank(x, 0.1)),
    "TopK": (TopK(2, 0.1), lambda x: so.topk(x, 2, 0.1)),
    "TopK smallest": (TopK(2, 0.1, largest=False), lambda x: so.topk(x, 2, 0.1, largest=False)),
    "TopK mask": (TopK(2, 0.1, as_mask=True), lambda x: so.topk_mask(x, 2, 0.1)),
    "Quantile": (Quantile([0.2, 0.7], 0.1), lambda x: so.quantile(x, [0.2, 0.7], 0.1)),
    "Quantile keepdim": (
        Quantile(0.5, 0.1, dim=0, keepdim=True),
        lambda x: so.median(x, 0.1, dim=0, keepdim=True),
    ),
    "KNN": (
        KNN(2, 0.1, num_classes=3),
        lambda x: so.knn(x, x, 2, 0.1, labels=torch.tensor([0, 1]), num_classes=3),
    ),
}


def run(name, module):
    return module(X, X, torch.tensor([0, 1])) if name == "KNN" else module(X)


@pytest.mark.parametrize("name", CALLS)
def test_a_module_is_its_operation(name):
    module, operation = CALLS[name]
    assert torch.equal(run(name, module), operation(X))
    again = pickle.loads(pickle.dumps(module))
    assert torch.equal(run(name, again), operation(X))
    assert torch.equal(run(name, copy.deepcopy(module)), operation(X))


@pytest.mark.parametrize("name", [name for name in CALLS if name != "KNN"])
def test_a_module_takes_a_mask(name):
    module, _ = CALLS[name]
    y, other = module(X, mask=MASK), module(torch.where(MASK, X, torch.nan), mask=MASK)
    assert torch.equal(y, other)


@pytest.mark.parametrize("name", CALLS)
def test_a_module_exports(name):
    module, operation = CALLS[name]
    arguments = (X, X, torch.tensor([0, 1])) if name == "KNN" else (X,)
    program = torch.export.export(module, arguments)
    torch.testing.assert_close(program.module()(*arguments), operation(X))


def test_a_model_exports_with_a_dynamic_batch():
    net = Net()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(net, (torch.randn(8, 4),), dynamic_shapes=({0: batch},))
    x = torch.randn(5, 4)
    torch.testing.assert_close(program.module()(x), net(x))


def test_learnable_parameters_are_in_the_state_dict_and_learn():
    net = Net()
    assert {"sort.how.log_tau", "sort.how.metric.log_p"} < set(net.state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net(X).square().sum().backward()
    optimiser.step()
    for name in ("sort.how.log_tau", "sort.how.metric.log_p"):
        assert net.state_dict()[name] != before[name]
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = Net()
    other.load_state_dict(torch.load(file))
    assert torch.equal(other(X), net(X))


def test_a_fixed_temperature_is_exact_and_not_a_parameter():
    module = SoftSort(0.1)
    assert module.tau == 0.1
    assert list(module.parameters()) == []
    assert not module.state_dict()
    x = X.double()
    assert torch.equal(so.sort(x, module), so.sort(x, 0.1))


def test_gradients_of_temperature_and_power_are_finite_differences():
    module = SoftSort(0.5, PowerMetric(1.5), learnable_tau=True).double()
    x = X.double()

    def loss():
        return (so.sort(x, module) * torch.arange(4)).square().sum()

    loss().backward()
    step = 1e-6
    for parameter in module.parameters():
        with torch.no_grad():
            parameter += step
            above = loss()
            parameter -= 2 * step
            below = loss()
            parameter += step
        assert_close(parameter.grad, (above - below) / (2 * step), FINITE_DIFFERENCES)


def test_repr_shows_the_parameters():
    assert repr(SoftSort(0.5)) == "SoftSort(tau=0.5, metric='abs')"
    assert "learnable_tau=True" in repr(SoftSort(0.5, learnable_tau=True))
    assert "PowerMetric(p=1.5)" in repr(SoftSort(metric=PowerMetric(1.5)))
    assert "k=3, dim=-1, largest=True" in repr(TopK(3, so.SoftSort(0.2)))
    assert "(how): SoftSort(tau=0.2" in repr(Rank(0.2))


def test_a_module_is_a_relaxation():
    module = SoftSort(0.3, "square")
    assert isinstance(module, so.Relaxation)
    P = module(X, dim=0, mask=MASK)
    assert_close(P.matrix(), so.SoftSort(0.3, "square")(X, dim=0, mask=MASK).matrix(), VALUES)


def test_what_learns_in_a_plain_relaxation_is_registered():
    module = Sort(so.SoftSort(0.5, PowerMetric(1.5)))
    assert [name for name, _ in module.named_parameters()] == ["how.metric.log_p"]


@pytest.mark.parametrize("way", ["load_state_dict", "functional_call", "assignment", "copy"])
def test_a_parameter_put_in_place_of_that_of_a_plain_relaxation_is_computed_with(way):
    module, new = Sort(so.NeuralSort(nn.Parameter(torch.tensor(1.0)))), torch.tensor(0.2)
    before, expected = module(X), so.sort(X, so.NeuralSort(0.2))
    if way == "functional_call":
        y = torch.func.functional_call(module, {"tau": new}, X)
    else:
        if way == "load_state_dict":
            module.load_state_dict({"tau": new}, assign=True)
        elif way == "assignment":
            module.tau = nn.Parameter(new)
        else:
            module = pickle.loads(pickle.dumps(copy.deepcopy(module)))
            with torch.no_grad():
                module.tau.copy_(new)
        y = module(X)
        assert module.how.tau is module.tau
        y.square().sum().backward()
        assert module.tau.grad != 0
    assert torch.equal(y, expected)
    assert not torch.equal(y, before)


def test_a_module_put_in_place_of_that_of_a_plain_relaxation_is_computed_with():
    module = Sort(so.SoftSort(nn.Parameter(torch.tensor(0.5)), PowerMetric(1.5)))
    module.metric = PowerMetric(2.5)
    assert torch.equal(module(X), so.sort(X, so.SoftSort(0.5, PowerMetric(2.5))))


class Ordered(so.Relaxation):
    """A relaxation of somebody's own, and no module."""

    def sort(self, values, *, dim, descending, mask):
        return values.sort(dim, descending).values

    def __repr__(self):
        return "Ordered()"


def test_a_relaxation_that_is_no_module_is_shown_and_used():
    module = Sort(Ordered(), descending=True)
    assert repr(module) == "Sort(dim=-1, descending=True, how=Ordered())"
    assert torch.equal(module(X), X.sort(descending=True).values)


def test_tracing_does_not_bake_in_what_the_example_held():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jit.trace is deprecated, and warns of all it sees
        traced = torch.jit.trace(lambda x: so.sort(x, 0.5), torch.tensor([1.0, 2.0, 3.0]))
    x = torch.tensor([1.0, torch.inf, 2.0])
    torch.testing.assert_close(traced(x), so.sort(x, 0.5))


def test_the_meta_device():
    assert so.sort(torch.empty(2, 3, device="meta"), 0.1).device.type == "meta"


def test_modules_move_between_dtypes():
    module = Sort(0.5, learnable_tau=True).to(torch.float64)
    assert module(X.double()).dtype == torch.float64
    assert module(X).dtype == torch.float32


# ---------------------------------------------------------------- the compiler


def everything(scores, v):
    """All that a SoftPermutation does, `@` included."""
    P = so.SoftSort(0.5)(scores)
    up = P.flip()
    return (
        P @ v,
        P.T @ v,
        torch.matmul(P, v),
        P.apply(scores),
        P.T.apply(scores),
        P.matrix(),
        P.log_matrix(),
        P.rows([0, -1]),
        P.log_prob(P.order),
        P.entropy(),
        P.hard() @ v,
        P.straight_through() @ v,
        up @ v,
        P.order,
        P.sorted,
    )


def test_the_soft_permutation_compiles_in_one_graph():
    torch._dynamo.reset()
    v = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(everything, fullgraph=True, backend="aot_eager")
    for ours, eager in zip(compiled(X, v), everything(X, v), strict=True):
        torch.testing.assert_close(ours, eager)


def test_the_default_compiler_gives_values_and_gradients():
    torch._dynamo.reset()

    def loss(x, tau):
        y = so.sort(x, tau)
        return (y * torch.arange(4)).square().sum() + so.rank(x, tau)[0, 0]

    compiled = torch.compile(loss, fullgraph=True)
    results = []
    for function in (compiled, loss):
        x, tau = X.clone().requires_grad_(), torch.tensor(0.5, requires_grad=True)
        y = function(x, tau)
        y.backward()
        results.append((y.detach(), x.grad, tau.grad))
    for ours, eager in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)


def test_compiled_code_takes_other_shapes_and_temperatures():
    torch._dynamo.reset()
    compiled = torch.compile(so.sort, fullgraph=True, backend="aot_eager")
    for n in (4, 5, 7):
        for tau in (0.1, 0.2, torch.tensor(0.3)):
            x = torch.randn(2, n, generator=torch.Generator().manual_seed(n))
            torch.testing.assert_close(compiled(x, tau), so.sort(x, tau))


def test_a_metric_that_is_a_module_compiles():
    torch._dynamo.reset()
    net = Net()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(X), net(X))


def test_the_first_call_may_be_a_compiled_one():
    """The wiring is then imported while the compiler traces."""
    program = """
import softorder as so
import torch
x = torch.tensor([2.0, 5.0, 4.0])
y = torch.compile(lambda x: so.sort(x, 1e-6), fullgraph=True, backend="aot_eager")(x)
assert torch.equal(y, x.sort().values), y
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_several_threads_at_once():
    expected = so.sort(X, 0.3)
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(so.sort(X, 0.3), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


_EVERYWHERE = {
    "sort": lambda x: so.sort(x, 0.5),
    "square": lambda x: so.sort(x, so.SoftSort(0.5, "square")),
    "cube": lambda x: so.sort(x, so.SoftSort(0.5, 3.0)),
    "neuralsort": lambda x: so.rank(x, so.NeuralSort(0.5)),
    "softrank": lambda x: so.rank(x, so.SoftRank(0.5)),
    "rank_distribution": lambda x: so.SoftRank(0.5)(x).matrix(),
    "log_rank_distribution": lambda x: so.SoftRank(0.5)(x).log_matrix(),
    "approximate": lambda x: so.rank(x, so.ApproximateRank(0.5)),
    "fast_rank": lambda x: so.rank(x, so.FastSoftRank(0.5)),
    "fast_sort": lambda x: so.sort(x, so.FastSoftSort(0.5)),
    "transport": lambda x: so.sort(x, so.OptimalTransportSort(0.5)),
    "sinkhorn": lambda x: so.Sinkhorn(0.5)(x[..., None] * x[..., None, :]).matrix(),
    "argsort": lambda x: so.argsort(x, 0.5),
    "topk": lambda x: so.topk(x, 2, 0.5),
    "topk_mask": lambda x: so.topk_mask(x, 2, 0.5),
    "quantile": lambda x: so.quantile(x, [0.2, 0.9], 0.5),
    "median": lambda x: so.median(x, 0.5),
    "knn": lambda x: so.knn(x, x, 2, 0.5),
    "matrix": lambda x: so.SoftSort(0.5)(x).matrix(),
    "rows": lambda x: so.SoftSort(0.5)(x).rows([0, -1]),
    "order": lambda x: so.SoftSort(0.5)(x).order + 0 * x,
    "entropy": lambda x: so.SoftSort(0.5)(x).entropy(),
    "log_prob": lambda x: so.SoftSort(0.5)(x).log_prob(x.argsort(descending=True)),
    "marginal_error": lambda x: so.SoftSort(0.5)(x).marginal_error(),
    "hard": lambda x: so.SoftSort(0.5)(x).hard().entropy() + 0 * x,
    "straight_through": lambda x: so.SoftSort(0.5)(x).straight_through() @ x[0],
    "mask": lambda x: so.sort(x, 0.5, mask=x > -1),
    "temperature": lambda x: so.sort(x, x.new_tensor([0.5, 0.7])),
}


@pytest.mark.parametrize("operation", _EVERYWHERE)
@pytest.mark.parametrize("kernel", [None, "portable", "tiled", "dense"])
def test_another_default_device_does_not_matter(operation, kernel):
    """`torch.empty` without a device went to the default one, where there is no memory to read."""
    function = _EVERYWHERE[operation]
    if kernel == "portable" and operation in ("cube", "neuralsort"):
        pytest.skip("the portable kernel serves SoftSort with abs and square")
    x = torch.tensor([[0.3, -1.2, 0.3, 2.0], [1.0, 0.1, -0.4, 0.2]], requires_grad=True)

    def both():
        with so.config(kernel=kernel):
            y = function(x)
            weights = torch.linspace(0.5, 1.5, y.numel(), device="cpu").reshape(y.shape)
            finite = torch.where(y.isinf(), torch.zeros((), device="cpu"), y)
            return y, *torch.autograd.grad((finite * weights).sum(), x)

    expected = both()
    with torch.device("meta"):
        found = both()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.device.type == "cpu"
        assert torch.equal(ours, theirs)
