"""Compare the speed of two versions of softorder, in turns, with and without ties.

    pip install --target FOLDER --no-deps OLD_CHECKOUT
    python -m benchmarks.versions FOLDER    # appends a line to build/benchmarks/versions.jsonl

Forward + backward in torch, float32, one thread. Scores with ties are rounded to bfloat16. Each
version has a process of its own. The two take turns on each case; the least time of each counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Imported before the child switches to the other version, which may not have it.
from softorder_experiments.machine import describe
from softorder_experiments.measuring import Child, Limits, OtherWork, serve, take_turns, time_calls

ROOT = Path(__file__).parents[1]
SHAPES = ((1, 10), (100, 10), (20, 100), (20, 1000), (1, 100_000), (1, 1_000_000))
CASES = list(itertools.product(("sort", "rank"), ("abs", "square"), SHAPES, (False, True)))
CASES += list(itertools.product(("rank",), ("neuralsort",), SHAPES[:4], (False, True)))
ROUNDS, SECONDS = 7, 0.1


def main(arguments: list[str] | None = None) -> None:
    """Compare the version in a folder with this one."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, help="the folder of the other version")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build/benchmarks/versions.jsonl", metavar="FILE"
    )
    options = parser.parse_args(arguments)
    if options.child:
        measure_version(options.before)
        return
    other = OtherWork()
    ratios = compare(options.before.resolve())
    line = {"machine": describe(), "other_work": other.share(), "ratios": ratios}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def compare(before: Path) -> list[dict[str, Any]]:
    """Return the times of each case in both versions, in microseconds, and their ratio."""
    command, limits = ["-m", "benchmarks.versions", "--child"], Limits(threads=1)
    versions = {
        name: Child([*command, str(folder)], limits, ROOT)
        for name, folder in {"before": before, "after": ROOT / "src"}.items()
    }
    found = []
    for operation, how, shape, ties in CASES:
        case = {"operation": operation, "how": how, "shape": shape, "ties": ties}
        timers = {name: partial(_seconds, child, case) for name, child in versions.items()}
        least = {name: min(times) for name, times in take_turns(timers, ROUNDS).items()}
        ratio = least["after"] / least["before"]
        times = {name: round(value * 1e6, 1) for name, value in least.items()}
        found.append({**case, **times, "ratio": round(ratio, 3)})
        print(
            f"{operation:5} {how:10} {shape!s:15} {'ties' if ties else '':5} {ratio:.3f}",
            flush=True,
        )
    for child in versions.values():
        child.close()
    return found


def _seconds(child: Child, case: dict[str, Any]) -> float:
    return child.run("time", case)["seconds"]


def measure_version(folder: Path) -> None:
    """Serve the times of the version in a folder: the main function of a child process."""
    if folder != ROOT / "src":
        # Without the import hook of the version that is installed for development.
        sys.meta_path[:] = [
            each for each in sys.meta_path if "editable" not in type(each).__module__
        ]
        sys.path.insert(0, str(folder))
    import softorder

    assert Path(softorder.__file__).is_relative_to(folder), softorder.__file__
    steps: dict[str, Callable[[], None]] = {}

    def time_case(**case: Any) -> dict[str, Any]:
        key = json.dumps(case)
        if key not in steps:
            steps.clear()  # free the case before
            steps[key] = _prepare(softorder, **case)
        return {"seconds": min(time_calls(steps[key], SECONDS))}

    serve({"time": time_case})


def _prepare(
    softorder: Any, operation: str, how: str, shape: list[int], ties: bool
) -> Callable[[], None]:
    import torch

    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(*shape, generator=generator) for _ in range(2))
    x = (x.bfloat16().float() if ties else x).requires_grad_()
    relaxation = softorder.NeuralSort(0.1) if how == "neuralsort" else softorder.SoftSort(0.1, how)
    function = getattr(softorder, operation)

    def step() -> None:
        torch.autograd.grad(function(x, relaxation), x, g)

    for _ in range(3):
        step()
    return step


if __name__ == "__main__":
    main()
