"""The temperature of every relaxation: what it may be, its gradient, and the hard limit."""

import itertools

import numpy as np
import pytest
import torch
from torch.func import vmap

import softorder as so
from catalog import OF_SCORES, OPERATIONS, TEMPERATURE, cold, every_pair, offers, soften, with_tau
from tolerances import COLD_LIMIT, VALUES, assert_close, gradcheck

pytestmark = pytest.mark.usefixtures("small_tiles")

with_temperature = pytest.mark.parametrize("how", OF_SCORES)


@pytest.fixture
def x(generator):
    return torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)


@with_temperature
def test_a_tau_that_is_not_positive_is_an_error_that_points_to_hard(how):
    said = r"(tau|epsilon) must be positive and finite; got .*hard\(\)"
    for tau in (0, 0.0, -1, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=said):
            with_tau(how, tau)
        for bad in (torch.tensor(float(tau)), torch.tensor([1.0, tau])):
            with pytest.raises(ValueError, match=said):
                soften(torch.ones(2, 3), with_tau(how, bad))
        with pytest.raises(ValueError, match=said):
            soften(np.ones((2, 3)), with_tau(how, np.array([1.0, tau])))


@with_temperature
def test_a_tau_that_is_no_number_is_a_type_error(how):
    for tau in ("1.0", None, True, [1.0], 1j):
        with pytest.raises(TypeError, match=r"(tau|epsilon) must be a positive number; got"):
            with_tau(how, tau)


@with_temperature
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1), (2, 3)])
def test_a_tensor_tau_broadcasts_over_the_batch_and_receives_its_gradient(how, shape, x):
    tau = torch.linspace(0.5, 1.5, int(np.prod(shape)), dtype=torch.float64).reshape(shape)
    y = soften(x, with_tau(how, tau), dim=1)
    each = tau.expand(2, 3)
    for i, j in itertools.product(range(2), range(3)):
        assert_close(y[i, :, j], soften(x[i, :, j], with_tau(how, float(each[i, j]))), VALUES)
    tau.requires_grad_()
    assert gradcheck(lambda tau: soften(x, with_tau(how, tau), dim=1), tau)


@with_temperature
def test_a_tensor_tau_of_the_wrong_shape_or_type_is_an_error(how):
    with pytest.raises(
        ValueError, match=r"(tau|epsilon) .* must broadcast to \(2,\); got shape \(3,\)\."
    ):
        soften(torch.ones(2, 3), with_tau(how, torch.ones(3)))
    with pytest.raises(ValueError, match=r"must broadcast to \(\); got shape \(1,\)\."):
        soften(torch.ones(3), with_tau(how, torch.ones(1)))
    with pytest.raises(TypeError, match=r"(tau|epsilon) must have a real floating dtype; got"):
        soften(torch.ones(3), with_tau(how, torch.tensor(1)))


@with_temperature
def test_the_dtype_of_tau_does_not_change_that_of_the_result(how):
    tau = torch.tensor(0.5, dtype=torch.float64)
    assert soften(torch.ones(3), with_tau(how, tau)).dtype == torch.float32
    half = torch.float16 if offers(how, "sort") else torch.float32
    assert soften(torch.ones(3).half(), with_tau(how, tau.float())).dtype == half


@with_temperature
def test_values_are_not_checked_while_tracing(how, x):
    """The docs say so: a check would break the graph. What comes is not meant to be used."""

    def shifted(x, tau):
        return soften(x, with_tau(how, tau))

    torch.compiler.reset()  # each relaxation compiles the same few lines again
    compiled = torch.compile(shifted, fullgraph=True, backend="eager")
    assert compiled(x[0, 0], torch.tensor(-1.0)).shape == x[0, 0].shape
    assert vmap(shifted, (None, 0))(x, torch.tensor([1.0, -1.0])).shape == (2, *x.shape)
    with pytest.raises(ValueError, match="must broadcast"):
        vmap(shifted, (0, 0))(x[0], torch.ones(6, 2))


def test_no_relaxation_escapes_these_tests():
    """A temperature by another name than tau is declared in catalog.py."""
    assert set(TEMPERATURE) - {"OnEngine"} == set(so.relaxations.__all__)


@every_pair
def test_each_operation_goes_to_its_namesake_as_tau_goes_to_zero(how, operation, x):
    ranks = x.argsort(-1).argsort(-1).double() + 1
    n = x.shape[-1]
    expected = {
        "sort": x.sort(-1).values,
        "sort_descending": x.sort(-1, descending=True).values,
        "argsort": x.argsort(-1).double(),
        "rank": ranks,
        "rank_descending": n + 1 - ranks,
        "topk": x.topk(2).values,
        "topk_smallest": x.topk(2, largest=False).values,
        "topk_mask": (ranks > n - 2).double(),
        "topk_mask_smallest": (ranks <= 2).double(),
        "median": x.median(-1).values,
        "quantile": x.quantile(0.3, -1),
        "quantiles": x.quantile(torch.tensor([0.0, 0.3, 1.0]).double(), -1),
    }
    (name,) = (name for name, function in OPERATIONS.items() if function is operation)
    assert_close(operation(x, cold(how)), expected[name], COLD_LIMIT)
