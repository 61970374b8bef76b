"""The problem in JAX: the whole step is compiled."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy

from softorder_experiments.speed.frameworks.problem import Problem


class Learner:
    """Scores and velocity, which each step replaces: their memory is used again."""

    def __init__(self, problem: Problem, scores: numpy.ndarray, device: str) -> None:
        where = jax.devices(device)[0]
        self._state = jax.device_put((scores, numpy.zeros_like(scores)), where)
        # Here, so that neither time nor memory of a step is that of the compiler.
        step = jax.jit(_step_of(problem), donate_argnums=(0, 1))
        self._step = step.lower(*self._state).compile()
        self._loss = jnp.zeros(())

    def step(self) -> None:
        """Make one step, which is an epoch."""
        *self._state, self._loss = jax.block_until_ready(self._step(*self._state))

    def scores(self) -> numpy.ndarray:
        """Return the scores."""
        return numpy.asarray(self._state[0])

    def loss(self) -> float:
        """Return the loss before the last step."""
        return float(self._loss)


def _step_of(problem: Problem) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, ...]]:
    """Return scores, velocity -> those after a step, and the loss before it."""

    def loss_of(scores: jax.Array) -> jax.Array:
        lowest, highest = (
            jax.lax.stop_gradient(bound(scores, axis=-1, keepdims=True))
            for bound in (jnp.min, jnp.max)
        )
        scaled = (scores - lowest) / (highest - lowest)
        order = jnp.arange(scores.shape[-1])
        return -problem.log_likelihood(scaled, order).sum() / problem.terms

    def step(scores: jax.Array, velocity: jax.Array) -> tuple[jax.Array, ...]:
        loss, gradient = jax.value_and_grad(loss_of)(scores)
        return *problem.update(scores, velocity, gradient), loss

    return step
