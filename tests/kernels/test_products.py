"""Every product of every engine is that of the dense reference, with its gradients."""

import itertools

import pytest
import torch

import softorder as so
from engines import (
    BLOCK,
    PRODUCTS,
    arguments,
    assert_alike,
    beside_dense,
    every_engine,
    every_metric,
    fast_engine,
    make,
    needs_native,
    results,
    weigh,
)
from inside import native, tiled
from tolerances import (
    AGREEMENT,
    COMPOSITE,
    ENGINE_VALUES,
    GRADIENTS,
    MANY_ITEMS,
    SAME_ENGINE,
    VALUES,
    as_numpy,
    assert_close,
)

pytestmark = pytest.mark.usefixtures("tiny_tiles", "no_kernel_is_left_over")


@beside_dense
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_product_is_the_dense_one(kernel, family, product):
    for n in (1, 2, 3, 8, 17, 100):
        given = arguments((n,), seed=n)
        ours, theirs = (results(k, product, *given, family) for k in (kernel, "dense"))
        # Of one item all that remains are exact zeros, or their rounding errors.
        assert_alike(ours, theirs, AGREEMENT[family], least=1e-3 if n == 1 else 0.0)


@beside_dense
@pytest.mark.parametrize("product", PRODUCTS)
def test_batches(kernel, family, product):
    for shape in ((3, 5), (2, 0, 5), (2, 3, 5)):
        given = arguments(shape)
        ours, theirs = (results(k, product, *given, family) for k in (kernel, "dense"))
        assert_alike(ours, theirs, AGREEMENT[family])


LONG = ["P.T @ u, 3 features", "log_prob"]


