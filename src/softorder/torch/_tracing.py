"""What can be known of a tensor, and of the transformations that are looking at it, right now."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C._functorch import (
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    maybe_current_level,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# What tracers put in place of these: operators of our own serve them too.
_TRACED_TYPES = (*_PLAIN_TYPES, FakeTensor, FunctionalTensor)


def is_tracing() -> bool:
    """Tell whether a compiler, make_fx or any other dispatch mode is looking on.

    It sees the operators of torch, and what they return. What the native kernel writes into such
    a tensor afterwards it does not see: it must be called as an operator.
    """
    return torch.compiler.is_compiling() or is_in_torch_dispatch_mode()


# Before torch 2.7 a compiler that only compiles cannot be told from one that exports.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


def sizes_may_vary(sizes: Sequence[int]) -> bool:
    """Tell whether a program is exported in which these sizes may vary."""
    return _is_exporting() and any(isinstance(size, torch.SymInt) for size in sizes)


def has_values(x: torch.Tensor) -> bool:
    """Tell whether the values of x can be looked at now, if need be by waiting for its device."""
    if is_tracing() or isinstance(x, FakeTensor):
        return False
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    return x.device.type != "meta" and not is_functorch_wrapped_tensor(x)


def is_concrete(x: torch.Tensor) -> bool:
    """Tell whether the values of x can be looked at now and cheaply."""
    return x.device.type == "cpu" and has_values(x)


def trace() -> object:
    """Return what tells inference mode, whose tensors cannot be part of a graph, from None."""
    is_inferring = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
    return "inference" if is_inferring else None


def survives_backward() -> bool:
    """Tell whether no backward pass will free what is computed now: a compiler has one for all.

    Not by whether gradients are enabled: a view that is made without them may be used with them.
    """
    return torch.compiler.is_compiling()


@torch.compiler.assume_constant_result
def _has_level() -> bool:
    return maybe_current_level() is not None


def is_transformed() -> bool:
    """Tell whether torch.func or forward mode is at work, also while a compiler traces."""
    return _has_level() or forward_ad._current_level >= 0


def native_can_read(*arrays: object) -> bool:
    """Tell whether the native kernel can read these tensors, and whether first derivatives suffice.

    Arguments that are not tensors are ignored. While a compiler traces, what it will run counts.
    """
    if torch.compiler.is_compiling():
        on_cpu = all(x.device.type == "cpu" for x in arrays if isinstance(x, torch.Tensor))
        return on_cpu and not is_transformed()
    if torch._C._get_tracing_state() is not None or maybe_current_level() is not None:
        return False
    types = _TRACED_TYPES if is_in_torch_dispatch_mode() else _PLAIN_TYPES
    # A loop: this is asked three times in every small sort, and a generator would take as long.
    for x in arrays:
        if not isinstance(x, torch.Tensor):
            continue
        if type(x) not in types or not x.is_cpu or is_legacy_batchedtensor(x):
            return False
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None:
            return False
    return True
