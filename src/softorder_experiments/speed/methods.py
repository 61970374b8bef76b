"""The methods that are timed, each at the temperature of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import softorder as so
from softorder_experiments import formulas


@dataclass(frozen=True)
class Method:
    """One way to compute one operator.

    Attributes:
        about: What it is, for tables.
        operator: Methods of the same operator compute the same numbers.
        tau: The temperature.
        log_likelihood: scores (batch, n), tau -> the sum over i of log P[i, i], (batch,).
        is_dense: Whether it builds the matrix: such a method is timed over few epochs.
        largest: The largest n of the long axis that it is tried at; 0 for none.
    """

    about: str
    operator: str
    tau: float
    log_likelihood: Callable[[Tensor, float], Tensor]
    is_dense: bool
    largest: int = 0


def _of_matrix(scores: Tensor, tau: float, matrix: Callable[..., Tensor]) -> Tensor:
    """Return the log-likelihood as the authors have it: of the matrix's diagonal."""
    return matrix(scores, tau).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _of_softorder(
    scores: Tensor, tau: float, relaxation: Callable[[float], so.PermutationRelaxation]
) -> Tensor:
    """Return the log-likelihood of the order 0, 1, ..., n - 1, without a matrix."""
    return relaxation(tau)(scores).log_prob(torch.arange(scores.shape[-1], device=scores.device))


def _dense(about: str, operator: str, tau: float, matrix: Callable[..., Tensor]) -> Method:
    return Method(about, operator, tau, partial(_of_matrix, matrix=matrix), is_dense=True)


def _ours(
    about: str, operator: str, tau: float, relaxation: Callable[[Any], Any], largest: int
) -> Method:
    function = partial(_of_softorder, relaxation=relaxation)
    return Method(about, operator, tau, function, is_dense=False, largest=largest)


METHODS: dict[str, Method] = {
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
    # At this temperature its rows are wide: the time grows with n times the width.
    "neuralsort": _ours("NeuralSort, softorder", "neuralsort", 100.0, so.NeuralSort, 10**5),
}
