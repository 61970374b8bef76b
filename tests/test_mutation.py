"""A test suite that cannot fail proves nothing: break the library by 1e-3 and see it turn red."""

import multiprocessing
import os
import pathlib
import sys

import pytest
from torch.autograd.gradcheck import GradcheckError

from perturbations import PERTURBATIONS

TESTS = pathlib.Path(__file__).parent
# Many processes, each of which needs torch: one imports it, and is forked for each.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["softorder.torch._autograd", "hypothesis", "scipy.stats"])
pytestmark = pytest.mark.slow

# Of each list, the tests that notice most in least time come first: the first failure is enough.
PRODUCTS = "kernels/test_products.py::test_every_product_is_the_dense_one"
DERIVATIVES = "kernels/test_gradients.py::test_derivatives_of_every_kind"
FORWARD_MODE = "kernels/test_gradients.py::test_forward_mode_is_finite_differences"
LAWS = "testing/test_laws.py::test_every_relaxation_of_the_library_keeps_every_law"
DENSE = ["test_permutation.py", PRODUCTS, FORWARD_MODE, DERIVATIVES, "test_ops.py"]
FAST = [PRODUCTS, FORWARD_MODE, DERIVATIVES, "test_permutation.py", "test_ops.py"]
TILED = ["kernels/test_tiled.py", *FAST]
NEURALSORT = [
    "kernels/test_neuralsort.py::test_the_matrix_is_the_oracles",
    "kernels/test_neuralsort.py::test_values_and_gradients_are_the_literal_formula",
    PRODUCTS,
    DERIVATIVES,
    *("-k", "neuralsort"),
]
TIES = ["kernels/test_ties.py::test_the_gradient_at_ties_is_the_mean_over_all_orders"]


def file_of(name):
    """Return the test file of a module, from the folder of the tests."""
    (found,) = TESTS.rglob(f"test_{name}.py")
    return str(found.relative_to(TESTS))


def watchers_of(name):
    """Return the tests that must notice a perturbation."""
    module, _, rest = name.partition(".")
    if module.startswith("experiments"):
        return [file_of(module), "-k", "not processes and not killed"]
    if "_tie" in name or name.startswith("ties"):
        return TIES
    if name == "tensorflow.logsumexp":
        return ["test_tensorflow_graphs.py::test_the_likelihood_of_plackett_luce"]
    if module == "vjp":
        return ["test_vjp_rules.py", "test_vjp.py"]
    if rest.endswith("gradient"):
        # The laws examine derivatives; of all relaxations only the one that is perturbed.
        return [LAWS, file_of(module), "-k", f"{module} or {module.replace('_', '')}"]
    if rest:
        return [file_of(module), LAWS]
    if "neuralsort" in name:
        return NEURALSORT
    if name.startswith("tiled"):
        return TILED
    return FAST if name.startswith(("native", "scan")) else DENSE


# What a test says when a number is wrong. Anything else is a perturbation that does not run.
WRONG_NUMBER = (AssertionError, pytest.fail.Exception, GradcheckError)
# Exit codes. A process that crashes, before pytest or in it, has others.
UNNOTICED, NOTICED = 100, 101


class Crashes:
    """A plugin of pytest that knows whether a test failed for another reason than a number."""

    found = False

    def pytest_exception_interact(self, call):
        error = call.excinfo.value
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self.found = self.found or not isinstance(error, WRONG_NUMBER)


def run_perturbed(name, tests, output):
    """Run tests, in a process of their own, and exit with what they found. None breaks nothing."""
    # Read only if the tests could not run.
    sys.stdout = sys.stderr = open(output, "w")  # noqa: SIM115
    os.chdir(TESTS)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov"]
    # Of hypothesis, which is there already.
    options.append("-Wignore::pytest.PytestAssertRewriteWarning")
    if name is not None:
        options.append(f"--perturb={name}")
    crashes = Crashes()
    code = pytest.main([*options, *tests], plugins=[crashes])
    sys.stdout.flush()
    if code == pytest.ExitCode.TESTS_FAILED and not crashes.found:
        os._exit(NOTICED)
    os._exit(UNNOTICED if code == pytest.ExitCode.OK else code)


def fails(name, tests, folder):
    """Tell whether tests fail with a perturbation."""
    output = folder / "output.txt"
    process = PROCESSES.Process(target=run_perturbed, args=(name, tests, output))
    process.start()
    process.join()
    assert process.exitcode in (NOTICED, UNNOTICED), output.read_text()
    return process.exitcode == NOTICED


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbed_library_fails(name, tmp_path):
    assert fails(name, watchers_of(name), tmp_path), f"--perturb={name} went unnoticed"


def test_a_library_that_is_not_perturbed_passes(tmp_path):
    """Or else every perturbation would be noticed."""
    for tests in (DENSE[:2], NEURALSORT[:2]):
        assert not fails(None, tests, tmp_path)
