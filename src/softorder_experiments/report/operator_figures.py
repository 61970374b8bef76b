"""The figures that need no measurement: the operator, its logits, its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

import softorder as so
from softorder_experiments.report.charts import COLORS, Chart, both_themes

_EXAMPLE = (2.0, 5.0, 4.0)  # the paper's Figure 1


def illustration() -> Chart:
    """Draw the permutation that sorts three scores, exact and soft (the paper's Figure 1)."""
    scores = numpy.array(_EXAMPLE)
    P = so.SoftSort(tau=1.0)(scores)
    matrices = {"argsort: exact": P.hard().matrix(), "SoftSort, tau = 1": P.matrix()}

    def draw(theme: Mapping[str, str]) -> Any:
        import matplotlib.pyplot as plt

        figure, plots = plt.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
        for plot, (title, matrix) in zip(plots, matrices.items(), strict=True):
            plot.imshow(matrix, cmap="cividis", vmin=0, vmax=1)
            for (i, j), weight in numpy.ndenumerate(matrix):
                color = "black" if weight > 0.5 else "white"
                plot.text(j, i, f"{weight:.2f}", ha="center", va="center", color=color)
            plot.set(title=title, xlabel="score", ylabel="position")
            plot.set_xticks(range(3), [f"{score:g}" for score in scores])
            plot.set_yticks(range(3), ["1st", "2nd", "3rd"])
            plot.spines[:].set_visible(False)
        return figure

    light, dark = both_themes(draw)
    rows = "; ".join(" ".join(f"{w:.2f}" for w in row) for row in P.matrix())
    soft = ", ".join(f"{value:.2f}" for value in P @ scores)
    return Chart(
        "operator",
        "Figure 1: the operator",
        f"Two 3 by 3 matrices for the scores 2, 5, 4: the exact permutation, and the soft one "
        f"with rows {rows}.",
        f"Rows are positions, columns the scores 2, 5, 4. The soft rows are distributions with "
        f"their largest weight where the exact permutation has its 1; the matrix times the scores "
        f"is 5, 4, 2 exactly, and {soft} softly.",
        light,
        dark,
    )


@dataclass(frozen=True)
class Bell:
    """The third row of an operator on four scores, and the same row on a fine grid.

    Attributes:
        title: The title of the plot.
        scores: The four scores, in decreasing order.
        weights: The third row at the scores, divided by its largest weight.
        grid: Many scores, equally spaced.
        heights: The row of the grid point at the third score, divided by its largest weight.
    """

    title: str
    scores: numpy.ndarray
    weights: numpy.ndarray
    grid: numpy.ndarray
    heights: numpy.ndarray


def bell(
    title: str,
    scores: Sequence[float],
    how: so.PermutationRelaxation,
    on_grid: so.PermutationRelaxation,
) -> Bell:
    """Return the row of the third score, which is 0, among four and on a grid around them."""
    grid = _STEP * numpy.arange(_REACH, -_REACH - 1, -1)
    weights, heights = (
        relaxation(numpy.asarray(values)).rows(row)
        for relaxation, values, row in ((how, scores, 2), (on_grid, grid, _REACH))
    )
    return Bell(title, numpy.asarray(scores), weights / weights[2], grid, heights / heights.max())


_STEP, _REACH = 0.02, 200  # the grid goes from -4 to 4
_GAP, _TAU = 1.2, 5 / 3  # NeuralSort's bell is exp(-u^2 / (gap tau)): of deviation 1


def both_bells() -> tuple[Bell, Bell]:
    """Return SoftSort's bell, and NeuralSort's for scores with equal gaps.

    NeuralSort's logits grow with the number of scores in between. On the grid, whose gaps are
    smaller, the temperature is larger by the same factor.
    """
    softsort = so.SoftSort(1.0)
    equal = [2 * _GAP, _GAP, 0.0, -_GAP]
    on_grid = so.NeuralSort(_TAU * _GAP / _STEP)
    return (
        bell("SoftSort |.|: Laplace", [2.5, 1.0, 0.0, -2.0], softsort, softsort),
        bell("NeuralSort, equal gaps: Gaussian", equal, so.NeuralSort(_TAU), on_grid),
    )


def bells() -> Chart:
    """Draw the row of a position as the operators give it (the paper's Figure 10)."""
    sides = both_bells()

    def draw(theme: Mapping[str, str]) -> Any:
        import matplotlib.pyplot as plt

        figure, plots = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        for plot, side in zip(plots, sides, strict=True):
            plot.plot(side.grid, side.heights, color=COLORS[0])
            plot.fill_between(side.grid, side.heights, color=COLORS[0], alpha=0.2)
            plot.vlines(side.scores, 0, side.weights, color=theme["ink"])
            plot.set_xticks(side.scores, ["$s_1$", "$s_2$", "$s_3$", "$s_4$"])
            plot.set_yticks([])
            plot.set(title=side.title, ylabel="weight at position 3", ylim=(0, 1.1))
        return figure

    light, dark = both_themes(draw)
    return Chart(
        "rows",
        "Figure 10: the rows, Laplace and Gaussian",
        "Two bells over the scores s4 to s1, highest at s3: a pointed one with exponential tails, "
        "and a round one with Gaussian tails. The weights of the four scores end on the bell.",
        "Lines: the third row of the matrix of four scores. Bells: the row of the same score in a "
        "grid of 401 points; for NeuralSort, at a temperature adapted to the smaller gaps. The "
        "first is proportional to a Laplace density around s3 (SoftSort with |.|), the second to a "
        "Gaussian one (NeuralSort, if gaps are equal).",
        light,
        dark,
    )


def logits(n: int = 4) -> dict[str, list[list[str]]]:
    """Return the logits of both operators for s1 >= ... >= sn, each row minus its diagonal."""
    names = {"SoftSort, |.|": softsort_logits, "NeuralSort": neuralsort_logits}
    return {
        name: [[_formula(of(i, j, n)) for j in range(n)] for i in range(n)]
        for name, of in names.items()
    }


def softsort_logits(i: int, j: int, n: int) -> numpy.ndarray:
    """Return the coefficients of s1..sn in -|s_i - s_j|."""
    unit = numpy.eye(n, dtype=int)
    return unit[max(i, j)] - unit[min(i, j)]


def neuralsort_logits(i: int, j: int, n: int) -> numpy.ndarray:
    """Return those in (n + 1 - 2i) s_j - sum_k |s_j - s_k|, minus the same for j = i."""
    unit = numpy.eye(n, dtype=int)

    def logit(column: int) -> numpy.ndarray:
        distances = sum(-softsort_logits(column, k, n) for k in range(n))
        return (n - 1 - 2 * i) * unit[column] - distances

    return logit(j) - logit(i)


def _formula(coefficients: numpy.ndarray) -> str:
    """Write a sum of scores."""
    words = []
    for index, c in sorted(enumerate(coefficients, start=1), key=lambda pair: -pair[1]):
        if c:
            size = "" if abs(c) == 1 else str(abs(c))
            words.append(f"{'+' if c > 0 else '-'} {size}s{index}")
    return " ".join(words).removeprefix("+ ") or "0"
