"""Write docs/how_to_choose.md from the findings of `check_relaxation` and the benchmark.

python -m tools.how_to_choose            writes the page
python -m tools.how_to_choose --check    fails if the page is not up to date

Only what cannot be measured is written here by hand: how costs grow, and when to use a relaxation.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from dataclasses import dataclass

from benchmarks.cases import Case, Shape
from benchmarks.results import Results

import softorder as so
from softorder.testing import Report, check_relaxation

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how_to_choose.md"
SHAPES: tuple[Shape, ...] = ((20, 100), (20, 1000), (1, 10**5))


@dataclass(frozen=True)
class Entry:
    """One line of the table.

    Attributes:
        how: The relaxation to examine.
        shown: Its notation in the table.
        cost: Its time and memory.
        measured: Its name in the benchmark.
        use: When to use it.
    """

    how: so.Relaxation
    shown: str
    cost: str
    measured: str
    use: str


ENTRIES = (
    Entry(
        so.SoftSort(),
        "`SoftSort(tau)`",
        "O(n log n), O(n)",
        "softorder abs",
        "begin here: everything, at the price of a sort",
    ),
    Entry(
        so.SoftSort(metric="square"),
        '`SoftSort(tau, "square")`',
        "O(n log n), O(n)",
        "softorder square",
        "Gaussian weights: far items count for nothing",
    ),
    Entry(
        so.NeuralSort(),
        "`NeuralSort(tau)`",
        "O(n b), O(n); b: items with weight",
        "softorder NeuralSort cold",
        "to compare with NeuralSort; weights that sharpen as n grows",
    ),
    Entry(
        so.OptimalTransportSort(),
        "`OptimalTransportSort(epsilon)`",
        "O(L n²), O(n²); O(L n m), O(n m) with m targets",
        "softorder OptimalTransportSort sort",
        "every item must be used once: doubly stochastic, and smooth at ties",
    ),
    Entry(
        so.SoftRank(),
        "`SoftRank(tau)`",
        "ranks O(n²), O(n); matrix O(n³ √n), O(n²)",
        "softorder SoftRank rank",
        "scores are uncertain: exact rank probabilities under Gaussian noise",
    ),
    Entry(
        so.ApproximateRank(),
        "`ApproximateRank(tau)`",
        "O(n²), O(n)",
        "softorder ApproximateRank",
        "ranks for a ranking measure (NDCG and its kin), smooth everywhere",
    ),
    Entry(
        so.FastSoftRank(),
        "`FastSoftRank(epsilon)`",
        "O(n log n), O(n)",
        "softorder FastSoftRank l2",
        "ranks of many items; the numbers of torchsort",
    ),
    Entry(
        so.FastSoftSort(),
        "`FastSoftSort(epsilon)`",
        "O(n log n), O(n)",
        "softorder FastSoftSort l2",
        "sorted values that are exact where gaps are small; the numbers of torchsort",
    ),
)


def page(results: Results) -> str:
    """Return the whole page."""
    rows = [_row(entry, results) for entry in ENTRIES]
    columns = [
        "relaxation",
        "gives",
        "time, memory",
        "smooth at ties",
        "stochastic",
        *(f"ms at {shape[0]} x {shape[1]:,}" for shape in SHAPES),
        "when to use",
    ]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows])
    return _TEXT.format(table=table)


def _row(entry: Entry, results: Results) -> list[str]:
    report = check_relaxation(entry.how)
    return [
        entry.shown,
        _gives(report),
        entry.cost,
        _yes(report.smooth_at_ties),
        _stochastic(report),
        *(_milliseconds(results, Case(entry.measured, shape)) for shape in SHAPES),
        entry.use,
    ]


def _gives(report: Report) -> str:
    return "everything" if "matrix" in report.offers else " and ".join(report.offers)


def _stochastic(report: Report) -> str:
    if report.doubly_stochastic is None:
        return "no matrix"
    return "rows and columns" if report.doubly_stochastic else "rows"


def _yes(answer: bool | None) -> str:
    return {True: "yes", False: "no", None: "not measured"}[answer]


def _milliseconds(results: Results, case: Case) -> str:
    seconds = results.seconds(case)
    return "-" if seconds is None else f"{1e3 * seconds:.3g}"


_TEXT = """# How to choose

Written by `make choose` from what `softorder.testing.check_relaxation` found and what `make bench`
measured.

{table}

- **gives**: "everything" is a matrix P, and with it sort, argsort, rank, top-k, quantile and kNN.
  The others give ranks or sorted values alone, and say so when asked for more.
- **smooth at ties**: whether first derivatives are the same on both sides of a tie. Where they are
  not, the gradient is the mean over all orders of the tied scores: items that carry different
  things receive different gradients, and separate. Where *all* scores are equal, powers other than
  1, callables and `OptimalTransportSort` have no gradient: begin with scores that differ a little.
- **stochastic**: which sums of P are 1. With rows alone, one item may be the likeliest at several
  positions.
- **ms**: forward + backward of a soft sort (of ranks for those that have no more, and for
  SoftRank), float32, 2 CPU cores; a dash was not measured.
- Every relaxation here keeps the whole contract: masks, ties, infinities, NaN, any dimension, first
  and second derivatives, and its hard namesake in the limit.

Beside these, `Sinkhorn(tau)` takes a matrix of weights instead of scores, and gives matchings:
`hard()` is the best assignment, `gumbel_sinkhorn` samples. `PlackettLuce(scores, how)` makes any
relaxation that has a matrix stochastic, with exact likelihoods.

## The temperature

Begin where the soft result is visibly soft but keeps the order.

- `SoftSort`, `NeuralSort` and `ApproximateRank` have tau in the units of the scores; for `"square"`
  and for `SoftRank`, whose tau is a variance, in those of their squares.
- In NeuralSort neighbours differ by one gap over tau, and items k apart by about k² gaps: the more
  items on the same range, the smaller tau must be.
- `OptimalTransportSort` divides the scores by their standard deviation first, so that epsilon has
  no unit. Neighbours are told apart where their gap, divided by n, is more than epsilon.
- `FastSoftRank` gives exact ranks where neighbours differ by more than epsilon, `FastSoftSort`
  exact values where they differ by less than 1 / epsilon.
"""


def newest_results() -> Results:
    """Return the results of the last complete benchmark."""
    return Results.read(sorted((ROOT / "benchmarks" / "results").glob("*.jsonl"))[-1])


def main() -> None:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write docs/how_to_choose.md.")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    text = page(newest_results())
    if not parser.parse_args().check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit("docs/how_to_choose.md is out of date; run: make choose")


if __name__ == "__main__":
    main()
