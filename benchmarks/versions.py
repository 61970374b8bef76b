"""Two versions of softorder, in turns: what a change costs, with ties and without.

    pip install --target FOLDER --no-deps OLD_CHECKOUT
    python -m benchmarks.versions FOLDER    # appends a line to build/benchmarks/versions.jsonl

Forward and backward in torch, float32, one thread. Scores with ties are rounded to bfloat16. Each
version has a process of its own; they take turns, case by case, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SHAPES = ((1, 10), (100, 10), (20, 100), (20, 1000), (1, 100_000), (1, 1_000_000))
CASES = list(itertools.product(("sort", "rank"), ("abs", "square"), SHAPES, (False, True)))
CASES += list(itertools.product(("rank",), ("neuralsort",), SHAPES[:4], (False, True)))
ROUNDS, SECONDS = 7, 0.1


def main(arguments: list[str] | None = None) -> None:
    """Compare the version in a folder with this one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument("before", type=Path, help="where the other version is installed")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "build/benchmarks/versions.jsonl", metavar="FILE"
    )
    options = parser.parse_args(arguments)
    if options.child:
        serve(options.before)
        return
    from softorder_experiments.machine import OtherWork, describe

    other = OtherWork()
    ratios = compare(options.before.resolve())
    line = {"machine": describe(), "other_work": other.share(), "ratios": ratios}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def compare(before: Path) -> list[dict[str, Any]]:
    """Return the times of each case in both versions, in microseconds, and their ratio."""
    versions = {"before": _start(before), "after": _start(ROOT / "src")}
    found = []
    for case in CASES:
        least = dict.fromkeys(versions, float("inf"))
        for _ in range(ROUNDS):
            for name, process in versions.items():
                least[name] = min(least[name], _ask(process, case))
        operation, how, shape, ties = case
        ratio = least["after"] / least["before"]
        times = {name: round(value * 1e6, 1) for name, value in least.items()}
        found.append(
            {"operation": operation, "how": how, "shape": shape, "ties": ties, **times}
            | {"ratio": round(ratio, 3)}
        )
        print(f"{operation:5} {how:10} {shape!s:15} {'ties' if ties else '':5} {ratio:.3f}")
    for process in versions.values():
        process.communicate()
    return found


def _start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.versions", "--child", str(folder)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def _ask(process: subprocess.Popen[str], case: tuple[Any, ...]) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(case) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def serve(folder: Path) -> None:
    """Answer each case on the standard input with its time."""
    if folder != ROOT / "src":
        # Without the finder of the version that is installed for development.
        sys.meta_path[:] = [
            each for each in sys.meta_path if "editable" not in type(each).__module__
        ]
        sys.path.insert(0, str(folder))
    import torch

    import softorder

    assert Path(softorder.__file__).is_relative_to(folder), softorder.__file__
    torch.set_num_threads(1)
    steps: dict[str, Callable[[], None]] = {}
    for line in sys.stdin:
        if line not in steps:
            steps = {line: _prepare(torch, softorder, *json.loads(line))}
        print(_least_time(steps[line]), flush=True)


def _prepare(
    torch: Any, softorder: Any, operation: str, how: str, shape: list[int], ties: bool
) -> Callable[[], None]:
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


def _least_time(step: Callable[[], None]) -> float:
    least, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        start = time.perf_counter()
        step()
        least = min(least, time.perf_counter() - start)
    return least


if __name__ == "__main__":
    main()
