"""What PyTorch adds to the array API standard: autograd, tracing, autocast. No mathematics."""

from __future__ import annotations

import array_api_compat.torch
import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from softorder._array import Wiring


def _is_concrete(x: torch.Tensor) -> bool:
    if torch.compiler.is_compiling() or isinstance(x, FakeTensor):
        return False
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace
        return False
    return x.device.type == "cpu" and not is_functorch_wrapped_tensor(x)


def _stop_gradient(x: torch.Tensor) -> torch.Tensor:
    return x.detach()


def _average_gradient(x: torch.Tensor, begins: torch.Tensor) -> torch.Tensor:
    run = begins.cumsum(-1)
    run = run - run[..., :1]
    # An exact zero that carries the derivative of x: its mean cannot overflow or round.
    zero = x - x.detach()
    total = torch.zeros_like(x).scatter_add(-1, run, zero)
    size = torch.zeros_like(x).scatter_add(-1, run, torch.ones_like(x))
    mean = (total / size.clamp(min=1)).gather(-1, run)
    return x.detach() + mean


def _take_along_axis(x: torch.Tensor, index: torch.Tensor, axis: int) -> torch.Tensor:
    # torch.take_along_dim would do, but it fixes dynamic shapes when a model is exported.
    axis %= x.ndim

    def others(t: torch.Tensor) -> tuple[int, ...]:
        return (*t.shape[:axis], 1, *t.shape[axis + 1 :])

    shape = torch.broadcast_shapes(others(x), others(index))
    x, index = (t.expand(*shape[:axis], -1, *shape[axis + 1 :]) for t in (x, index))
    return torch.gather(x, axis, index)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    device = a.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return torch.matmul(a, b)
    # It would do the one thing that half types must not do here: add up in half.
    with torch.autocast(device, enabled=False):
        return torch.matmul(a, b)


TORCH = Wiring(
    name="torch",
    xp=array_api_compat.torch,
    is_compiling=torch.compiler.is_compiling,
    is_concrete=_is_concrete,
    stop_gradient=_stop_gradient,
    average_gradient=_average_gradient,
    take_along_axis=_take_along_axis,
    matmul=_matmul,
)
