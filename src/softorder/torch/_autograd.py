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

from softorder._extension import extension, make_call
from softorder._kernels.definitions import define
from softorder._kernels.products import Call
from softorder._kernels.scan import chunked_scan, scan_gradient, shift
from softorder._kernels.scores import SortedRows
from softorder.torch._tracing import is_tracing, is_transformed, native_can_read

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
    return scan_gradient(_NAMESPACE, scan, gate, f, g, lambda x: x.conj().resolve_conj())


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

    can_read = staticmethod(native_can_read)

    @staticmethod
    def is_on_cpu(x: Tensor) -> bool:
        """Tell whether x is on the CPU."""
        return x.device.type == "cpu"

    @staticmethod
    def sort(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the order of (rows, n) scores, and the sorted scores."""
        return _sort_op(scores.detach(), valid) if is_tracing() else _sort(scores, valid)

    @staticmethod
    def product(
        call: Call, scores: Tensor, values: Tensor | None, scale: Tensor | float, rows: SortedRows
    ) -> Tensor:
        """Return a product; see `_array.NativeProducts`."""
        if not torch.compiler.is_compiling():
            return _Product.apply(scores, values, scale, rows, call)  # pyright: ignore
        return _product_op(scores, values, *_operands(scores, scale, rows), *call.fields)


def _operands(scores: Tensor, scale: Tensor | float, rows: SortedRows) -> tuple[Any, ...]:
    """Return what the custom operators are given between the values and the call."""
    if isinstance(scale, float):
        scale = scores.new_full((1,), scale, dtype=torch.float64)
    return scale, rows.sorted, rows.order, rows.counts


def _view(x: Tensor | None) -> Any:
    """Return a contiguous NumPy view of a tensor; None stays None."""
    if x is None:
        return None
    # `detach` takes longer than this test.
    if x.requires_grad:
        x = x.detach()
    return x.numpy() if x.is_contiguous() else x.contiguous().numpy()


def _sort(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    x = _view(scores)
    # NumPy arrays are quicker to make than tensors.
    order, positions = numpy.empty(x.shape, numpy.int64), numpy.empty_like(x)
    extension.sort(x, _view(valid), order, positions, torch.get_num_threads())
    return torch.from_numpy(order), torch.from_numpy(positions)


def _make_call(
    call: Call,
    values: Tensor | None,
    scale: Tensor | float,
    positions: Tensor,
    order: Tensor,
    counts: Tensor | None,
    saved: Any = None,
) -> Any:
    scales: Any = _view(scale) if isinstance(scale, Tensor) else scale
    rows = _view(positions), _view(order), _view(counts)
    return make_call(call, rows, scales, _view(values), saved, torch.get_num_threads())


def _empty_like(x: Tensor) -> Tensor:
    """Return a contiguous tensor of the shape of x; quicker than torch.empty."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _shape_of(x: Tensor | None) -> Sequence[int] | None:
    return None if x is None else x.shape


def _forward(held: Any, call: Call, scores: Tensor, values: Tensor | None) -> Tensor:
    shape = call.result_shape(scores.shape, _shape_of(values))
    out = _empty_like(scores) if shape == scores.shape else scores.new_empty(shape)
    held.forward(out.numpy())
    return out


def _backward(
    held: Any, g: Tensor, wanted: Sequence[bool], shape: Sequence[int], values: Tensor | None
) -> list[Tensor | None]:
    """Return the gradients of scores (of a shape), values and scale (by row) that are wanted."""
    to = [
        (_empty_like(g) if g.shape == shape else g.new_empty(shape)) if wanted[0] else None,
        g.new_empty(values.shape) if wanted[1] and values is not None else None,
        g.new_empty(g.shape[:1], dtype=torch.float64) if wanted[2] else None,
    ]
    if g._is_zerotensor():  # a gradient that autograd knows to be zero, without memory
        g = g.clone()
    held.backward(_view(g), *[None if x is None else x.numpy() for x in to])
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
        rows: SortedRows,
        call: Call,
    ) -> Tensor:
        ctx.rows, ctx.call, ctx.held = rows, call, None
        ctx.number = scale if isinstance(scale, float) else None
        ctx.save_for_backward(scores, values, None if isinstance(scale, float) else scale)
        if is_tracing():
            return _product_op(scores, values, *_operands(scores, scale, rows), *call.fields)
        size = call.saved_size(scores.shape, _shape_of(values))
        saved = numpy.empty(size) if size and True in ctx.needs_input_grad else None
        arrays = rows.sorted, rows.order, rows.counts
        ctx.held = _make_call(call, values, scale, *arrays, saved)
        return _forward(ctx.held, call, scores, values)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        scores, values, scale = ctx.saved_tensors
        scale = ctx.number if scale is None else scale
        wanted = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or not native_can_read(g):
            to = _gradients_with_graph(ctx.call, ctx.rows, (scores, values, scale), wanted, g)
        elif is_tracing():
            operands = _operands(scores, scale, ctx.rows)
            found = _product_backward_op(g.contiguous(), values, *operands, *ctx.call.fields)
            to = [x if want else None for x, want in zip(found, wanted, strict=True)]
        else:
            arrays = ctx.rows.sorted, ctx.rows.order, ctx.rows.counts
            held = ctx.held or _make_call(ctx.call, values, scale, *arrays)
            to = _backward(held, g, wanted, scores.shape, values)
        return (*to, None, None)


