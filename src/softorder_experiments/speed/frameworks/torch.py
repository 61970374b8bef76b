"""The problem in PyTorch, step by step as the authors have it."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import torch

from softorder_experiments.speed.frameworks.problem import MOMENTUM, RATE, Problem


class Learner:
    """Scores that require gradients, and torch's own optimiser."""

    def __init__(self, problem: Problem, scores: numpy.ndarray, device: str) -> None:
        self._problem = problem
        self._scores = torch.tensor(scores, device=device, requires_grad=True)
        self._optimizer = torch.optim.SGD(
            [self._scores], lr=RATE, momentum=MOMENTUM, weight_decay=problem.decay
        )
        self._synchronize = _synchronize(device)
        self._loss = torch.zeros(())

    def step(self) -> None:
        """Make one step, which is an epoch."""
        self._optimizer.zero_grad()
        scores = self._scores
        lowest = scores.amin(-1, keepdim=True).detach()
        highest = scores.amax(-1, keepdim=True).detach()
        scaled = (scores - lowest) / (highest - lowest)
        order = torch.arange(scores.shape[-1], device=scores.device)
        self._loss = -self._problem.log_likelihood(scaled, order).sum() / self._problem.terms
        self._loss.backward()
        self._optimizer.step()
        self._synchronize()

    def scores(self) -> numpy.ndarray:
        """Return the scores."""
        return self._scores.detach().cpu().numpy()

    def loss(self) -> float:
        """Return the loss before the last step."""
        return self._loss.item()


def _synchronize(device: str) -> Callable[[], None]:
    """Return a function that waits until a device has finished its work."""
    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}
    return waits.get(device, lambda: None)
