"""The scan and the native products as differentiable functions of torch. No mathematics.

Each comes twice. In eager mode it is an `autograd.Function`, for it has derivatives of every kind.
A compiler cannot look into one that has a forward-mode rule, so that what it sees is a custom
operator, which has a first derivative and is otherwise opaque; under torch.func or forward mode
inside a compiled region it sees plain operations. Tracers below autograd, such as make_fx, look
into the functions, and see custom operators there in place of the native kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import array_api_compat.torch as xp
import numpy
import torch
from torch import Tensor
from torch.autograd.function import _SingleLevelFunction

from softorder._array import NativeProblem
from softorder._extension import extension
from softorder._kernels.native import PRODUCTS, given_arrays
from softorder._kernels.scan import chunked_scan, shift
from softorder.torch._tracing import is_plain, is_tracing, is_transformed

# torch.concat, which is torch.cat, lacks the rule for a batch of gradients (is_grads_batched).
_NAMESPACE = SimpleNamespace(**{**vars(xp), "concat": lambda x, axis: torch.cat(x, axis)})


def scan(gate: Tensor, v: Tensor) -> Tensor:
    """Return F with F_i = v_i + gate_i F_{i-1}: gate (..., n), v (..., c, n)."""
    gate = gate.expand(*v.shape[:-2], v.shape[-1])
    if not torch.compiler.is_compiling():
        return _Scan.apply(gate, v)  # pyright: ignore[reportReturnType]
    # A custom operator has no forward mode, and would give zeros without a word.
    return chunked_scan(xp, gate, v) if is_transformed() else _scan_op(gate, v)


def _chunked_scan(gate: Tensor, v: Tensor) -> Tensor:
    return chunked_scan(_NAMESPACE, gate, v)


def _scan_gradient(gate: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the gate and of v: the same recurrence from the other end."""
    after = torch.cat([gate[..., 1:], torch.zeros_like(gate[..., :1])], -1).conj()
    to_v = scan(after.flip(-1).resolve_conj(), g.flip(-1)).flip(-1)
    return (to_v * shift(_NAMESPACE, f).conj()).sum(-2), to_v


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(gate: Tensor, v: Tensor) -> Tensor:  # pyright: ignore
        return _chunked_scan(gate, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        gate, f = ctx.saved_tensors
        return _scan_gradient(gate, f, g)

    @staticmethod
    def jvp(ctx: Any, to_gate: Tensor | None, to_v: Tensor | None) -> Tensor:  # pyright: ignore
        gate, f = ctx.saved_tensors
        tangent = torch.zeros_like(f) if to_v is None else to_v
        if to_gate is not None:
            tangent = tangent + to_gate[..., None, :] * shift(_NAMESPACE, f)
        return scan(gate, tangent)

    @staticmethod
    def vmap(info: Any, in_dims: Any, gate: Tensor, v: Tensor) -> tuple[Tensor, int]:  # pyright: ignore
        gate, v = (_batch_first(x, dim, info) for x, dim in zip((gate, v), in_dims, strict=True))
        return scan(gate, v), 0


def _batch_first(x: Tensor, dim: int | None, info: Any) -> Tensor:
    """Return x with vmap's dimension in front."""
    return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)


@torch.library.custom_op("softorder::scan", mutates_args=())
def _scan_op(gate: Tensor, v: Tensor) -> Tensor:
    return _chunked_scan(gate, v).contiguous()


@_scan_op.register_fake
def _(gate: Tensor, v: Tensor) -> Tensor:
    return torch.empty_like(v, memory_format=torch.contiguous_format)


_scan_op.register_autograd(
    lambda ctx, g: _scan_gradient(ctx.saved_tensors[0], ctx.saved_tensors[1], g),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output),
)


