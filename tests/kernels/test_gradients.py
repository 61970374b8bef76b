"""Derivatives of every order and in every mode, by every engine."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

import softorder as so
import strategies as our
from engines import (
    PRODUCTS,
    arguments,
    assert_alike,
    beside_dense,
    every_engine,
    fast_engine,
    make,
    tensor,
    weigh,
)
from inside import tiled
from tolerances import (
    AGREEMENT,
    COMPOSITE,
    FINITE_DIFFERENCES,
    GRADIENTS,
    HESSIANS,
    SECOND,
    VALUES,
    assert_close,
    gradcheck,
    gradgradcheck,
)

pytestmark = pytest.mark.usefixtures("tiny_tiles", "no_kernel_is_left_over")


@beside_dense
@pytest.mark.parametrize("product", ["P @ v, 2 features", "P.T @ u", "log_prob", "entropy", "sort"])
def test_derivatives_of_every_kind(kernel, family, product, monkeypatch):
    if (kernel, family) in (("tiled", "abs"), ("tiled", "square")) and "2 features" not in product:
        pytest.skip("the same dense rows for every product")
    monkeypatch.setattr(tiled, "TILE", 16)
    x, v, tau = arguments((4,))
    inputs = [t.clone().requires_grad_() for t in (x, v, tau)]

    def function(x, v, tau):
        with so.config(kernel=kernel):
            return PRODUCTS[product](x, make(family, tau), v)

    torch.manual_seed(0)  # gradgradcheck draws what it multiplies with
    assert gradcheck(function, inputs, check_forward_ad=True, check_batched_grad=False)
    assert gradgradcheck(function, inputs)


@every_engine
def test_forward_mode_is_finite_differences(kernel, family):
    x, v, tau = arguments((2, 5))
    direction = arguments((2, 5), seed=7)

    def function(x, v, tau):
        how = make(family, tau)
        return torch.stack([so.sort(v, how, by=x), so.rank(x, how), so.sort(x, how)])

    with so.config(kernel=kernel):
        y, tangent = jvp(function, (x, v, tau), direction)
        step = 1e-5
        above, below = (
            function(*(a + sign * step * b for a, b in zip((x, v, tau), direction, strict=True)))
            for sign in (1, -1)
        )
        assert_close(y, function(x, v, tau), GRADIENTS)
        assert_close(tangent, (above - below) / (2 * step), FINITE_DIFFERENCES)
        with forward_ad.dual_level():
            dual = [forward_ad.make_dual(a, b) for a, b in zip((x, v, tau), direction, strict=True)]
            old = forward_ad.unpack_dual(function(*dual)).tangent
    assert_close(old, tangent, COMPOSITE[family])


@every_engine
def test_forward_over_reverse_where_only_the_weights_have_a_tangent(kernel, family):
    """The incoming gradient of a backward pass may itself be differentiated in forward mode."""
    x, _, _ = arguments((6,))
    w = torch.arange(6.0, dtype=torch.float64)
    how = make(family, 0.5)
    with so.config(kernel=kernel), forward_ad.dual_level():
        leaf = x.clone().requires_grad_()
        dual = forward_ad.make_dual(w, torch.ones_like(w))
        (g,) = torch.autograd.grad((so.sort(leaf, how) * dual).sum(), leaf)
        tangent = forward_ad.unpack_dual(g).tangent
        (expected,) = torch.autograd.grad(so.sort(leaf, how).sum(), leaf)
    assert tangent is not None
    assert_close(tangent, expected, COMPOSITE[family])


@every_engine
def test_jacobians_agree(kernel, family):
    x, _, _ = arguments((6,))
    how = make(family, 0.5)

    def function(x):
        return so.sort(x, how) + so.rank(x, how)

    with so.config(kernel="dense"):
        expected = jacrev(function)(x)
    with so.config(kernel=kernel):
        assert_close(jacrev(function)(x), expected, COMPOSITE[family])
        assert_close(jacfwd(function)(x), expected, COMPOSITE[family])
        assert_close(torch.autograd.functional.jacobian(function, x), expected, COMPOSITE[family])
        ours = hessian(lambda x: weigh(function(x)))(x)
    with so.config(kernel="dense"):
        assert_close(ours, hessian(lambda x: weigh(function(x)))(x), HESSIANS[family])


@pytest.mark.parametrize("n", [6, 20, 32])  # one chunk; several, with padding and without
@every_engine
def test_a_batch_of_gradients_at_once(kernel, family, n):
    """torch.autograd.grad(is_grads_batched=True), which vectorised Jacobians are made of."""
    x, _, _ = arguments((n,))
    how = make(family, 0.5)
    with so.config(kernel=kernel):
        expected = torch.autograd.functional.jacobian(lambda x: so.sort(x, how), x)
        ours = torch.autograd.functional.jacobian(lambda x: so.sort(x, how), x, vectorize=True)
    assert_close(ours, expected, COMPOSITE[family])


@every_engine
def test_vmap_over_scores_values_and_temperatures(kernel, family):
    x, v, tau = arguments((3, 5))

    def function(x, v, tau):
        how = make(family, tau)
        return so.sort(v, how, by=x) + so.rank(x, how)

    with so.config(kernel=kernel):
        expected = torch.stack([function(*row) for row in zip(x, v, tau, strict=True)])
        assert_close(vmap(function)(x, v, tau), expected, GRADIENTS)
        for in_dims in itertools.product((0, None), repeat=3):
            if any(d == 0 for d in in_dims):
                given = [t if d == 0 else t[0] for t, d in zip((x, v, tau), in_dims, strict=True)]
                rows = [
                    [t[i] if d == 0 else t for t, d in zip(given, in_dims, strict=True)]
                    for i in range(3)
                ]
                one_by_one = torch.stack([function(*row) for row in rows])
                assert_close(vmap(function, in_dims)(*given), one_by_one, GRADIENTS)
        P = make(family, 0.5)(x[0])  # made outside, used inside
        assert_close(vmap(lambda v: P @ v)(v), torch.stack([P @ row for row in v]), GRADIENTS)


@fast_engine
def test_double_backward_is_never_silently_zero(kernel, family):
    x, v, tau = arguments((2, 5))
    for product in ("P @ v, 2 features", "P.T @ u", "sort", "log_prob", "rank"):
        seconds = []
        for k in (kernel, "dense"):
            leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
            with so.config(kernel=k):
                y = PRODUCTS[product](leaves[0], make(family, leaves[2]), leaves[1])
            used = [0, 1, 2] if "@" in product else [0, 2]
            first = torch.autograd.grad(weigh(y), [leaves[i] for i in used], create_graph=True)
            again = sum(weigh(g.square()) for g in first)
            seconds.append(torch.autograd.grad(again, [leaves[i] for i in used]))
        assert all(g.any() for g in seconds[0])
        assert_alike(*seconds, SECOND[family])


@every_engine
def test_backward_twice_is_as_usual(kernel, family):
    x = arguments((5,))[0].requires_grad_()
    with so.config(kernel=kernel):
        y = weigh(so.sort(x, make(family, 0.5)))
        (first,) = torch.autograd.grad(y, x, retain_graph=True)
        (second,) = torch.autograd.grad(y, x)
        assert torch.equal(first, second)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, x)


@every_engine
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_changing_an_input_in_place_is_noticed(kernel, family, changed):
    leaves = [t.clone().requires_grad_() for t in arguments((2, 5))]
    given = [leaf * 1 for leaf in leaves]
    with so.config(kernel=kernel):
        y = make(family, given[2])(given[0]) @ given[1][..., None]
        expected = torch.autograd.grad(weigh(y), leaves, retain_graph=True)
        with torch.no_grad():
            given[changed].add_(1.0)
        try:
            found = torch.autograd.grad(weigh(y), leaves)
        except RuntimeError as error:
            message = str(error)
        else:  # a kernel that keeps copies may answer, if the answer is right
            message = "modified by an inplace operation"
            assert_alike(found, expected, VALUES["float64"])
    assert "modified by an inplace operation" in message


@given(st.data(), our.scores(min_size=1), st.sampled_from([0.3, 1.0, 4.0]))
def test_ties_average_their_gradients_alike(data, s, tau):
    v, g = data.draw(our.vectors(len(s))), data.draw(our.vectors(len(s)))
    found = []
    for kernel in (None, "dense"):
        leaves = [tensor(a, requires_grad=True) for a in (s, v)]
        with so.config(kernel=kernel):
            y = so.NeuralSort(tau)(leaves[0]) @ leaves[1]
        found.append([y, *torch.autograd.grad(y, leaves, tensor(g))])
    assert_alike(
        *found, AGREEMENT["neuralsort"], least=1 + np.abs(v).max() * np.abs(g).max() * len(s) / tau
    )
