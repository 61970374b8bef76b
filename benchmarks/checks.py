"""What a complete run must show. The limits are requirements: they are never fitted to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.cases import FORWARD, Case, Shape, shape_name
from benchmarks.results import Results

METRICS = ("abs", "square")
TINY: tuple[Shape, ...] = ((20, 5), (1, 10))
MILLION: Shape = (1, 10**6)
HUNDRED_THOUSAND: Shape = (1, 10**5)
PEER_SHAPES: tuple[Shape, ...] = ((20, 100), (20, 1000), (20, 4000), HUNDRED_THOUSAND)


@dataclass(frozen=True)
class Check:
    """A number that a run must reach.

    Attributes:
        text: What the number is.
        number: Reads it from the results; None where it was not measured.
        limit: What it must reach.
        at_least: Whether the limit is the least (else the most) it may be.
    """

    text: str
    number: Callable[[Results], float | None]
    limit: float
    at_least: bool = False

    def line(self, results: Results) -> str:
        """Return the line of the report: verdict, text, number and limit."""
        number = self.number(results)
        bound = f"at {'least' if self.at_least else 'most'} {self.limit:.4g}"
        if number is None:
            return f"-    {self.text}: not measured ({bound})"
        passed = number >= self.limit if self.at_least else number <= self.limit
        return f"{'yes ' if passed else 'NO  '} {self.text}: {number:.4g} ({bound})"


def comparisons() -> Iterator[tuple[Case, Case]]:
    """Yield the pairs whose ratio is judged and whose times are near enough to take turns."""
    for metric in METRICS:
        for shape in (*TINY, (20, 100)):
            yield Case(f"softorder {metric}", shape), Case(f"dense {metric}", shape)
    yield _against_sort()
    for shape in PEER_SHAPES:
        yield Case("softorder abs", shape), Case("torchsort", shape)
    for metric in METRICS:
        yield _portable_against_native(metric)


def checks() -> Iterator[Check]:
    """Yield every check that can be read from a run."""
    for metric, least in (("abs", 1000), ("square", 300)):
        yield _speed_up(metric, (20, 4000), least)
    for metric in METRICS:
        yield Check(
            f"(20, 4000) {metric}: extra memory over dense",
            lambda r, m=metric: _over(
                r.memory(Case(f"softorder {m}", (20, 4000))),
                r.memory(Case(f"dense {m}", (20, 4000))),
            ),
            1 / 200,
        )
    for metric in METRICS:
        yield _speed_up(metric, (20, 1000), 200)
    for metric in METRICS:
        pair = Case(f"softorder {metric}", (20, 100)), Case(f"dense {metric}", (20, 100))
        yield Check(
            f"(20, 100) {metric}: times faster than dense, in turns",
            lambda r, p=pair: _over(1.0, r.ratio(*p)),
            5,
            at_least=True,
        )
    yield Check(
        "(1, 10^6) abs: time over torch.sort alone, in turns",
        lambda r: r.ratio(*_against_sort()),
        1.3,
    )
    for shape in PEER_SHAPES:
        pair = Case("softorder abs", shape), Case("torchsort", shape)
        yield Check(
            f"{shape_name(shape)} abs: times faster than torchsort, in turns",
            lambda r, p=pair: _over(1.0, r.ratio(*p)),
            3 if shape == HUNDRED_THOUSAND else 1,
            at_least=True,
        )
    for metric in METRICS:
        yield Check(
            f"{metric}: time at 10^6 over time at 10^5",
            lambda r, m=metric: _growth(r.seconds, f"softorder {m}"),
            14,
        )
    for metric in METRICS:
        yield Check(
            f"(1, 10^7) {metric}: bytes of extra memory per element",
            lambda r, m=metric: _over(r.memory(Case(f"softorder {m}", (1, 10**7))), 10**7),
            300,
        )
    yield Check(
        "(1, 10^8) abs, forward: GiB of extra memory",
        lambda r: _over(r.memory(Case("softorder abs", (1, 10**8), FORWARD)), 2**30),
        24,
    )
    for metric in METRICS:
        for shape in TINY:
            pair = Case(f"softorder {metric}", shape), Case(f"dense {metric}", shape)
            yield Check(
                f"{shape_name(shape)} {metric}: time over dense, in turns",
                lambda r, p=pair: r.ratio(*p),
                1.15,
            )
    for metric in METRICS:
        yield Check(
            f"(1, 10^6) {metric}: time of portable over native, in turns",
            lambda r, m=metric: r.ratio(*_portable_against_native(m)),
            12,
        )
        yield Check(
            f"portable {metric}: extra memory at 10^6 over that at 10^5 (10 is linear)",
            lambda r, m=metric: _growth(r.memory, f"portable {m}"),
            11,
        )


def _against_sort() -> tuple[Case, Case]:
    return Case("softorder abs", MILLION), Case("torch.sort", MILLION, FORWARD)


def _portable_against_native(metric: str) -> tuple[Case, Case]:
    return Case(f"portable {metric}", MILLION), Case(f"native {metric}", MILLION)


def _speed_up(metric: str, shape: Shape, least: float) -> Check:
    return Check(
        f"{shape_name(shape)} {metric}: times faster than dense",
        lambda r: _over(
            r.seconds(Case(f"dense {metric}", shape)), r.seconds(Case(f"softorder {metric}", shape))
        ),
        least,
        at_least=True,
    )


def _growth(quantity: Callable[[Case], float | None], implementation: str) -> float | None:
    """Return a quantity at n = 10^6 over the same at 10^5."""
    return _over(
        quantity(Case(implementation, MILLION)), quantity(Case(implementation, HUNDRED_THOUSAND))
    )


def _over(one: float | None, other: float | None) -> float | None:
    """Divide what was measured; None where it was not, or is below what can be measured."""
    return None if one is None or not other else one / other
