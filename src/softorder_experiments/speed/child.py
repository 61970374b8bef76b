"""One point in a process of its own, which `carry_out` asks for."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy
import scipy.stats
import torch
from torch import Tensor

from softorder_experiments.isolation import Answer, serve
from softorder_experiments.memory import peak_extra_memory
from softorder_experiments.speed.methods import METHODS
from softorder_experiments.speed.plan import BATCH, OBJECTIVES, ORDERS, SpeedConfig


def train(config: dict[str, Any]) -> Answer:
    """Let scores learn to be in decreasing order; return time, memory and learning curve."""
    point = SpeedConfig(**config)
    # What is loaded once in a process is loaded by a small step.
    Learner(SpeedConfig(method=point.method, n=16, device=point.device)).step()
    learner = Learner(point)
    memory, burn_in = _peak_memory(learner.step, point.device)
    curve, times = [learner.describe(1)], []
    for epoch in range(2, point.epochs + 1):
        begin = time.perf_counter()
        learner.step()
        times.append(time.perf_counter() - begin)
        curve.append(learner.describe(epoch))
        if not math.isfinite(curve[-1]["loss"]):
            return {"outcome": f"not finite at epoch {epoch}"}
    correlations = spearman(learner.scores)
    return {
        "outcome": "ok",
        "metrics": {
            "seconds_per_epoch": statistics.mean(times),
            "median_seconds": statistics.median(times),
            "least_seconds": min(times),
            "burn_in_seconds": burn_in,
            "memory": memory,
            "spearman": float(correlations.mean()),
            "lowest_spearman": float(correlations.min()),
        },
        "curve": curve,
    }


class Learner:
    """The scores, and the step that moves them."""

    def __init__(self, point: SpeedConfig) -> None:
        method = METHODS[point.method]
        self._log_likelihood, self._tau = method.log_likelihood, method.tau
        self.scores = initial_scores(point).to(point.device).requires_grad_()
        self._terms, decay = OBJECTIVES[point.objective](point.n)
        self._optimizer = torch.optim.SGD([self.scores], lr=10.0, momentum=0.5, weight_decay=decay)
        self._synchronize = _synchronize(point.device)
        self.loss = torch.zeros(())

    def step(self) -> None:
        """Make one step, which is an epoch."""
        self._optimizer.zero_grad()
        scores = self.scores
        lowest = scores.amin(-1, keepdim=True).detach()
        highest = scores.amax(-1, keepdim=True).detach()
        scaled = (scores - lowest) / (highest - lowest)
        self.loss = -self._log_likelihood(scaled, self._tau).sum() / self._terms
        self.loss.backward()
        self._optimizer.step()
        self._synchronize()

    def describe(self, epoch: int) -> dict[str, Any]:
        """Return a point of the learning curve; the loss is that before the step."""
        correlation = float(spearman(self.scores).mean())
        return {"epoch": epoch, "loss": self.loss.item(), "spearman": correlation}


def initial_scores(point: SpeedConfig) -> Tensor:
    """Return (20, n) scores, uniform in [-1, 1]."""
    generator = torch.Generator().manual_seed(point.seed)
    return ORDERS[point.order](torch.rand(BATCH, point.n, generator=generator) * 2 - 1)


def spearman(scores: Tensor) -> numpy.ndarray:
    """Return Spearman's correlation of each row with the order n, ..., 1."""
    ranks = scipy.stats.rankdata(scores.detach().cpu().numpy(), axis=-1)
    ranks -= ranks.mean(-1, keepdims=True)
    target = numpy.arange(ranks.shape[-1], 0, -1) - (ranks.shape[-1] + 1) / 2
    return ranks @ target / (numpy.linalg.norm(ranks, axis=-1) * numpy.linalg.norm(target))


def _synchronize(device: str) -> Callable[[], None]:
    """Return what waits for a device to be done with its work."""
    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return waits.get(device, lambda: None)


def _peak_memory(step: Callable[[], None], device: str) -> tuple[dict[str, Any], float]:
    """Run a step; return the peak of the device's memory above the state before, and the time."""
    if device != "cuda":
        return peak_extra_memory(step)
    torch.cuda.reset_peak_memory_stats()
    before, begin = torch.cuda.memory_allocated(), time.perf_counter()
    step()
    peak = torch.cuda.max_memory_allocated() - before
    return {"bytes": peak, "method": "cuda"}, time.perf_counter() - begin


if __name__ == "__main__":
    serve({"train": train})
