"""The native likelihood of a permutation: against the oracle, and against the dense formula."""

import numpy as np
import pytest
import torch

import oracles
import softorder as so
from inside import ABS, Call, Product, extension_module
from tolerances import COMPOSITE, VALUES, assert_close, gradcheck, gradgradcheck

pytestmark = pytest.mark.skipif(extension_module.extension is None, reason="no native kernel")
RELAXATIONS = {
    "abs": lambda tau: so.SoftSort(tau),
    "square": lambda tau: so.SoftSort(tau, metric="square"),
    "neuralsort": lambda tau: so.NeuralSort(tau),
}
SHAPES = [(3, 7), (2, 3, 50), (11,), (1,), (0,), (0, 4), (2, 700), (5000, 3)]


@pytest.fixture(params=RELAXATIONS)
def make(request):
    """Return a function from a temperature to a relaxation."""
    return RELAXATIONS[request.param]


def log_prob(make, x, tau, permutation):
    return make(tau)(x).log_prob(permutation)


def derivatives(make, kernel, x, tau, permutation, function=log_prob):
    """Return log_prob and its gradients by scores and temperature, each row weighed otherwise."""
    x, tau = x.clone().requires_grad_(), tau.clone().requires_grad_()
    with so.config(kernel=kernel):
        y = function(make, x, tau, permutation)
        weight = torch.arange(1, y.numel() + 1, dtype=y.dtype).reshape(y.shape)
        return y.detach(), *torch.autograd.grad((y * weight).sum(), (x, tau))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_value_and_gradients_are_the_dense_formulas(make, shape, tied, shared):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = (x * 3).round() / 3 if tied else x
    of = shape[-1:] if shared else shape
    permutation = torch.rand(of, generator=generator).argsort(-1)
    for tau in (torch.tensor(0.7), torch.rand(shape[:-1], generator=generator) + 0.3):
        given = x, tau.double(), permutation
        got, want = (derivatives(make, kernel, *given) for kernel in ("native", "dense"))
        for one, other in zip(got, want, strict=True):
            assert_close(one, other, COMPOSITE["abs"])


def test_compiled_it_is_the_dense_formula(make):
    """A compiler is given the normalizers alone as a native product, and adds the costs itself."""
    torch._dynamo.reset()
    compiled = torch.compile(log_prob, fullgraph=True, backend="aot_eager")
    x, permutation = torch.randn(2, 7, dtype=torch.float64), torch.randperm(7)
    given = x, torch.tensor([0.7, 1.2], dtype=torch.float64), permutation
    got = derivatives(make, "native", *given, function=compiled)
    for one, other in zip(got, derivatives(make, "dense", *given), strict=True):
        assert_close(one, other, COMPOSITE["abs"])


def test_float32_is_near_the_float64_oracle():
    x = torch.randn(4, 300)
    permutation = torch.rand(4, 300).argsort(-1)
    for power, metric in ((1, "abs"), (2, "square")):
        rows = x.double().numpy()
        log_p = np.stack([oracles.softsort_log_matrix(row, 0.5, float(power)) for row in rows])
        chosen = np.take_along_axis(log_p, permutation.numpy()[..., None], -1)[..., 0]
        got = so.SoftSort(0.5, metric=metric)(x).log_prob(permutation)
        np.testing.assert_allclose(got.numpy(), chosen.sum(-1), rtol=VALUES["float32"])


def test_derivatives_of_both_orders(make):
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor([0.6, 1.1], dtype=torch.float64, requires_grad=True)
    permutation = torch.randperm(6)

    def likelihood(x, tau):
        return make(tau)(x).log_prob(permutation)

    assert gradcheck(likelihood, (x, tau))
    assert gradgradcheck(likelihood, (x, tau))


def test_numpy_has_the_same_values(make):
    x, permutation = torch.randn(3, 20, dtype=torch.float64), torch.randperm(20)
    got = make(0.5)(x.numpy()).log_prob(permutation.numpy())
    assert_close(torch.as_tensor(got), make(0.5)(x).log_prob(permutation), VALUES["float64"])


def test_enormous_scores_give_a_finite_gradient(make):
    for dtype in (torch.float32, torch.float64):
        most = torch.finfo(dtype).max
        x = torch.tensor([most / 64, 0.0, -most / 64], dtype=dtype, requires_grad=True)
        y = make(1.0)(x).log_prob(torch.tensor([2, 1, 0]))
        (g,) = torch.autograd.grad(y, x)
        assert not y.isnan()
        assert g.isfinite().all()


def test_where_scores_are_infinite_or_masked_the_others_are_as_without(make):
    x = torch.tensor([1.0, torch.inf, 0.3, 2.0], dtype=torch.float64)
    finite = make(0.5)(x[[0, 2, 3]]).log_prob(torch.tensor([1, 0, 2]))
    # The infinite one comes first, for certain.
    assert_close(make(0.5)(x).log_prob(torch.tensor([1, 2, 0, 3])), finite, VALUES["float64"])
    mask = torch.tensor([True, False, True, True])
    assert_close(
        make(0.5)(x, mask=mask).log_prob(torch.tensor([2, 0, 3, 1])), finite, VALUES["float64"]
    )


def test_a_permutation_that_is_none_is_refused_before_memory_is_read(make):
    rows = np.zeros((1, 3)), np.arange(3)[None], None
    with pytest.raises(ValueError, match=r"each of 0\.\.2 once"):
        make(0.5)(torch.randn(3)).log_prob(torch.tensor([0, 1, 7]))
    for items in ([[0, 1, 7]], [[0, -1, 2]], [[0, 1]]):
        with pytest.raises(ValueError, match="a permutation"):
            extension_module.make_call(
                Call(Product.LOG_PROB, ABS), rows, 1.0, np.array(items), None, 1
            )
