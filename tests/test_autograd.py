"""Derivatives of every kind, in every way that torch has to ask for them."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from catalog import (
    EVERY_OUTPUT,
    OF_SCORES,
    TO_COMPILE,
    dtype_of,
    every_operation,
    every_pair,
    gradient,
    short,
    soften,
    value_and_gradient,
    with_matrix,
    with_tau,
)
from tolerances import FINITE_DIFFERENCES, GRADIENTS, VALUES, assert_close, gradcheck, gradgradcheck

pytestmark = pytest.mark.usefixtures("small_tiles")

with_temperature = pytest.mark.parametrize("how", OF_SCORES)


@pytest.fixture
def x(generator):
    return torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)


@every_operation
def test_first_derivatives(how, operation, generator):
    x = torch.randn(2, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: operation(x, how), x)


@with_matrix
def test_a_permutation_that_was_used_without_gradients_still_has_them(how, generator):
    x = torch.randn(5, generator=generator, dtype=torch.float64)
    expected = gradient(lambda x: how(x).T @ torch.arange(5.0, dtype=torch.float64), x)

    def looked_at_before(x):
        P = how(x)
        with torch.no_grad():
            assert not P.matrix().requires_grad
            assert not P.entropy().requires_grad
        return P.T @ torch.arange(5.0, dtype=torch.float64)

    assert_close(gradient(looked_at_before, x), expected, GRADIENTS)


@every_operation
def test_second_derivatives(how, operation, generator):
    x = torch.randn(1, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda x: operation(x, how), x)


@pytest.mark.parametrize(("how", "output"), EVERY_OUTPUT)
def test_derivatives_of_the_matrix_itself(how, output, generator):
    x = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: output(how(x)), x)
    assert gradgradcheck(lambda x: output(how(x)), x)


@with_matrix
def test_derivatives_of_products(how, generator):
    x = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    v = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x, v: (how(x) @ v, how(x).T @ v), (x, v))
    assert gradgradcheck(lambda x, v: (how(x) @ v, how(x).T @ v), (x, v))


@with_temperature
def test_second_derivatives_with_respect_to_tau(how, generator):
    x = torch.randn(2, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor([0.6, 1.4], dtype=torch.float64, requires_grad=True)
    assert gradgradcheck(lambda x, t: soften(x, with_tau(how, t)), (x, tau))


@every_pair
def test_vmap_is_a_batch(how, operation, x):
    assert_close(
        vmap(lambda x: operation(x, how))(x.movedim(1, -1)[0]),
        torch.stack([operation(row, how) for row in x[0].mT]),
        VALUES,
    )


@every_pair
def test_jvp_is_a_finite_difference(how, operation, generator):
    x, t = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(2))
    y, slope = jvp(lambda x: operation(x, how), (x,), (t,))
    step = 1e-6
    difference = (operation(x + step * t, how) - operation(x - step * t, how)) / (2 * step)
    assert_close(y, operation(x, how), VALUES)
    assert_close(slope, difference, FINITE_DIFFERENCES)


@every_pair
def test_jacrev_is_jacfwd_and_the_hessian_is_symmetric(how, operation, generator):
    x = torch.randn(4, generator=generator, dtype=torch.float64)

    def function(x):
        return operation(x, how)

    assert_close(jacrev(function)(x), jacfwd(function)(x), GRADIENTS)
    h = hessian(lambda x: function(x).square().sum())(x)
    assert_close(h, h.mT, GRADIENTS)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "operation", "masked"), TO_COMPILE)
def test_torch_compile_in_one_graph(how, operation, masked, generator):
    torch._dynamo.reset()
    how = short(how)
    x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 5, generator=generator) < 0.8 if masked else None

    def function(x):
        return operation(x, how, mask=mask)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    # With the gradient at once: each way to call it is traced anew.
    ours, eager = (value_and_gradient(f, x) for f in (compiled, function))
    assert_close(ours[0], eager[0], VALUES)
    assert_close(ours[1], eager[1], GRADIENTS)


@every_pair
def test_autocast_changes_nothing(how, operation, x):
    x = x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = operation(x, how)
        half = operation(x.bfloat16(), how)
    assert y.dtype == torch.float32
    assert_close(y, operation(x, how), VALUES)
    assert half.dtype == dtype_of(operation, torch.bfloat16)
    assert_close(half, operation(x.bfloat16(), how), VALUES)
