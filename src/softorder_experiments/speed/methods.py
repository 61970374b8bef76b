"""The methods to time, each at the paper's temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import softorder as so
from softorder_experiments import formulas
from softorder_experiments.speed.frameworks import FRAMEWORKS


@dataclass(frozen=True)
class Method:
    """One way to compute one operator.

    Attributes:
        about: The name of the method in tables.
        operator: The operator; methods of the same operator compute the same numbers.
        tau: The temperature.
        log_likelihood: scores (batch, n), the order 0, 1, ..., n - 1, tau -> the sum over i of
            log P[i, i], (batch,).
        is_dense: Whether it builds the matrix; such a method is timed over few epochs.
        largest: The largest n of the long axis that is measured; 0 for none.
        framework: The framework of the scores.
    """

    about: str
    operator: str
    tau: float
    log_likelihood: Callable[..., Any]
    is_dense: bool
    largest: int = 0
    framework: str = "torch"


def _of_matrix(scores: Tensor, order: Tensor, tau: float, matrix: Callable[..., Tensor]) -> Tensor:
    """Return the log-likelihood as the authors compute it, from the diagonal of the matrix."""
    return matrix(scores, tau).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _of_softorder(
    scores: Any, order: Any, tau: float, relaxation: Callable[[float], so.PermutationRelaxation]
) -> Any:
    """Return the log-likelihood of an order without a matrix, in any framework."""
    return relaxation(tau)(scores).log_prob(order)


def _dense(about: str, operator: str, tau: float, matrix: Callable[..., Tensor]) -> Method:
    return Method(about, operator, tau, partial(_of_matrix, matrix=matrix), is_dense=True)


def _ours(
    about: str, operator: str, tau: float, relaxation: Callable[[Any], Any], largest: int
) -> Method:
    function = partial(_of_softorder, relaxation=relaxation)
    return Method(about, operator, tau, function, is_dense=False, largest=largest)


_IN_TORCH: dict[str, Method] = {
    "softsort-square-dense": _dense(
        "SoftSort |.|², as printed",
        "softsort-square",
        0.03,
        partial(formulas.softsort, distance=torch.square),
    ),
    "softsort-square": _ours(
        "SoftSort |.|², softorder",
        "softsort-square",
        0.03,
        partial(so.SoftSort, metric="square"),
        10**6,
    ),
    "softsort-abs-dense": _dense(
        "SoftSort |.|, as printed",
        "softsort-abs",
        0.1,
        partial(formulas.softsort, distance=torch.abs),
    ),
    "softsort-abs": _ours("SoftSort |.|, softorder", "softsort-abs", 0.1, so.SoftSort, 10**6),
    "neuralsort-published": _dense(
        "NeuralSort, as published",
        "neuralsort",
        100.0,
        partial(formulas.neuralsort, distances=formulas.distances_by_product),
    ),
    "neuralsort-corrected": _dense(
        "NeuralSort, corrected",
        "neuralsort",
        100.0,
        partial(formulas.neuralsort, distances=formulas.distances_by_sum),
    ),
    # At this temperature its rows are wide; the time grows with n times their width.
    "neuralsort": _ours("NeuralSort, softorder", "neuralsort", 100.0, so.NeuralSort, 10**5),
}
# The same methods in other frameworks, with the largest n. It is smaller than in torch where
# NeuralSort would take minutes a step, and |.|² in TensorFlow more memory than most machines have.
# NeuralSort in TensorFlow keeps n² numbers for its gradient, and is left out.
_ELSEWHERE = {
    ("softsort-square", "jax"): 10**6,
    ("softsort-abs", "jax"): 10**6,
    ("neuralsort", "jax"): 10**4,
    ("softsort-square", "tensorflow"): 10**5,
    ("softsort-abs", "tensorflow"): 10**6,
}


def in_torch(name: str) -> str:
    """Return the name of the same method in torch."""
    return name.removesuffix(f"-{METHODS[name].framework}")


def _elsewhere(method: Method, framework: str, largest: int) -> Method:
    about = f"{method.about} ({FRAMEWORKS[framework]})"
    return dataclasses.replace(method, about=about, framework=framework, largest=largest)


METHODS = _IN_TORCH | {
    f"{name}-{framework}": _elsewhere(_IN_TORCH[name], framework, largest)
    for (name, framework), largest in _ELSEWHERE.items()
}