@needs_native
@every_metric
@pytest.mark.parametrize("product", LONG)
def test_long_rows_by_blocks(metric, product, monkeypatch):
    """Tiles are the reference here: dense rows, a few at a time."""
    monkeypatch.setattr(tiled, "TILE", 1 << 20)
    given = arguments((BLOCK + 7,), seed=1)
    ours, theirs = (results(k, product, *given, metric) for k in ("native", "tiled"))
    assert_alike(ours, theirs, MANY_ITEMS[metric])


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        pytest.param("native", torch.float32, marks=needs_native),
        pytest.param("native", torch.float64, marks=needs_native),
        ("tiled", torch.float64),
    ],
)
@pytest.mark.parametrize("product", ["P @ v, 3 features", "P.T @ u", "sort", "log_prob"])
@pytest.mark.parametrize("n", [257, 1030])
def test_long_rows_of_neuralsort_are_the_dense_ones(kernel, product, n, dtype, monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 1 << 18)
    x, v, tau = arguments((2, n), dtype, seed=n)
    for factor in (1 / 8, 100.0):
        given = x, v, tau * factor
        expected = results("dense", product, *(t.double() for t in given), "neuralsort")
        found = results(kernel, product, *given, "neuralsort")
        for table, a, b in zip([VALUES] + [GRADIENTS] * 3, found, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                # The rounding of dense logits, which are differences, is more than the table has.
                assert_close(a, b, max(table[str(dtype)[6:]], GRADIENTS["float64"]))


@fast_engine
@pytest.mark.parametrize("wanted", list(itertools.product([False, True], repeat=3)))
def test_any_subset_may_require_gradients(kernel, family, wanted):
    for product in ("P @ v, 2 features", "P.T @ u", "log_prob", "sort"):
        given = arguments((2, 9))
        ours = results(kernel, product, *given, family, wanted)
        theirs = results("dense", product, *given, family, wanted)
        assert_alike(ours, theirs, COMPOSITE[family])


@every_engine
def test_values_broadcast_over_the_batch_and_the_batch_over_values(kernel, family):
    x, v, tau = arguments((2, 6))
    wide = torch.randn(4, 1, 6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for values in (v[0][:, None], wide, wide[0], wide.expand(4, 2, 6, 3)):
        found = []
        for k in (kernel, "dense"):
            leaves = [t.clone().requires_grad_() for t in (x, values, tau)]
            with so.config(kernel=k):
                P = make(family, leaves[2])(leaves[0])
                y = torch.cat([P @ leaves[1], P.T @ leaves[1]])
            found.append([y, *torch.autograd.grad(weigh(y), leaves)])
        assert_alike(*found, COMPOSITE[family])


@fast_engine
def test_strides_do_not_matter(kernel, family):
    x, v, tau = arguments((6, 8))
    with so.config(kernel=kernel):
        for s, w in (
            (x.mT, v.mT),
            (x[:, ::2], v[:, ::2]),
            (x[0].expand(3, 8), v[0].expand(3, 8)),
            (x[:, :1].expand(6, 8), v[:, :1].expand(6, 8)),
            (x.flip(-1)[1:], v.flip(0)[1:]),
        ):
            how = make(family, tau[0])
            for product in ("P @ v", "P.T @ u", "rank", "log_prob", "sort"):
                ours = PRODUCTS[product](s, how, w)
                plain = PRODUCTS[product](
                    s.clone(memory_format=torch.contiguous_format),
                    how,
                    w.clone(memory_format=torch.contiguous_format),
                )
                assert torch.equal(ours, plain)


@fast_engine
def test_a_gradient_that_comes_in_expanded_or_transposed(kernel, family):
    x, v, _ = arguments((4, 4))
    with so.config(kernel=kernel):
        for transform in (lambda y: y.sum(), lambda y: weigh(y.mT)):
            leaf = x.clone().requires_grad_()
            (ours,) = torch.autograd.grad(transform(so.sort(v, make(family, 0.5), by=leaf)), leaf)
            leaf = x.clone().requires_grad_()
            with so.config(kernel="dense"):
                y = so.sort(v, make(family, 0.5), by=leaf)
            (theirs,) = torch.autograd.grad(transform(y), leaf)
            torch.testing.assert_close(
                ours, theirs, atol=VALUES["float64"], rtol=GRADIENTS["float64"]
            )


@every_engine
@pytest.mark.parametrize("dim", [0, 1, -2, -3])
def test_any_dim(kernel, family, dim):
    x, v, _ = arguments((3, 4, 5))
    how = make(family, 0.4)
    with so.config(kernel=kernel):
        ours = so.sort(v, how, dim=dim, by=x), so.rank(x, how, dim=dim)
    with so.config(kernel="dense"):
        last = (
            so.sort(v.movedim(dim, -1), how, by=x.movedim(dim, -1)),
            so.rank(x.movedim(dim, -1), how),
        )
    for a, b in zip(ours, last, strict=True):
        assert_close(a, b.movedim(-1, dim), AGREEMENT["abs"])


@needs_native
@pytest.mark.parametrize("few", [1, 1 << 30])
def test_a_few_rows_are_the_rows_of_all(few, monkeypatch):
    """Alone where they are few, out of all of them otherwise."""
    monkeypatch.setattr(native, "FEW", few)
    x, v, tau = arguments((2, 60))
    rows = torch.tensor([0, 7, 7, -1])
    found = []
    for kernel in ("native", "dense"):
        leaves = [t.clone().requires_grad_() for t in (x, v, tau)]
        with so.config(kernel=kernel):
            P = so.NeuralSort(leaves[2])(leaves[0])
            y = P.apply(leaves[1], rows=rows)
            w = P.T.apply(leaves[1][:, :4], rows=rows)
        found.append([y, w, *torch.autograd.grad(weigh(y) + weigh(w), leaves)])
    assert_alike(*found, AGREEMENT["neuralsort"])


@fast_engine
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(kernel, family, dtype):
    x, v, tau = arguments((3, 20), dtype)
    for product in ("P @ v, 2 features", "P.T @ u", "rank", "sort", "log_prob", "entropy"):
        ours = results(kernel, product, x, v, tau.float(), family)
        wide = results(kernel, product, x.float(), v.float(), tau.float(), family)
        assert ours[0].dtype == (torch.float32 if product == "rank" else dtype)
        for a, b in zip(ours[:1], wide[:1], strict=True):
            assert_close(a, b, VALUES)


@fast_engine
def test_v_may_be_wider_than_the_scores_or_whole_numbers(kernel, family):
    x, v, _ = arguments((2, 6), torch.float32)
    with so.config(kernel=kernel):
        wide = make(family, 0.5)(x) @ v.double()[..., None]
        assert wide.dtype == torch.float64
        with so.config(kernel="dense"):
            expected = make(family, 0.5)(x.double()) @ v.double()[..., None]
        exact = kernel == "native" and family != "neuralsort"
        assert_close(wide, expected, VALUES if exact else ENGINE_VALUES["abs", "float32"])
        narrow = make(family, 0.5)(x.double()) @ v[..., None]
        assert narrow.dtype == torch.float64
        whole = make(family, 0.5)(x) @ torch.arange(6)
        assert_close(
            whole, make(family, 0.5)(x) @ torch.arange(6.0), ENGINE_VALUES["abs", "float32"]
        )
        P = make(family, 0.5)(x)
        spread = P.T @ torch.arange(6.0)
        assert_close(P.T @ torch.arange(6), spread, ENGINE_VALUES["abs", "float32"])


@every_engine
def test_numpy_gives_what_torch_gives(kernel, family):
    x, v, tau = arguments((2, 30))
    how, other = make(family, tau), make(family, tau.numpy())
    with so.config(kernel=kernel):
        for product in ("P @ v", "P.T @ u"):
            ours = other(x.numpy()), how(x)
            if product == "P.T @ u":
                ours = [P.T for P in ours]
            assert_close(
                ours[0] @ v.numpy()[..., None], ours[1] @ v[..., None], SAME_ENGINE[family]
            )
        assert_close(so.sort(x.numpy(), other), so.sort(x, how), SAME_ENGINE[family])
        assert_close(so.rank(x.numpy(), other), so.rank(x, how), SAME_ENGINE[family])
        assert_close(other(x.numpy()).entropy(), how(x).entropy(), VALUES)
        order = how(x).order
        assert_close(
            other(x.numpy()).log_prob(order.numpy()), how(x).log_prob(order), SAME_ENGINE[family]
        )


@fast_engine
def test_a_thousand_features(kernel, family):
    x = arguments((20,))[0]
    v = torch.randn(20, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    v.requires_grad_()
    with so.config(kernel=kernel):
        y = make(family, 0.4)(x) @ v
    assert_close(y, as_numpy(make(family, 0.4)(x).matrix()) @ as_numpy(v), VALUES)
    y.sum().backward()
    assert v.grad.shape == v.shape
