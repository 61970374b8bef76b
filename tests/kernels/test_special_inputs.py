"""Masks, infinities, NaN, no items, tiny and huge temperatures: every engine is the dense one."""

import numpy as np
import pytest
import torch

import softorder as so
from engines import (
    arguments,
    assert_alike,
    beside_dense,
    every_engine,
    every_kernel,
    every_metric,
    make,
    needs_native,
    threads,
    weigh,
)
from tolerances import COMPOSITE, GRADIENTS, HOT_LIMIT, SECOND, VALUES, assert_close

pytestmark = pytest.mark.usefixtures("tiny_tiles", "no_kernel_is_left_over")
MASK = torch.tensor([[True] * 6, [False, True, True, False, True, True], [False] * 6])


@beside_dense
@pytest.mark.parametrize("hole", [0.0, torch.nan, torch.inf, -torch.inf])
def test_masks(kernel, family, hole):
    x, v, tau = arguments((3, 6))
    x, v = torch.where(MASK, x, hole), torch.where(MASK, v, hole)
    firsts, seconds = [], []
    for k in (kernel, "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        s, w, t = leaves
        with so.config(kernel=k):
            how = make(family, t)
            P = how(s, mask=MASK)
            y = torch.stack(
                [
                    so.sort(w, how, by=s, mask=MASK),
                    P.sort_scores(),
                    so.sort(s, how, mask=MASK),
                    (P.T @ w.nan_to_num(0, 0, 0)[..., None])[..., 0],
                    so.rank(s, how, mask=MASK),
                    P.entropy(),
                    P.log_prob(P.order)[:, None].expand(3, 6),
                    so.topk_mask(s, 4, how, mask=MASK),
                ]
            )
            first = torch.autograd.grad(weigh(y), leaves, create_graph=True)
            seconds.append(torch.autograd.grad(sum(weigh(g.square()) for g in first), leaves))
        firsts.append([y, *first])
    assert_alike(*firsts, COMPOSITE[family])
    assert_alike(*seconds, SECOND[family])


@beside_dense
def test_infinite_scores_and_a_row_with_nan(kernel, family):
    x, v, tau = arguments((4, 7))
    x[0, [1, 4]], x[0, 2], x[1] = torch.inf, -torch.inf, torch.inf
    x[2, 3] = torch.nan
    found = []
    for k in (kernel, "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        s, w, t = leaves
        with so.config(kernel=k):
            how = make(family, t)
            P = how(s)
            y = torch.stack(
                [
                    so.sort(w, how, by=s),
                    (P.T @ w[..., None])[..., 0],
                    P.log_prob(P.order)[:, None].expand(4, 7),
                    so.rank(s, how),
                    P.entropy(),
                ]
            )
            # In the sorted scores themselves there are infinities; only the finite are added up.
            z = so.sort(s, how)
            loss = weigh(y[:, [0, 1, 3]]) + weigh(torch.where(z.isfinite(), z, 0.0))
            found.append([y, z, *torch.autograd.grad(loss, leaves)])
            # An item of another block has no probability at all.
            assert P.log_prob(P.order.flip(-1))[0] == -torch.inf
    assert torch.isfinite(found[0][0][:, [0, 1, 3]]).all()
    assert torch.isnan(found[0][0][:3, 2]).all()
    assert_alike(*found, COMPOSITE[family])


@beside_dense
def test_infinite_values(kernel, family):
    """Zero times infinity is zero: scores are so far apart that weights are clear of the noise."""
    x = torch.tensor([[0.0, 0.1, 200.0, 200.2, 400.0, -300.0]], dtype=torch.float64)
    inf = torch.inf
    v = torch.tensor([[1.0, inf, 2.0, 3.0, -inf, 7.0], [inf, -inf, 1.0, 2.0, 3.0, 4.0]])
    v = v.double()[..., None]
    found = []
    for k in (kernel, "dense"):
        leaves = [x.clone().requires_grad_(), v.clone().requires_grad_()]
        with so.config(kernel=k):
            P = make(family, 0.2)(leaves[0])
            y = torch.cat([P @ leaves[1], P.T @ leaves[1]])
        g = torch.autograd.grad(weigh(torch.where(y.isfinite(), y, 0.0)), leaves)
        found.append([y, *g])
    assert torch.isinf(found[0][0]).any()
    assert_alike(*found, COMPOSITE[family])


@every_engine
def test_empty_things(kernel, family):
    how = make(family, 0.5)
    with so.config(kernel=kernel):
        for shape in ((0,), (3, 0), (0, 0), (0, 4), (2, 0, 4)):
            x = torch.zeros(shape, requires_grad=True)
            y = so.sort(x, how)
            assert y.shape == shape
            y.sum().backward()
            assert x.grad.shape == shape
            assert (how(x) @ x[..., None]).shape == (*shape, 1)
            assert (how(x).T @ x[..., None].expand(*shape, 0)).shape == (*shape, 0)
            assert how(x).log_prob(how(x).order).shape == shape[:-1]
            assert so.rank(x, how).shape == how(x).entropy().shape == shape
        x = torch.randn(3, 5, requires_grad=True)
        y = how(x) @ torch.zeros(3, 5, 0)
        assert y.shape == (3, 5, 0)
        y.sum().backward()
        assert not x.grad.any()


@pytest.mark.parametrize("dtype", [">f4", ">f8", np.longdouble, np.float16])
def test_every_floating_dtype_of_numpy_is_served(dtype):
    """The automatic choice must not choose a kernel that cannot read the array."""
    x = np.array([3.0, 1.0, 2.0]).astype(dtype)
    assert_close(so.sort(x, 1e-3), np.array([1.0, 2.0, 3.0]), VALUES["float64"])
    assert_close(so.rank(x, 1e-3), np.array([3.0, 1.0, 2.0]), VALUES["float64"])


@needs_native
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 33, 299, 300, 301, 1000, 70_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_native_order_is_stable(n, dtype):
    rng = torch.Generator().manual_seed(n)
    for scores in (
        torch.randn(2, n, generator=rng, dtype=dtype),
        torch.randint(-3, 3, (2, n), generator=rng).to(dtype),
        1 + torch.randn(2, n, generator=rng, dtype=dtype) * torch.finfo(dtype).eps,
        torch.randn(2, n, generator=rng, dtype=dtype) * torch.finfo(dtype).tiny / 1e3,
    ):
        scores[0, n // 2] = torch.inf
        scores[1, n // 3] = -torch.inf
        with so.config(kernel="native"), threads(2):
            order = so.SoftSort(1.0)(scores).order
        assert torch.equal(order, scores.argsort(dim=-1, descending=True, stable=True))


@needs_native
def test_both_zeros_are_tied():
    x = torch.tensor([0.0, -0.0, 0.0, -0.0])
    with so.config(kernel="native"):
        assert so.SoftSort(1.0)(x).order.tolist() == [0, 1, 2, 3]


@every_engine
@pytest.mark.parametrize("tau", [1e-300, 1e-30, 1e-8])
def test_a_tiny_temperature_is_a_hard_sort(kernel, family, tau):
    x = arguments((50,))[0]
    x[3] = x[7]
    v = torch.arange(50.0, dtype=torch.float64)
    with so.config(kernel=kernel):
        assert_close(so.sort(x, make(family, tau)), x.sort().values, VALUES)
        assert_close(make(family, tau)(x).T @ v, (make(family, tau)(x).matrix().T @ v), VALUES)


@every_engine
def test_a_huge_temperature_is_a_mean(kernel, family):
    x = arguments((50,))[0].requires_grad_()
    tau = torch.tensor(1e12, dtype=torch.float64, requires_grad=True)
    with so.config(kernel=kernel):
        y = so.sort(x, make(family, tau))
        y.sum().backward()
    assert (y - x.mean()).abs().max() < HOT_LIMIT["float64"]
    assert torch.isfinite(x.grad).all()
    assert torch.isfinite(tau.grad)


@needs_native
@every_metric
def test_a_temperature_that_is_nan_spoils_its_own_row(metric):
    """Values of tau are not looked at while a graph is traced."""
    torch._dynamo.reset()
    x = arguments((3, 5))[0]
    tau = torch.tensor([0.5, torch.nan, 2.0], dtype=torch.float64)
    with so.config(kernel="native"):
        compiled = torch.compile(
            lambda x, tau: so.sort(x, so.SoftSort(tau, metric)), backend="aot_eager"
        )
        y = compiled(x, tau)
        expected = so.sort(x[[0, 2]], so.SoftSort(tau[[0, 2]], metric))
    assert torch.isnan(y[1]).all()
    assert_close(y[[0, 2]], expected, GRADIENTS)


@every_kernel
def test_values_near_the_largest_number_do_not_overflow(kernel):
    """A mean lies between its values, whatever their size."""
    x = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64)
    v = torch.tensor([1.5e308, -1.5e308, 1e308], dtype=torch.float64)
    with so.config(kernel=kernel):
        y = so.SoftSort(1.0)(x) @ v
    assert_close(y, so.SoftSort(1.0)(x) @ (v * 1e-10) * 1e10, VALUES)


@every_engine
@pytest.mark.parametrize("end", [np.inf, -np.inf])
def test_tau_has_a_gradient_beside_an_infinite_score(kernel, family, end):
    def slope(scores):
        tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        with so.config(kernel=kernel):
            y = so.sort(torch.tensor(scores), make(family, tau), descending=True)
        # The larger of the two finite ones.
        g = (torch.isfinite(y) & (y > 0.5)).double()
        return torch.autograd.grad(y, tau, g)[0].item()

    assert slope([0.0, end, 1.0]) == pytest.approx(slope([0.0, 1.0]), rel=VALUES["float64"])


@pytest.mark.parametrize("how", [so.SoftSort, so.NeuralSort])
def test_tau_of_no_scores_has_the_gradient_zero(how):
    # It was memory that nobody had written to: fill what will be reused.
    for _ in range(20):
        torch.full((64,), 7.0, dtype=torch.float64)
        tau = torch.ones(64, dtype=torch.float64, requires_grad=True)
        y = so.argsort(torch.zeros(64, 0, dtype=torch.float64), how(tau))
        assert not torch.autograd.grad(y.sum(), tau)[0].any()


@pytest.mark.parametrize("kernel", [pytest.param("native", marks=needs_native), "tiled"])
def test_infinite_values_of_neuralsort_in_both_precisions(kernel):
    """Zero times infinity is zero; one that is reached with any weight above it is infinite."""
    x = torch.tensor([[0.0, 0.1, 200.0, 200.2, 400.0, -300.0, 50.0]], dtype=torch.float64)
    inf = torch.inf
    v = torch.tensor([[1.0, inf, 2.0, 3.0, -inf, 7.0, 0.0], [inf, -inf, 1.0, 2.0, 3.0, 4.0, 5.0]])
    for dtype in (torch.float64, torch.float32):
        found = []
        for k in (kernel, "dense"):
            leaves = [x.to(dtype).requires_grad_(), v.to(dtype)[..., None].requires_grad_()]
            with so.config(kernel=k):
                P = so.NeuralSort(0.8)(leaves[0])
                y = torch.cat([P @ leaves[1], P.T @ leaves[1]])
            g = torch.autograd.grad(weigh(torch.where(y.isfinite(), y, 0.0)), leaves)
            found.append([y, *g])
        assert torch.isinf(found[0][0]).any()
        assert torch.isfinite(found[0][0]).any()
        assert_alike(*found, GRADIENTS[str(dtype)[6:]])
