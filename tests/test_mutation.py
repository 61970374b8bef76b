"""A test suite that cannot fail proves nothing: break the library by 1e-3 and see it turn red."""

import multiprocessing
import os
import pathlib
import sys

import pytest
import torch.autograd.gradcheck

from perturbations import PERTURBATIONS

TESTS = pathlib.Path(__file__).parent
# Ninety processes, each of which needs torch: one imports it, and is forked for each.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["torch", "softorder.torch", "hypothesis", "scipy.stats"])
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
    if name.startswith("experiments"):
        return [f"test_{name.split('.')[0]}.py", "-k", "not processes and not killed"]
    if "_tie" in name or name.startswith("ties"):
        return ["test_ties.py::test_the_gradient_at_ties_is_the_mean_over_all_orders"]
    if "." in name:
        return [f"test_{name.split('.')[0]}.py", "test_contract.py::test_first_derivatives"]
    return NEURALSORT if "neuralsort" in name else KERNELS


# What a test says when a number is wrong. Anything else is a perturbation that does not run.
WRONG_NUMBER = (AssertionError, pytest.fail.Exception, torch.autograd.gradcheck.GradcheckError)
CRASHED = 100


class Crashes:
    """A plugin of pytest that knows whether a test failed otherwise than by a wrong number."""

    found = False

    def pytest_exception_interact(self, call):
        error = call.excinfo.value
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.found = self.found or not isinstance(error, WRONG_NUMBER)


def run_perturbed(name, tests, output):
    """Run tests with one perturbation, in a process of their own, and exit as pytest does."""
    # Read only if the tests could not run.
    sys.stdout = sys.stderr = open(output, "w")  # noqa: SIM115
    os.chdir(TESTS)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    crashes = Crashes()
    code = pytest.main([*options, f"--perturb={name}", *tests], plugins=[crashes])
    sys.stdout.flush()
    os._exit(CRASHED if crashes.found else code)


def fails(name, tests, folder):
    """Tell whether tests fail with one perturbation."""
    output = folder / "output.txt"
    process = PROCESSES.Process(target=run_perturbed, args=(name, tests, output))
    process.start()
    process.join()
    # 1 = a test found a wrong number; anything else (2 = could not run) would be a broken check.
    assert process.exitcode in (0, 1), output.read_text()
    return process.exitcode == 1


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbed_library_fails(name, tmp_path):
    noticed = fails(name, fast_tests(name), tmp_path) or fails(name, ["test_contract.py"], tmp_path)
    assert noticed, f"--perturb={name} went unnoticed"
