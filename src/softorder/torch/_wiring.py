"""What PyTorch adds to the array API standard: autograd, tracing, autocast. No mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable

import array_api_compat.torch
import torch
import torch.utils.checkpoint

from softorder import _checks, _messages
from softorder._array import Wiring, joined_parts
from softorder.torch import _tracing
from softorder.torch._autograd import NativeProducts, scan
from softorder.torch._on_cpu import call_on_cpu


def _read(x: torch.Tensor, name: str) -> torch.Tensor:
    if x.layout is not torch.strided or x.is_nested:
        raise TypeError(_messages.not_dense(name, x))
    return x


def _take_along_axis(x: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    # torch.take_along_dim would do, but it fixes dynamic shapes when a model is exported.
    axis %= x.ndim

    # The sizes along the axis are not compared: that would fix them too where they happen to agree.
    def others(t: torch.Tensor) -> tuple[int, ...]:
        return (*t.shape[:axis], 1, *t.shape[axis + 1 :])

    of_x, of_index = others(x), others(index)
    if of_x == of_index:
        return torch.gather(x, axis, index)
    shape = torch.broadcast_shapes(of_x, of_index)
    x, index = (t.expand(*shape[:axis], -1, *shape[axis + 1 :]) for t in (x, index))
    return torch.gather(x, axis, index)


def _add_along_axis(x: torch.Tensor, index: torch.Tensor, n: int) -> torch.Tensor:
    batch = torch.broadcast_shapes(x.shape[:-2], index.shape[:-1])
    x = x.expand(*batch, *x.shape[-2:])
    index = index[..., None].expand(*batch, *x.shape[-2:])
    return x.new_zeros(*batch, n, x.shape[-1]).scatter_add(-2, index, x)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    device = a.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return torch.matmul(a, b)
    # It would do the one thing that half types must not do here: add up in half.
    with torch.autocast(device, enabled=False):
        return torch.matmul(a, b)


def _checkpoint(function: Callable[..., torch.Tensor], *arrays: torch.Tensor) -> torch.Tensor:
    # Under torch.func there are no hooks on saved tensors, and without gradients nothing to save.
    # What a compiler keeps is its own choice.
    if _tracing.is_tracing() or not torch.is_grad_enabled() or _tracing.is_transformed():
        return function(*arrays)
    result = torch.utils.checkpoint.checkpoint(function, *arrays, use_reentrant=False)
    assert isinstance(result, torch.Tensor)
    return result


# Tried with this one; before it, a compiled program is always careful.
_HAS_COND = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)


def _cond(
    predicate: torch.Tensor, usual: Callable[[], torch.Tensor], careful: Callable[[], torch.Tensor]
) -> torch.Tensor:
    if _tracing.has_values(predicate):
        return usual() if bool(predicate) else careful()
    # Inside torch.func, torch.cond cannot be compiled.
    if not _HAS_COND or not torch.compiler.is_compiling() or _tracing.is_transformed():
        return careful()
    # A branch must not return what it was given.
    return torch.cond(predicate, lambda: usual().clone(), careful)


def _gumbel(
    shape: tuple[int, ...], like: torch.Tensor, generator: torch.Generator | None
) -> torch.Tensor:
    _checks.check_generator(generator, torch.Generator, "torch.Generator().manual_seed(0)")
    uniform = torch.rand(shape, dtype=like.dtype, device=like.device, generator=generator)
    # Below 1 always, but 0 now and then.
    return -(-uniform.clamp(min=torch.finfo(like.dtype).tiny).log()).log()


TORCH = Wiring(
    name="torch",
    xp=array_api_compat.torch,
    is_compiling=torch.compiler.is_compiling,
    is_concrete=_tracing.is_concrete,
    is_recording=torch.is_grad_enabled,
    read=_read,
    stop_gradient=torch.Tensor.detach,
    take_along_axis=_take_along_axis,
    add_along_axis=_add_along_axis,
    matmul=_matmul,
    checkpoint=_checkpoint,
    trace=_tracing.trace,
    survives_backward=_tracing.survives_backward,
    copy=torch.clone,
    logsumexp=torch.logsumexp,
    cumulative_sum=torch.cumsum,
    # Not torch.special.ndtr, which has no second derivative in forward mode.
    normal_cdf=lambda x: 0.5 * torch.erfc(-math.sqrt(0.5) * x),
    call_on_cpu=call_on_cpu,
    gumbel=_gumbel,
    running_maximum=lambda x: x.cummax(-1).values,
    by_parts=joined_parts(torch.cat, _checkpoint),
    cond=_cond,
    fuses=torch.compiler.is_compiling,
    scan=scan,
    native=NativeProducts(),
    sizes_may_vary=_tracing.sizes_may_vary,
)
