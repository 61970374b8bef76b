"""The frameworks that methods are timed in: what each needs of its own is one small file here."""

from __future__ import annotations

import importlib
import importlib.util

import numpy

from softorder_experiments.speed.frameworks.problem import Learner, Problem

# What tables call those that are imported by these names.
FRAMEWORKS = {"torch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow"}


def is_installed(framework: str) -> bool:
    """Tell whether a framework is here, without importing it."""
    return importlib.util.find_spec(framework) is not None


def make_learner(
    framework: str, problem: Problem, scores: numpy.ndarray, device: str = "cpu"
) -> Learner:
    """Import a framework; return the scores in it, which learn."""
    module = importlib.import_module(f"{__name__}.{framework}")
    return module.Learner(problem, scores, device)
