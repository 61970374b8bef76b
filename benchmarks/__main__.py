"""The command line: `python -m benchmarks`, from the root of the project."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import BACKWARD, FORWARD, QUICK_SHAPES, SHAPES, Case, Shape, shape_name
from benchmarks.checks import comparisons
from benchmarks.implementation import LONG_SHAPE
from benchmarks.registry import FAMILIES, IMPLEMENTATIONS, select
from benchmarks.report import write_report
from benchmarks.runner import ROOT, Limits, Runner


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Time and peak memory of soft sorting and ranking. Each case runs in its own "
        "process, and only if its implementation agrees with the reference.",
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        choices=[*FAMILIES, *IMPLEMENTATIONS],
        help="measure only this family or implementation (repeatable). "
        f"Families: {', '.join(FAMILIES)}. Implementations: {'; '.join(IMPLEMENTATIONS)}",
    )
    parser.add_argument(
        "--shape", metavar="B,N", action="append", type=_shape, help="only this shape (repeatable)"
    )
    parser.add_argument("--quick", action="store_true", help="a short smoke test on one shape")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="append JSON lines here; table.md and speed.png go beside it "
        "(default: build/benchmarks/<date>.jsonl; what is committed is in benchmarks/results/)",
    )
    parser.add_argument(
        "--report",
        metavar="FILE",
        type=Path,
        help="measure nothing; make the table and the figure from this file",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=float,
        default=Limits.time_limit,
        help="the limit for each process (default %(default)s)",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if something failed or differs from its reference."""
    options = parse(arguments)
    if options.report:
        print(write_report(options.report))
        return 0

    names = select(options.only or FAMILIES)
    shapes = options.shape or (QUICK_SHAPES if options.quick else SHAPES)
    directions = (BACKWARD,) if options.quick else (FORWARD, BACKWARD)
    runner = Runner(
        Limits(seconds=0.1 if options.quick else 1.0, time_limit=options.time_limit),
        options.output or _default_output(),
    )

    if options.quick:
        runner.verify(names, largest_n=300)
    else:
        for name in names:  # one process each, so that a crash is attributed to the right one
            runner.verify([name], largest_n=LONG_SHAPE[1])
    for shape in shapes:
        for name in names:
            for direction in directions:
                wanted = IMPLEMENTATIONS[name].is_timed(shape, direction)
                if name in runner.verified and wanted:
                    runner.measure(Case(name, shape, direction))
    if not options.quick:
        for left, right in comparisons():
            together = {left.implementation, right.implementation} <= runner.verified
            if together and {left.shape, right.shape} <= set(shapes):
                runner.compare(left, right)

    print("\n" + write_report(runner.output))
    for failure in runner.failures:
        print(failure, file=sys.stderr)
    return 1 if runner.failures else 0


def _shape(text: str) -> Shape:
    try:
        batch, n = (int(float(part)) for part in text.split(","))
    except ValueError:
        example = shape_name(SHAPES[0])
        raise argparse.ArgumentTypeError(
            f"expected B,N such as {example.strip('()').replace(' ', '')}, received {text!r}"
        ) from None
    return batch, n


def _default_output() -> Path:
    """Return the default output, which is not among the committed results."""
    name = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}.jsonl"
    return ROOT / "build/benchmarks" / name


if __name__ == "__main__":
    sys.exit(main())