class NativeProducts:
    """The native kernel for CPU tensors."""

    @staticmethod
    def sort(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the order of (rows, n) scores, and the sorted scores."""
        return _sort_op(scores.detach(), valid) if is_tracing() else _sort(scores, valid)

    @staticmethod
    def product(
        kind: str,
        scores: Tensor,
        values: Tensor | None,
        scale: Tensor | float,
        problem: NativeProblem,
    ) -> Tensor:
        """Return a product of `_kernels.native.PRODUCTS`."""
        if not torch.compiler.is_compiling():
            return _Product.apply(scores, values, scale, problem, kind)  # pyright: ignore
        return _product_op(scores, values, *_operands(scores, scale, problem), kind)


def _operands(scores: Tensor, scale: Tensor | float, problem: NativeProblem) -> tuple[Any, ...]:
    """Return what the custom operators are given between the values and the kind."""
    if isinstance(scale, float):
        scale = scores.new_full((1,), scale, dtype=torch.float64)
    return scale, problem.positions, problem.order, problem.counts, problem.power


def _view(x: Tensor | None) -> Any:
    """Return a contiguous NumPy view of a tensor; None stays None."""
    if x is None:
        return None
    # Asking first is quicker than what would do nothing.
    if x.requires_grad:
        x = x.detach()
    if x._is_zerotensor():  # a gradient that autograd knows to be zero, without memory
        x = x.clone()
    return x.numpy() if x.is_contiguous() else x.contiguous().numpy()


def _sort(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    x = _view(scores)
    # Quicker than tensors seen as arrays.
    order, positions = numpy.empty(x.shape, numpy.int64), numpy.empty_like(x)
    extension.sort(x, _view(valid), order, positions, torch.get_num_threads())
    return torch.from_numpy(order), torch.from_numpy(positions)


def _given(
    scale: Tensor | float, positions: Tensor, order: Tensor, counts: Tensor | None, power: float
) -> tuple[Any, ...]:
    scales = _view(scale) if isinstance(scale, Tensor) else scale
    arrays = (_view(positions), _view(order), _view(counts))
    return given_arrays(*arrays, scales, power, torch.get_num_threads())


def _views(problem: NativeProblem, scale: Tensor | float) -> tuple[Any, ...]:
    """Return what the extension is given first; made once for a problem."""
    p = problem
    if p.views is None:
        p.views = _given(scale, p.positions, p.order, p.counts, p.power)
    return p.views


def _empty_like(x: Tensor) -> Tensor:
    """Return a contiguous tensor of the shape of x; quicker than torch.empty."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _output_shape(kind: str, scores: Tensor, values: Tensor | None) -> Sequence[int]:
    return PRODUCTS[kind].shape(scores.shape, None if values is None else values.shape)


def _evaluate(
    kind: str, scores: Tensor, values: Tensor | None, given: tuple[Any, ...], kept: Any = None
) -> Tensor:
    shape = _output_shape(kind, scores, values)
    out = _empty_like(scores) if shape == scores.shape else scores.new_empty(shape)
    PRODUCTS[kind].forward(given, _view(values), out.numpy(), kept)
    return out


def _evaluate_backward(
    kind: str,
    g: Tensor,
    wanted: Sequence[bool],
    values: Tensor | None,
    given: tuple[Any, ...],
    kept: Any = None,
) -> list[Tensor | None]:
    """Return the gradients of scores, values and scale (one for each row) that are wanted."""
    to = [
        (_empty_like(g) if g.ndim == 2 else g.new_empty(given[0].shape)) if wanted[0] else None,
        g.new_empty(values.shape) if wanted[1] and values is not None else None,
        g.new_empty(g.shape[:1], dtype=torch.float64) if wanted[2] else None,
    ]
    views = [None if t is None else t.numpy() for t in to]
    PRODUCTS[kind].backward(given, _view(values), _view(g), *views, kept)
    return to


class _Product(_SingleLevelFunction):
    # torch.func never comes here: what autograd.Function does for it, and setup_context, would cost
    # as much as a small sort.
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any,
        scores: Tensor,
        values: Tensor | None,
        scale: Tensor | float,
        problem: NativeProblem,
        kind: str,
    ) -> Tensor:
        ctx.problem, ctx.kind = problem, kind
        ctx.number = scale if isinstance(scale, float) else None
        ctx.save_for_backward(scores, values, None if isinstance(scale, float) else scale)
        ctx.kept = None
        if is_tracing():
            return _product_op(scores, values, *_operands(scores, scale, problem), kind)
        kept = PRODUCTS[kind].kept
        if kept is not None and True in ctx.needs_input_grad:
            ctx.kept = numpy.empty(kept(scores.shape, None if values is None else values.shape))
        return _evaluate(kind, scores, values, _views(problem, scale), ctx.kept)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        scores, values, scale = ctx.saved_tensors
        scale = ctx.number if scale is None else scale
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not is_plain(g):
            to = _gradients_with_graph(ctx.kind, ctx.problem, (scores, values, scale), wanted, g)
        elif is_tracing():
            operands = _operands(scores, scale, ctx.problem)
            found = _product_backward_op(g.contiguous(), values, *operands, ctx.kind)
            to = [x if want else None for x, want in zip(found, wanted, strict=True)]
        else:
            views = _views(ctx.problem, scale)
            to = _evaluate_backward(ctx.kind, g, wanted, values, views, ctx.kept)
        return (*to, None, None)


