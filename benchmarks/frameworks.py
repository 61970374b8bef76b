"""The same soft sort in torch, JAX and TensorFlow, in one process, in turns.

    python -m benchmarks.frameworks     # appends a line to results/frameworks/ratios.jsonl

Times forward + backward of `softorder.sort` in float32, under `jax.jit` and `tf.function`: the
least of several calls in turns, and its ratio to torch's. First it compares each framework's
gradient with torch's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy

from softorder_experiments.machine import describe
from softorder_experiments.measuring import OtherWork, take_turns, time_call

# Otherwise TensorFlow logs a lot when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import tensorflow as tf
import torch

import softorder as so

RESULTS = Path(__file__).parent / "results" / "frameworks" / "ratios.jsonl"
SHAPES = ((20, 4000), (1, 10**6))
TAU = {"abs": 0.1, "square": 0.03}
ROUNDS = 7

Gradient = Callable[[], numpy.ndarray]


def in_torch(x: numpy.ndarray, g: numpy.ndarray, how: so.SoftSort) -> Gradient:
    """Return what computes the gradient of sum(g * sort(x))."""
    leaf, cotangent = torch.tensor(x, requires_grad=True), torch.tensor(g)
    return lambda: torch.autograd.grad(so.sort(leaf, how), leaf, cotangent)[0].numpy()


def in_jax(x: numpy.ndarray, g: numpy.ndarray, how: so.SoftSort) -> Gradient:
    """Return the same under jit."""
    compiled = jax.jit(jax.grad(lambda x, g: (so.sort(x, how) * g).sum()))
    arrays = jax.device_put((x, g))
    return lambda: numpy.asarray(compiled(*arrays))


def in_tensorflow(x: numpy.ndarray, g: numpy.ndarray, how: so.SoftSort) -> Gradient:
    """Return the same under tf.function."""

    @tf.function
    def gradient(x: Any, g: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = so.sort(x, how)
        return tape.gradient(y, x, g)

    arrays = tf.constant(x), tf.constant(g)
    return lambda: gradient(*arrays).numpy()


FRAMEWORKS = {"torch": in_torch, "jax": in_jax, "tensorflow": in_tensorflow}


def measure(metric: Any, shape: tuple[int, int]) -> dict[str, Any]:
    """Return the times of one case, in seconds, and their ratios to torch's."""
    rng = numpy.random.default_rng(0)
    x, g = (rng.random(shape, dtype=numpy.float32) for _ in range(2))
    how = so.SoftSort(TAU[metric], metric)
    functions = {name: make(x, g, how) for name, make in FRAMEWORKS.items()}
    found = {name: function() for name, function in functions.items()}
    for name, gradient in found.items():
        largest = numpy.abs(found["torch"]).max()
        error = numpy.abs(gradient - found["torch"]).max() / largest
        if not error < 2e-5:
            raise SystemExit(f"{name}, {metric}, {shape}: the gradient is {error:.1e} off torch's")
    timers = {name: partial(time_call, function) for name, function in functions.items()}
    seconds = {name: min(times) for name, times in take_turns(timers, ROUNDS).items()}
    ratios = {name: seconds[name] / seconds["torch"] for name in seconds}
    return {"metric": metric, "shape": shape, "seconds": seconds, "ratio_to_torch": ratios}


def main() -> None:
    """Measure all cases, print them, and append a line."""
    others, cases = OtherWork(), []
    for metric in TAU:
        for shape in SHAPES:
            cases.append(case := measure(metric, shape))
            told = (f"{n} {s * 1e3:.1f} ms" for n, s in case["seconds"].items())
            ratios = (f"{n} {r:.2f}" for n, r in case["ratio_to_torch"].items() if n != "torch")
            print(
                f"{metric} {shape}: {', '.join(told)}; over torch: {', '.join(ratios)}", flush=True
            )
    origin = describe(["torch", "jax", "tensorflow", "numpy", "softorder"])
    line = {**origin, "other_work": others.share(), "cases": cases}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
