"""The engines in the hands of torch: compiled, transformed, cast, subclassed."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import jvp, vmap

import softorder as so
from engines import arguments, assert_alike, fast_engine, make, weigh
from inside import ABS, NEURALSORT, SQUARE, Call, Product, extension_module
from tolerances import COMPOSITE, ENGINE_VALUES, GRADIENTS, assert_close

pytestmark = pytest.mark.usefixtures("tiny_tiles", "no_kernel_is_left_over")


@pytest.mark.slow
@fast_engine
def test_compiled_in_one_graph_forward_and_backward(kernel, family):
    if (kernel, family) == ("portable", "square"):
        pytest.skip("the same graph with complex numbers, which takes ten seconds to trace")
    torch._dynamo.reset()
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 2] = False

    def function(x, v, tau):
        how = make(family, tau)
        y = so.sort(x, how, mask=mask) + so.sort(v, how, by=x)
        if kernel == "portable":  # it takes long to trace
            return y
        P = how(x)
        y = y + (P.T @ v[..., None])[..., 0] + so.topk_mask(x, 4, 0.5)
        return y + so.rank(x, how) + P.log_prob(P.order)[:, None] + P.entropy()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = []
    with so.config(kernel=kernel):
        for f in (compiled, function):
            leaves = [t.clone().requires_grad_() for t in arguments((2, 6))]
            y = f(*leaves)
            found.append([y, *torch.autograd.grad(weigh(y), leaves)])
    assert_alike(*found, COMPOSITE[family])


@pytest.mark.slow
@fast_engine
def test_forward_mode_inside_a_compiled_region_is_never_silently_zero(kernel, family):
    torch._dynamo.reset()
    x = arguments((6,))[0]

    def function(x):
        return jvp(lambda x: so.sort(x, make(family, 0.5)), (x,), (torch.ones_like(x),))[1]

    with so.config(kernel=kernel):
        compiled = torch.compile(function, backend="aot_eager")
        try:
            tangent = compiled(x)
        except Exception:
            return  # an error is fine, a silent zero is not
        assert_close(tangent, torch.ones_like(x), COMPOSITE[family])


@pytest.mark.slow
@fast_engine
def test_forward_mode_through_a_compiled_function_is_never_silently_zero(kernel, family):
    torch._dynamo.reset()
    x = arguments((6,))[0]
    compiled = torch.compile(lambda x: so.sort(x, make(family, 0.5)), backend="aot_eager")
    with so.config(kernel=kernel), forward_ad.dual_level():
        try:
            y = compiled(forward_ad.make_dual(x, torch.ones_like(x)))
        except Exception:
            return  # an error is fine, a silent zero is not
        tangent = forward_ad.unpack_dual(y).tangent
        assert tangent is not None
        assert_close(tangent, torch.ones_like(x), COMPOSITE[family])


@pytest.mark.slow
@fast_engine
def test_vmap_inside_a_compiled_region(kernel, family):
    torch._dynamo.reset()
    x = arguments((3, 6))[0]
    with so.config(kernel=kernel):
        compiled = torch.compile(vmap(lambda x: so.sort(x, make(family, 0.5))), backend="aot_eager")
        assert_close(compiled(x), so.sort(x, make(family, 0.5)), GRADIENTS)


@pytest.mark.slow
@fast_engine
def test_grad_transform_inside_a_compiled_region(kernel, family):
    torch._dynamo.reset()
    x = arguments((6,))[0]

    def function(x):
        return torch.func.grad(lambda x: weigh(so.sort(x, make(family, 0.5))))(x)

    with so.config(kernel=kernel):
        assert_close(torch.compile(function, backend="aot_eager")(x), function(x), GRADIENTS)


def operator_samples():
    """Yield (operator, arguments) for torch.library.opcheck."""
    ops = torch.ops.softorder
    x, v, _ = arguments((2, 5))
    x.requires_grad_()
    u = torch.stack([v, v], -1).requires_grad_()
    scale = torch.tensor([0.5, 0.7], dtype=torch.float64, requires_grad=True)
    order = x.detach().argsort(dim=-1, descending=True, stable=True)
    positions = x.detach().gather(-1, order)
    mask = torch.ones(2, 5, dtype=torch.bool)
    counts = torch.tensor([5, 3])
    yield ops.sort, (x.detach(), None)
    yield ops.sort, (x.detach(), mask)
    apply, transposed, log_prob = Product
    for formula, number in ((ABS, None), (SQUARE, counts), (NEURALSORT, counts)):
        given = (scale, positions, order, number)
        fixed = (scale.detach(), *given[1:])
        own = Call(apply, formula, own_scores=True, flip=True).fields
        items = order.flip(-1)
        yield ops.product, (x, None, *given, *own)
        yield ops.product_backward, (x.detach(), None, *fixed, *own)
        yield ops.product, (x, items, *given, *Call(log_prob, formula).fields)
        yield (
            ops.product_backward,
            (x[:, 0].detach(), items, *fixed, *Call(log_prob, formula).fields),
        )
        for product in (apply, transposed):
            call = Call(product, formula).fields
            yield ops.product, (x, u, *given, *call)
            yield ops.product_backward, (u.detach(), u.detach(), *fixed, *call)
    w = u.detach().mT.contiguous()
    yield ops.scan, (x.detach().sigmoid().requires_grad_(), w.clone().requires_grad_())
    gate = torch.polar(x.detach().sigmoid(), x.detach()).requires_grad_()
    yield ops.scan, (gate, w.to(torch.complex128).requires_grad_())


@pytest.mark.parametrize(
    ("operator", "given"),
    [pytest.param(*sample, id=f"{i}-{sample[0]}") for i, sample in enumerate(operator_samples())],
)
def test_the_custom_operators_keep_the_rules_of_torch(operator, given):
    if operator is not torch.ops.softorder.scan and extension_module.extension is None:
        pytest.skip("no native kernel")
    torch.library.opcheck(operator.default, given)


@fast_engine
def test_autocast_changes_nothing(kernel, family):
    x, v, _ = arguments((2, 9), torch.float32)
    with so.config(kernel=kernel):
        plain = make(family, 0.5)(x) @ v[..., None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            leaf = x.clone().requires_grad_()
            cast = make(family, 0.5)(leaf) @ v[..., None]
            cast.sum().backward()
    assert cast.dtype == torch.float32
    assert_close(cast, plain, ENGINE_VALUES["abs", "float32"])
    assert torch.isfinite(leaf.grad).all()


@fast_engine
def test_inference_mode_and_no_grad(kernel, family):
    x = arguments((5,))[0]
    with so.config(kernel=kernel):
        expected = so.sort(x, make(family, 0.5))
        with torch.inference_mode():
            assert torch.equal(so.sort(x.clone(), make(family, 0.5)), expected)
        with torch.no_grad():
            y = so.sort(x.requires_grad_(), make(family, 0.5))
        assert not y.requires_grad


@fast_engine
def test_a_parameter_and_a_tensor_of_a_subclass(kernel, family):
    class Mine(torch.Tensor):
        pass

    x = arguments((5,))[0]
    with so.config(kernel=kernel):
        expected = so.sort(x, make(family, 0.5))
        assert torch.equal(so.sort(nn.Parameter(x), make(family, 0.5)), expected)
        assert_close(so.sort(x.as_subclass(Mine), make(family, 0.5)), expected, GRADIENTS)
