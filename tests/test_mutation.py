"""A test suite that cannot fail proves nothing: break the library by 1e-3 and see it turn red."""

import pathlib
import subprocess
import sys

import pytest

from perturbations import KERNEL_PERTURBATIONS, PERTURBATIONS

TESTS = pathlib.Path(__file__).parent
# The fast files: what they catch, the whole suite catches.
FILES = ["test_permutation.py", "test_softsort.py", "test_ops.py", "test_contract.py"]
KERNEL_FILES = ["test_kernels.py", *FILES]


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbed_library_fails(name):
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--perturb={name}"]
    files = KERNEL_FILES if name in KERNEL_PERTURBATIONS else FILES
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=TESTS,
        capture_output=True,
        text=True,
    )
    # 1 = tests ran and failed; anything else (2 = could not run) would be a broken check.
    assert run.returncode == 1, f"--perturb={name} went unnoticed:\n{run.stdout}\n{run.stderr}"
