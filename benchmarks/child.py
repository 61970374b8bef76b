"""One measurement in a process of its own, which `runner` asks for."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.cases import BACKWARD, Shape
from benchmarks.implementation import Implementation
from benchmarks.registry import IMPLEMENTATIONS
from softorder_experiments.isolation import answer_or_out_of_memory, serve
from softorder_experiments.memory import peak_extra_memory

Call = Callable[[], torch.Tensor]

ALL_ROWS_UP_TO = 2000
"""A longer result is compared at some places: the reference costs O(n) for each."""


def make_input(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x, uniform in [0, 1), and a cotangent for the result; always the same."""
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
    """Average the gradient over equal items: among them the subgradient is not unique."""
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
        # A small call loads and starts what is loaded and started once per process.
        make_call(subject, (min(shape[0], 2), min(shape[1], 2048)), direction)()
        call = make_call(subject, shape, direction)
        memory, first = peak_extra_memory(call)
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


def time_calls(call: Call, seconds: float, at_least: int, at_most: int = 10_000) -> list[float]:
    """Return the time of each call, repeated for about that many seconds."""
    times: list[float] = []
    while len(times) < at_most and (len(times) < at_least or sum(times) < seconds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


class Side:
    """One of two cases that are timed in turns."""

    def __init__(self, implementation: str, shape: Shape, direction: str) -> None:
        self.subject = IMPLEMENTATIONS[implementation]
        self.call = make_call(self.subject, shape, direction)
        self.times: list[float] = []
        with self.subject.active():
            self.once = min(time_calls(self.call, 1.0, at_least=2, at_most=4))
        # A block of some milliseconds: long beside the clock, short beside disturbances.
        self.block = max(1, math.ceil(0.002 / self.once))

    def run_block(self) -> float:
        """Run a block of calls, note the time of one and return that of all."""
        with self.subject.active():
            start = time.perf_counter()
            for _ in range(self.block):
                self.call()
            elapsed = time.perf_counter() - start
        self.times.append(elapsed / self.block)
        return elapsed

    def summary(self) -> dict[str, float]:
        """Return the least and the median time of a call."""
        return {"min": min(self.times), "median": statistics.median(self.times)}


def compare(left: dict[str, Any], right: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Time two cases in turns (A B, B A, A B, ...), so that both meet the same machine."""
    sides = [Side(**left), Side(**right)]
    # What disturbs a short call is nothing beside one that takes seconds.
    least = 8 if max(side.once for side in sides) < 1 else 3
    spent, blocks = 0.0, 0
    while spent < seconds or blocks < least:
        spent += sum(side.run_block() for side in (sides if blocks % 2 == 0 else sides[::-1]))
        blocks += 1
    one, other = (side.summary() for side in sides)
    return {
        "outcome": "ok",
        "left_seconds": one,
        "right_seconds": other,
        "blocks": blocks,
        "ratio": one["median"] / other["median"],
        "ratio_of_minima": one["min"] / other["min"],
    }


if __name__ == "__main__":
    serve({"verify": verify, "measure": measure, "compare": compare})