def _gradients_with_graph(
    kind: str,
    problem: NativeProblem,
    arrays: tuple[Any, ...],
    wanted: Sequence[bool],
    g: Tensor,
) -> list[Tensor | None]:
    """Return gradients that can be differentiated again, in any mode."""
    # Views, so that the gradient stops here and not at a tensor that depends on another of them.
    with torch.enable_grad():
        arrays = tuple(x.view_as(x) if isinstance(x, Tensor) else x for x in arrays)
    inputs = [x for x, want in zip(arrays, wanted, strict=True) if want]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        product = problem.recompute(kind, *arrays)
    found = iter(torch.autograd.grad(product, inputs, g, create_graph=again))
    return [next(found) if want else None for want in wanted]


@torch.library.custom_op("softorder::sort", mutates_args=())
def _sort_op(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    return _sort(scores, valid)


@_sort_op.register_fake
def _(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    return (
        scores.new_empty(scores.shape, dtype=torch.int64),
        scores.new_empty(scores.shape),
    )


@torch.library.custom_op("softorder::product", mutates_args=())
def _product_op(
    scores: Tensor,
    values: Tensor | None,
    scale: Tensor,
    positions: Tensor,
    order: Tensor,
    counts: Tensor | None,
    power: float,
    kind: str,
) -> Tensor:
    return _evaluate(kind, scores, values, _given(scale, positions, order, counts, power))


@_product_op.register_fake
def _(
    scores: Tensor,
    values: Tensor | None,
    scale: Tensor,
    positions: Tensor,
    order: Tensor,
    counts: Tensor | None,
    power: float,
    kind: str,
) -> Tensor:
    return scores.new_empty(_output_shape(kind, scores, values))


@torch.library.custom_op("softorder::product_backward", mutates_args=())
def _product_backward_op(
    g: Tensor,
    values: Tensor | None,
    scale: Tensor,
    positions: Tensor,
    order: Tensor,
    counts: Tensor | None,
    power: float,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor]:
    every = _given(scale, positions, order, counts, power)
    to_scores, to_values, to_scale = _evaluate_backward(kind, g, [True] * 3, values, every)
    to_values = g.new_empty(0) if to_values is None else to_values
    return to_scores, to_values, to_scale  # pyright: ignore[reportReturnType]


@_product_backward_op.register_fake
def _(
    g: Tensor,
    values: Tensor | None,
    scale: Tensor,
    positions: Tensor,
    order: Tensor,
    counts: Tensor | None,
    power: float,
    kind: str,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        g.new_empty(order.shape),
        g.new_empty(0 if values is None else values.shape),
        g.new_empty(g.shape[:1], dtype=torch.float64),
    )


def _setup_product(ctx: Any, inputs: Any, output: Any) -> None:
    _, values, scale, positions, order, counts, ctx.power, ctx.kind = inputs
    ctx.save_for_backward(values, scale, positions, order, counts)


def _product_gradient(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    values, scale, *rest = ctx.saved_tensors
    to_scores, to_values, to_scale = _product_backward_op(
        g.contiguous(), values, scale, *rest, ctx.power, ctx.kind
    )
    if scale.shape[0] == 1:
        to_scale = to_scale.sum(0, keepdim=True)
    to_values = None if values is None else to_values
    return to_scores, to_values, to_scale, None, None, None, None, None


_product_op.register_autograd(_product_gradient, setup_context=_setup_product)
