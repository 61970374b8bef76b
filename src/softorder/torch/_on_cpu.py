"""Functions of NumPy arrays inside a torch program, under compilers and torch.func too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor

from softorder._kernels.on_cpu import FUNCTIONS
from softorder.torch._tracing import is_tracing, native_can_read


def call_on_cpu(function: Callable[[numpy.ndarray], numpy.ndarray], x: Tensor) -> Tensor:
    """Return function(x), (..., n) indices from (..., k, n) of float64."""
    x = x.detach()
    if not is_tracing() and native_can_read(x):
        return torch.from_numpy(function(x.numpy()))
    return _call_on_cpu_op(function.__name__, x)


@torch.library.custom_op("softorder::call_on_cpu", mutates_args=())
def _call_on_cpu_op(name: str, x: Tensor) -> Tensor:
    return torch.from_numpy(FUNCTIONS[name](x.detach().cpu().numpy())).to(x.device)


@_call_on_cpu_op.register_fake
def _(name: str, x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-2], x.shape[-1]), dtype=torch.int64)


@_call_on_cpu_op.register_vmap
def _(info: Any, in_dims: Any, name: str, x: Tensor) -> tuple[Tensor, int]:
    return _call_on_cpu_op(name, x.movedim(in_dims[1], 0)), 0
