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


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbed_library_fails(name):
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--perturb={name}"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *TESTS_IN_ORDER],
        cwd=TESTS,
        capture_output=True,
        text=True,
    )
    # 1 = tests ran and failed; anything else (2 = could not run) would be a broken check.
    assert run.returncode == 1, f"--perturb={name} went unnoticed:\n{run.stdout}\n{run.stderr}"
