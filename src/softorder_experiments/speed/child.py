"""The child process that measures one point; `measure` starts it."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import numpy
import scipy.stats
import torch

from softorder_experiments.measuring import Answer, peak_memory, serve, time_call
from softorder_experiments.speed.frameworks import Learner, Problem, make_learner
from softorder_experiments.speed.methods import METHODS
from softorder_experiments.speed.plan import BATCH, OBJECTIVES, ORDERS, SpeedConfig


def train(config: dict[str, Any]) -> Answer:
    """Train scores to be in decreasing order; return time, memory and learning curve."""
    point = SpeedConfig(**config)
    # A small step first: libraries load and start threads once per process.
    learner_of(SpeedConfig(method=point.method, n=16, device=point.device)).step()
    learner = learner_of(point)
    memory, burn_in = peak_memory(learner.step, point.device)
    curve, times = [_entry(1, learner)], []
    for epoch in range(2, point.epochs + 1):
        times.append(time_call(learner.step))
        curve.append(_entry(epoch, learner))
        if not math.isfinite(curve[-1]["loss"]):
            return {"outcome": f"not finite at epoch {epoch}"}
    correlations = spearman(learner.scores())
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


def learner_of(point: SpeedConfig) -> Learner:
    """Return the learner of a point, in its framework."""
    framework = METHODS[point.method].framework
    return make_learner(framework, problem_of(point), initial_scores(point), point.device)


def problem_of(point: SpeedConfig) -> Problem:
    """Return the learning problem of a point."""
    method = METHODS[point.method]
    terms, decay = OBJECTIVES[point.objective](point.n)
    return Problem(partial(method.log_likelihood, tau=method.tau), terms, decay)


def _entry(epoch: int, learner: Learner) -> dict[str, Any]:
    """Return a point of the learning curve; the loss is that before the step."""
    correlation = float(spearman(learner.scores()).mean())
    return {"epoch": epoch, "loss": learner.loss(), "spearman": correlation}


def initial_scores(point: SpeedConfig) -> numpy.ndarray:
    """Return (20, n) scores, uniform in [-1, 1]: the same in every framework."""
    generator = torch.Generator().manual_seed(point.seed)
    scores = torch.rand(BATCH, point.n, generator=generator) * 2 - 1
    return ORDERS[point.order](scores.numpy())


def spearman(scores: numpy.ndarray) -> numpy.ndarray:
    """Return Spearman's correlation of each row with the order n, ..., 1."""
    ranks = scipy.stats.rankdata(scores, axis=-1)
    ranks -= ranks.mean(-1, keepdims=True)
    target = numpy.arange(ranks.shape[-1], 0, -1) - (ranks.shape[-1] + 1) / 2
    return ranks @ target / (numpy.linalg.norm(ranks, axis=-1) * numpy.linalg.norm(target))


if __name__ == "__main__":
    serve({"train": train})
