"""A test suite that cannot fail proves nothing: break the library by 1e-3 and see it turn red."""

import pathlib
import subprocess
import sys

import pytest

from perturbations import PERTURBATIONS

TESTS = pathlib.Path(__file__).parent
PRODUCTS = "test_every_product_is_the_dense_one"
DERIVATIVES = "test_derivatives_of_every_kind"
# Those that find most things in least time come first.
KERNELS = [
    "test_permutation.py",
    "test_ops.py",
    "test_kernels.py::test_forward_mode_is_finite_differences",
    f"test_kernels.py::{PRODUCTS}",
    f"test_neuralsort.py::{PRODUCTS}",
    f"test_kernels.py::{DERIVATIVES}",
    "test_softsort.py",
]
NEURALSORT = [
    f"test_neuralsort.py::{PRODUCTS}",
    "test_neuralsort.py::test_the_matrix_is_the_oracles",
    "test_neuralsort.py::test_values_and_gradients_are_the_literal_formula",
    f"test_neuralsort.py::{DERIVATIVES}",
]


def fast_tests(name):
    """Return the tests that are likeliest to notice, and quickly."""
    if "." in name:
        return [f"test_{name.split('.')[0]}.py", "test_contract.py::test_first_derivatives"]
    return NEURALSORT if "neuralsort" in name else KERNELS


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
