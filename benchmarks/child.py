"""The child process that makes one measurement; `runner` starts it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import BACKWARD, Shape
from benchmarks.implementation import Implementation
from benchmarks.registry import IMPLEMENTATIONS
from softorder_experiments.measuring import (
    answer_or_out_of_memory,
    peak_memory,
    serve,
    take_turns,
    time_call,
    time_calls,
)

Call = Callable[[], torch.Tensor]

ALL_ROWS_UP_TO = 2000
"""Longer results are compared in 32 rows only: the reference costs O(n) per row."""


def make_input(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x, uniform in [0, 1), and a cotangent, always with the same seed."""
    generator = torch.Generator().manual_seed(20)
    return torch.rand(shape, generator=generator), torch.randn(shape, generator=generator)


def make_call(implementation: Implementation, shape: Shape, direction: str) -> Call:
    """Return a function that runs one pass on the input of a shape."""
    x, cotangent = make_input(shape)
    if direction != BACKWARD:
        return lambda: implementation.compute(x, implementation.tau)
    x.requires_grad_()

    def forward_and_backward() -> torch.Tensor:
        y = implementation.compute(x, implementation.tau)
        return torch.autograd.grad(y, x, cotangent)[0]

    return forward_and_backward


def average_ties(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Average the gradient over equal items, among which the subgradient is not unique."""
    averaged = []
    for row, its_gradient in zip(x, gradient, strict=True):
        _, group, size = torch.unique(row, return_inverse=True, return_counts=True)
        total = torch.zeros(len(size), dtype=torch.float64).index_add_(
            0, group, its_gradient.double()
        )
        averaged.append((total / size)[group])
    return torch.stack(averaged)


def verify(implementations: list[str], largest_n: int) -> dict[str, Any]:
    """Compare each implementation with its reference; return an answer for each."""
    return {
        name: answer_or_out_of_memory(lambda n=name: verify_one(n, largest_n))
        for name in implementations
    }


def verify_one(implementation: str, largest_n: int) -> dict[str, Any]:
    """Compare values and gradients with the reference in float64 on the same float32 input."""
    subject = IMPLEMENTATIONS[implementation]
    reason = subject.missing()
    if reason is not None:
        return {"outcome": f"not available: {reason}"}
    value_error = gradient_error = 0.0
    for shape in (shape for shape in subject.verified_shapes if shape[1] <= largest_n):
        random, _ = make_input(shape)
        for x in (random, (random * 16).floor() / 16):
            for tau in subject.verified_at:
                errors = difference(subject, x, tau)
                value_error = max(value_error, errors[0])
                gradient_error = max(gradient_error, errors[1])
    answer = {"outcome": "ok", "value_error": value_error, "gradient_error": gradient_error}
    if value_error > subject.value_tolerance or gradient_error > subject.gradient_tolerance:
        answer["outcome"] = (
            f"differs from the reference by {value_error:.1e} in values "
            f"(at most {subject.value_tolerance:.0e}), {gradient_error:.1e} in gradients "
            f"(at most {subject.gradient_tolerance:.0e})"
        )
    return answer


def difference(subject: Implementation, x: torch.Tensor, tau: float) -> tuple[float, float]:
    """Return the errors of values and gradients, each relative to the largest entry."""
    n = x.shape[-1]
    rows = torch.arange(n) if n <= ALL_ROWS_UP_TO else torch.linspace(0, n - 1, 32).long()
    cotangent = make_input((x.shape[0], len(rows)))[1]

    exact = x.double().requires_grad_()
    want = subject.reference(exact, tau, rows)
    (want_gradient,) = torch.autograd.grad(want, exact, cotangent.double())

    x = x.clone().requires_grad_()
    with subject.active():
        got = subject.compute(x, tau)
        full = torch.zeros_like(got).index_copy_(-1, rows, cotangent)
        (gradient,) = torch.autograd.grad(got, x, full)
    x = x.detach()
    return (
        _relative(got.detach()[..., rows], want.detach()),
        _relative(average_ties(x, gradient), average_ties(x, want_gradient)),
    )


def _relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the largest difference over the largest entry wanted; infinite for NaN."""
    error = ((got.double() - want).abs().max() / want.abs().max()).item()
    return math.inf if math.isnan(error) else error


def measure(implementation: str, shape: Shape, direction: str, seconds: float) -> dict[str, Any]:
    """Measure the peak memory of the first call of this size, then the time of further ones."""
    subject = IMPLEMENTATIONS[implementation]
    with subject.active():
        # A small call first: libraries load and start threads once per process.
        make_call(subject, (min(shape[0], 2), min(shape[1], 2048)), direction)()
        call = make_call(subject, shape, direction)
        memory, first = peak_memory(call)
        times = time_calls(call, seconds, at_least=3 if first < 10 else 1)
    return {
        "outcome": "ok",
        "tau": subject.tau,
        "seconds": {
            "min": min(times),
            "median": statistics.median(times),
            "first": first,
            "repeats": len(times),
        },
        "memory": memory,
    }


class Side:
    """One of two cases that are timed in turns, in blocks of calls."""

    def __init__(self, implementation: str, shape: Shape, direction: str) -> None:
        self.subject = IMPLEMENTATIONS[implementation]
        self.call = make_call(self.subject, shape, direction)
        with self.subject.active():
            self.once = min(time_calls(self.call, 1.0, at_least=2, at_most=4))
        # At least 2 ms per block: long beside the clock's resolution, short beside disturbances.
        self.block = max(1, math.ceil(0.002 / self.once))

    def time_block(self) -> float:
        """Return the time of one call, as the mean of a block."""
        with self.subject.active():
            return time_call(self.call, self.block)


def compare(left: dict[str, Any], right: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Time two cases in turns, so that both meet the same machine."""
    sides = {"left": Side(**left), "right": Side(**right)}
    # Noise that ruins the time of a short call hardly changes that of one that takes seconds.
    least = 8 if max(side.once for side in sides.values()) < 1 else 3
    times = take_turns({name: side.time_block for name, side in sides.items()}, least, seconds)
    one, other = ({"min": min(of), "median": statistics.median(of)} for of in times.values())
    return {
        "outcome": "ok",
        "left_seconds": one,
        "right_seconds": other,
        "blocks": len(times["left"]),
        "ratio": one["median"] / other["median"],
        "ratio_of_minima": one["min"] / other["min"],
    }


if __name__ == "__main__":
    serve({"verify": verify, "measure": measure, "compare": compare})
