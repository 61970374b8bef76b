"""`python -m softorder info`: what was built here, and which kernel would be chosen."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Iterator, Sequence

import numpy

import softorder
from softorder._array import wiring_of
from softorder._extension import cpu_threads, extension, why_missing
from softorder._kernels.dispatch import DENSE_ENTRIES, automatic
from softorder._kernels.scores import hard_sort
from softorder._kernels.spec import KernelSpec, Stationary


def describe() -> Iterator[tuple[str, str]]:
    """Yield what there is to know about this installation, as pairs of name and text."""
    yield "softorder", softorder.__version__
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if extension is None:
        yield "native kernel", f"not there: {why_missing()}"
    else:
        used = extension.instruction_set()
        yield "native kernel", f"built, for NumPy, torch and JAX; uses {used} instructions here"
    yield "threads", f"{cpu_threads()} (NumPy and JAX; for tensors of torch its own setting)"
    for framework in ("numpy", "torch", "jax", "tensorflow"):
        yield framework, _version(framework)
    for metric, name in ((1.0, '"abs"'), (2.0, '"square"'), (1.5, "other powers, callables")):
        small, large = (_chosen(n, metric) for n in (10, 10**5))
        text = small if small == large else f"{small} up to n^2 = {DENSE_ENTRIES}, then {large}"
        yield f"metric {name}", f"{text} (arrays on the CPU)"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # What is imported as tensorflow may have been installed as tensorflow-cpu.
        others = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(others[0]) if others else "not installed"


def _chosen(n: int, metric: float) -> str:
    x = numpy.zeros(n)
    return automatic(KernelSpec(Stationary(metric), 1.0), hard_sort(wiring_of(x=x), x, None))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m softorder", description=softorder.__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="what was built here, and which kernel would be chosen")
    parser.parse_args(arguments)
    facts = list(describe())
    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        print(f"{name:<{width}}  {text}")


if __name__ == "__main__":
    main()
