"""A test suite that cannot fail proves nothing: break the library by 1e-3 and see it turn red."""

import pathlib
import subprocess
import sys

import pytest

from perturbations import PERTURBATIONS

TESTS = pathlib.Path(__file__).parent
# The fast ones, those that find most things first: what they catch, the whole suite catches.
TESTS_IN_ORDER = [
    "test_kernels.py::test_every_product_is_the_dense_one",
    "test_kernels.py::test_derivatives_of_every_kind",
    "test_kernels.py::test_forward_mode_is_finite_differences",
    "test_permutation.py",
    "test_softsort.py",
    "test_ops.py",
    "test_contract.py",
]


def tests_for(name):
    """Return the test files in the order in which they are likeliest to notice."""
    if "." in name:
        return [f"test_{name.split('.')[0]}.py", "test_contract.py"]
    return [*(["test_neuralsort.py"] if "neuralsort" in name else []), *TESTS_IN_ORDER]


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbed_library_fails(name):
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--perturb={name}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests_for(name)],
        cwd=TESTS,
        capture_output=True,
        text=True,
    )
    # 1 = tests ran and failed; anything else (2 = could not run) would be a broken check.
    assert run.returncode == 1, f"--perturb={name} went unnoticed:\n{run.stdout}\n{run.stderr}"
