"""The problem in TensorFlow: the whole step is one graph."""

from __future__ import annotations

import numpy
import tensorflow as tf

from softorder_experiments.speed.frameworks.problem import Problem


class Learner:
    """Scores and velocity as variables, which a graph changes in place."""

    def __init__(self, problem: Problem, scores: numpy.ndarray, device: str) -> None:
        self._problem, self._device = problem, device
        with tf.device(device):
            self._scores = tf.Variable(tf.constant(scores))
            self._velocity = tf.Variable(tf.zeros_like(scores))
        # Here, so that neither time nor memory of a step is that of making the graph.
        self._graph = tf.function(self._change).get_concrete_function()
        self._loss = 0.0

    def step(self) -> None:
        """Make one step, which is an epoch."""
        try:
            # The value is there when the whole graph has run, the variables' change included.
            self._loss = float(self._graph().numpy())
        except tf.errors.ResourceExhaustedError as error:
            raise MemoryError(str(error)) from error

    def _change(self) -> tf.Tensor:
        with tf.device(self._device):
            scores = tf.convert_to_tensor(self._scores)
            with tf.GradientTape() as tape:
                tape.watch(scores)
                loss = self._loss_of(scores)
            gradient = tape.gradient(loss, scores)
            scores, velocity = self._problem.update(scores, self._velocity, gradient)
            self._scores.assign(scores)
            self._velocity.assign(velocity)
        return loss

    def _loss_of(self, scores: tf.Tensor) -> tf.Tensor:
        lowest, highest = (
            tf.stop_gradient(bound(scores, axis=-1, keepdims=True))
            for bound in (tf.reduce_min, tf.reduce_max)
        )
        scaled = (scores - lowest) / (highest - lowest)
        order = tf.range(scores.shape[-1])
        likelihoods = self._problem.log_likelihood(scaled, order)
        return -tf.reduce_sum(likelihoods) / self._problem.terms

    def scores(self) -> numpy.ndarray:
        """Return the scores."""
        return self._scores.numpy()

    def loss(self) -> float:
        """Return the loss before the last step."""
        return self._loss
