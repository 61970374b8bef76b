"""The checks of a complete run. The limits are requirements, never fitted to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.cases import FORWARD, Case, Shape, shape_name
from benchmarks.results import Results

METRICS = ("abs", "square")
TINY: tuple[Shape, ...] = ((20, 5), (1, 10))
MILLION: Shape = (1, 10**6)
HUNDRED_THOUSAND: Shape = (1, 10**5)
TEN_THOUSAND: Shape = (1, 10**4)
PEER_SHAPES: tuple[Shape, ...] = ((20, 100), (20, 1000), (20, 4000), HUNDRED_THOUSAND)
NEURALSORT_SHAPES: Mapping[str, tuple[Shape, ...]] = {
    "cold": ((20, 100), (20, 1000)),
    "warm": ((20, 100), (20, 1000), (20, 4000)),
}


@dataclass(frozen=True)
class Check:
    """A number that a run must reach.

    Attributes:
        text: A description of the number.
        number: Reads the number from the results; returns None if it was not measured.
        limit: The limit.
        at_least: Whether the number must be at least (rather than at most) the limit.
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
    """Yield the pairs of cases with a check on their ratio whose times are of similar size."""
    for metric in METRICS:
        for shape in (*TINY, (20, 100)):
            yield _against_dense(metric, shape)
    yield _against_sort()
    for shape in PEER_SHAPES:
        yield _against_torchsort(shape)
    for metric in METRICS:
        yield _portable_against_native(metric)
    for kind, shapes in NEURALSORT_SHAPES.items():
        for shape in shapes:
            yield _against_corrected(kind, shape)


def checks() -> Iterator[Check]:
    """Yield all checks."""
    yield from _checks_of_speed()
    yield from _checks_of_size()
    yield from _checks_of_small_sizes()
    yield from _checks_of_portable()
    yield from _checks_of_neuralsort()


def _checks_of_speed() -> Iterator[Check]:
    for metric, least in (("abs", 1000), ("square", 300)):
        yield _times_faster(metric, _against_dense(metric, (20, 4000)), "dense", least)
    for metric in METRICS:
        pair = _against_dense(metric, (20, 4000))
        yield Check(
            f"(20, 4000) {metric}: extra memory over dense",
            lambda r, p=pair: _over(r.memory(p[0]), r.memory(p[1])),
            1 / 200,
        )
    for metric in METRICS:
        yield _times_faster(metric, _against_dense(metric, (20, 1000)), "dense", 200)
    for metric in METRICS:
        yield _times_faster_in_turns(metric, _against_dense(metric, (20, 100)), "dense", 5)
    yield Check(
        "(1, 10^6) abs: time over torch.sort alone, in turns",
        lambda r: r.ratio(*_against_sort()),
        1.3,
    )
    for shape in PEER_SHAPES:
        least = 3 if shape == HUNDRED_THOUSAND else 1
        yield _times_faster_in_turns("abs", _against_torchsort(shape), "torchsort", least)


def _checks_of_size() -> Iterator[Check]:
    for metric in METRICS:
        yield Check(
            f"{metric}: time at 10^6 over time at 10^5",
            lambda r, m=metric: _growth(r.seconds, f"softorder {m}", HUNDRED_THOUSAND, MILLION),
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


def _checks_of_small_sizes() -> Iterator[Check]:
    for metric in METRICS:
        for shape in TINY:
            yield _time_over(metric, _against_dense(metric, shape), "dense", 1.15)


def _checks_of_portable() -> Iterator[Check]:
    for metric in METRICS:
        yield Check(
            f"(1, 10^6) {metric}: time of portable over native, in turns",
            lambda r, m=metric: r.ratio(*_portable_against_native(m)),
            12,
        )
        yield Check(
            f"portable {metric}: extra memory at 10^6 over that at 10^5 (10 is linear)",
            lambda r, m=metric: _growth(r.memory, f"portable {m}", HUNDRED_THOUSAND, MILLION),
            11,
        )


def _checks_of_neuralsort() -> Iterator[Check]:
    large = _against_corrected("cold", (20, 4000))
    yield _times_faster("NeuralSort cold", large, "corrected", 20)
    for kind, shapes in NEURALSORT_SHAPES.items():
        for shape in shapes:
            pair = _against_corrected(kind, shape)
            yield _time_over(f"NeuralSort {kind}", pair, "corrected", 1.0)
    yield Check(
        "NeuralSort cold: extra memory at 10^5 over that at 10^4 (10 is linear)",
        lambda r: _growth(r.memory, "softorder NeuralSort cold", TEN_THOUSAND, HUNDRED_THOUSAND),
        11,
    )
    for kind in NEURALSORT_SHAPES:
        case = Case(f"softorder NeuralSort {kind}", HUNDRED_THOUSAND)
        yield Check(
            f"(1, 10^5) NeuralSort {kind}: forward + backward runs (1: yes, 0: no)",
            lambda r, c=case: r.succeeded(c),
            1,
            at_least=True,
        )


def _against_dense(metric: str, shape: Shape) -> tuple[Case, Case]:
    return Case(f"softorder {metric}", shape), Case(f"dense {metric}", shape)


def _against_sort() -> tuple[Case, Case]:
    return Case("softorder abs", MILLION), Case("torch.sort", MILLION, FORWARD)


def _against_torchsort(shape: Shape) -> tuple[Case, Case]:
    return Case("softorder abs", shape), Case("torchsort soft_sort", shape)


def _portable_against_native(metric: str) -> tuple[Case, Case]:
    return Case(f"portable {metric}", MILLION), Case(f"native {metric}", MILLION)


def _against_corrected(kind: str, shape: Shape) -> tuple[Case, Case]:
    mine, theirs = f"softorder NeuralSort {kind}", f"NeuralSort corrected {kind}"
    return Case(mine, shape), Case(theirs, shape)


def _times_faster(what: str, pair: tuple[Case, Case], than: str, least: float) -> Check:
    mine, theirs = pair
    return Check(
        f"{shape_name(mine.shape)} {what}: times faster than {than}",
        lambda r: _over(r.seconds(theirs), r.seconds(mine)),
        least,
        at_least=True,
    )


def _times_faster_in_turns(what: str, pair: tuple[Case, Case], than: str, least: float) -> Check:
    return Check(
        f"{shape_name(pair[0].shape)} {what}: times faster than {than}, in turns",
        lambda r: _over(1.0, r.ratio(*pair)),
        least,
        at_least=True,
    )


def _time_over(what: str, pair: tuple[Case, Case], other: str, most: float) -> Check:
    return Check(
        f"{shape_name(pair[0].shape)} {what}: time over {other}, in turns",
        lambda r: r.ratio(*pair),
        most,
    )


def _growth(
    quantity: Callable[[Case], float | None], implementation: str, small: Shape, large: Shape
) -> float | None:
    """Return a quantity at a large shape, divided by the same at a small one."""
    return _over(quantity(Case(implementation, large)), quantity(Case(implementation, small)))


def _over(one: float | None, other: float | None) -> float | None:
    """Return the ratio, or None if a value was not measured or is too small to measure."""
    return None if one is None or not other else one / other
