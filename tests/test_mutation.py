"""A test suite that cannot fail proves nothing: break the library by 1e-3 and see it turn red."""

import pathlib
import subprocess
import sys

import pytest

from perturbations import PERTURBATIONS

TESTS = pathlib.Path(__file__).parent
# The fast ones, those that find most things first; test_contract.py takes long to collect.
FAST = [
    "test_kernels.py::test_every_product_is_the_dense_one",
    "test_kernels.py::test_derivatives_of_every_kind",
    "test_kernels.py::test_forward_mode_is_finite_differences",
    "test_permutation.py",
    "test_softsort.py",
    "test_ops.py",
]


def fast_tests(name):
    """Return the tests that are likeliest to notice, and quickly."""
    if "." in name:
        return [f"test_{name.split('.')[0]}.py"]
    return ["test_neuralsort.py"] if "neuralsort" in name else FAST


def fails(name, tests):
    """Tell whether tests fail with one perturbation."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--perturb={name}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=TESTS,
        capture_output=True,
        text=True,
    )
    # 1 = tests ran and failed; anything else (2 = could not run) would be a broken check.
    assert run.returncode in (0, 1), f"{run.stdout}\n{run.stderr}"
    return run.returncode == 1


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbed_library_fails(name):
    noticed = fails(name, fast_tests(name)) or fails(name, ["test_contract.py"])
    assert noticed, f"--perturb={name} went unnoticed"
