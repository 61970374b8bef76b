"""The frameworks in which methods are timed, with one small file for each."""

from __future__ import annotations

import importlib
import importlib.util

import numpy

from softorder_experiments.speed.frameworks.problem import Learner, Problem

# Their names in tables, by the names of their modules.
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}


def is_installed(framework: str) -> bool:
    """Tell whether a framework is installed, without importing it."""
    return importlib.util.find_spec(framework) is not None


def make_learner(
    framework: str, problem: Problem, scores: numpy.ndarray, device: str = "cpu"
) -> Learner:
    """Import a framework and return the learner in it."""
    module = importlib.import_module(f"{__name__}.{framework}")
    return module.Learner(problem, scores, device)