def _gradients_with_graph(
    call: Call, rows: SortedRows, arrays: tuple[Any, ...], wanted: Sequence[bool], g: Tensor
) -> list[Tensor | None]:
    """Return gradients that can be differentiated again, in any mode."""
    from softorder.torch._wiring import TORCH

    # Views, so that the gradient stops here and not at a tensor that depends on another of them.
    with torch.enable_grad():
        arrays = tuple(x.view_as(x) if isinstance(x, Tensor) else x for x in arrays)
    inputs = [x for x, want in zip(arrays, wanted, strict=True) if want]
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        product = define(TORCH, call, rows.order, rows.counts, *arrays)
    found = iter(torch.autograd.grad(product, inputs, g, create_graph=create_graph))
    return [next(found) if want else None for want in wanted]


@torch.library.custom_op("softorder::sort", mutates_args=())
def _sort_op(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    return _sort(scores, valid)


@_sort_op.register_fake
def _(scores: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape, dtype=torch.int64), scores.new_empty(scores.shape)


# What follows the first argument of an operator: the operands, and the fields of the call.
_OPERANDS = (
    "Tensor? values, Tensor scale, Tensor positions, Tensor order, Tensor? counts, "
    "str product, str formula, bool own_scores, bool flip"
)


@torch.library.custom_op(
    "softorder::product", mutates_args=(), schema=f"(Tensor scores, {_OPERANDS}) -> Tensor"
)
def _product_op(scores: Tensor, *operands: Any) -> Tensor:
    call, held, values = _call_of_operands(*operands)
    return _forward(held, call, scores, values)


@_product_op.register_fake
def _(scores: Tensor, values: Tensor | None, *others: Any) -> Tensor:
    call = Call.of_fields(*others[4:])
    return scores.new_empty(call.result_shape(scores.shape, _shape_of(values)))


@torch.library.custom_op(
    "softorder::product_backward",
    mutates_args=(),
    schema=f"(Tensor g, {_OPERANDS}) -> (Tensor, Tensor, Tensor)",
)
def _product_backward_op(g: Tensor, *operands: Any) -> tuple[Tensor | None, ...]:
    _, held, values = _call_of_operands(*operands)
    # The gradient is empty where there are no values, or indices.
    wanted = (True, _has_gradient(values), True)
    shape = operands[2].shape
    to_scores, to_values, to_scale = _backward(held, g, wanted, shape, values)
    return to_scores, g.new_empty(0) if to_values is None else to_values, to_scale


@_product_backward_op.register_fake
def _(g: Tensor, values: Tensor | None, _scale: Tensor, positions: Tensor, *_: Any) -> Any:
    return (
        g.new_empty(positions.shape),
        g.new_empty(values.shape if values is not None and _has_gradient(values) else 0),
        g.new_empty(g.shape[:1], dtype=torch.float64),
    )


def _call_of_operands(
    values: Tensor | None, scale: Tensor, *others: Any
) -> tuple[Call, Any, Tensor | None]:
    call = Call.of_fields(*others[3:])
    return call, _make_call(call, values, scale, *others[:3]), values


def _has_gradient(values: Tensor | None) -> bool:
    return values is not None and values.is_floating_point()


def _setup_product(ctx: Any, inputs: Any, output: Any) -> None:
    _, values, scale, positions, order, counts, *ctx.fields = inputs
    ctx.save_for_backward(values, scale, positions, order, counts)


def _product_gradient(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    values, scale, *rest = ctx.saved_tensors
    to_scores, to_values, to_scale = _product_backward_op(
        g.contiguous(), values, scale, *rest, *ctx.fields
    )
    if scale.shape[0] == 1:
        to_scale = to_scale.sum(0, keepdim=True)
    to_values = to_values if _has_gradient(values) else None
    return to_scores, to_values, to_scale, *[None] * (len(rest) + len(ctx.fields))


_product_op.register_autograd(_product_gradient, setup_context=_setup_product)
