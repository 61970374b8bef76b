"""Settings of the test suite, and the switch that breaks the library on purpose."""

import importlib.metadata
import os
import pathlib
import re

import coverage
import pytest
from hypothesis import HealthCheck, Phase, settings

import frameworks
import inside

TESTS = pathlib.Path(__file__).parent
HAS_TORCH = frameworks.is_installed("torch")
HAS_EXPERIMENTS = frameworks.extra_is_installed("experiments")
if HAS_TORCH:
    import torch

    from perturbations import PERTURBATIONS

    # One thread for each worker: the suite runs in several processes, and small tensors gain
    # nothing from more.
    torch.set_num_threads(1)
else:
    PERTURBATIONS = {}
# XLA compiles thousands of small programs here, and this flag halves the time. It aborts at flags
# that it does not know, so only the version of constraints.txt gets it.
if frameworks.is_installed("jax") and importlib.metadata.version("jaxlib") == "0.10.2":
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")
# Keep TensorFlow quiet when it is imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=2000)
# A perturbed run only has to fail, so the failing example need not be shrunk.
settings.register_profile(
    "perturbed",
    parent=settings.get_profile("default"),
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_addoption(parser):
    parser.addoption(
        "--perturb",
        choices=sorted(PERTURBATIONS),
        help="break one part of the library by 1e-3; the suite must then fail (test_mutation.py)",
    )
    parser.addoption(
        "--framework",
        action="append",
        choices=frameworks.NAMES,
        help="examine this framework only (may be given several times); default: all installed",
    )


def _frameworks_of(path):
    """Return the frameworks that a file imports itself, and those that its helpers import."""
    text, helpers = path.read_text(), set()
    for name in re.findall(r"^(?:import|from) (\w+)", text, re.M):
        if (TESTS / f"{name}.py").exists():
            helpers |= set.union(*_frameworks_of(TESTS / f"{name}.py"))
    return set(re.findall(r"^(?:import|from) (torch|jax|tensorflow)\b", text, re.M)), helpers


def pytest_ignore_collect(collection_path, config):
    """Skip files that need what is not installed, or a framework that was not asked for."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    wanted = config.getoption("--framework") or frameworks.NAMES
    needed, helpers = _frameworks_of(collection_path)
    if collection_path.name.startswith(_NEED_TORCH):
        needed |= {"torch"}
    if _NEED_EXPERIMENTS.match(collection_path.name) and not HAS_EXPERIMENTS:
        return True
    missing = (name for name in needed | helpers if not frameworks.is_installed(name))
    return bool(needed - set(wanted)) or any(missing) or None


# These need torch without importing it themselves.
_NEED_TORCH = ("test_experiments", "test_mutation", "test_project", "test_surface")
# These need what softorder[experiments] brings; the memory of a process needs torch alone.
_NEED_EXPERIMENTS = re.compile("test_experiments_(?!memory)")


def pytest_report_header(config):
    """Say which frameworks are examined, and whether the experiments are not."""
    states = []
    for name in config.getoption("--framework") or frameworks.NAMES:
        states.append(name if frameworks.is_installed(name) else f"{name} (not installed)")
    left_out = "" if HAS_EXPERIMENTS else "; experiments (not installed)"
    return f"frameworks: {', '.join(states)}{left_out}"


def pytest_configure(config):
    for asked in config.getoption("--framework") or ():
        if not frameworks.is_installed(asked):
            raise pytest.UsageError(
                f"--framework {asked}: it is not installed. "
                f'Run: pip install "softorder[{asked}]", or leave the option out.'
            )
    name = config.getoption("--perturb")
    if name is not None:
        PERTURBATIONS[name]()
        settings.load_profile("perturbed")
    counting = config.pluginmanager.getplugin("_cov")
    if counting is not None and inside.extension is None:
        # A tenth of the library serves the native kernel and cannot be reached without it.
        counting.options.cov_fail_under = 85


# Slow tests, found by their name: processes that are started, killed and resumed, wheels that are
# built, pages that are made anew, and programs that are compiled again and again.
_SLOW = re.compile(
    r"killed|test_install\.py|experiments_(processes|speed|sweep_engines)\.py|need_no_other"
    r"|the_table_of_the_docs|test_project\.py::test_(the_page|what_the_results|the_quickstart)"
    r"|a_download_that|python_block_of_the_readme|every_instruction_set|compile|tracing\.py"
    r"|freed_memory|in_torch\.py::test_(grad_transform|vmap_inside|forward_mode)"
    r"|tolerance_is_reached|while_tracing|long_rows|hundred_thousand|test_fuzz\.py"
    r"|test_derivatives_of_products|every_law\[OptimalTransport"
)


def pytest_collection_modifyitems(items):
    """Mark those tests as slow, and skip the native engine where it was not built."""
    for item in items:
        if _SLOW.search(item.nodeid):
            item.add_marker(pytest.mark.slow)
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if inside.extension is None and any(type(x) is str and x == "native" for x in parameters):
            item.add_marker(pytest.mark.skip(reason="no native kernel"))


@pytest.fixture(autouse=True)
def _seed():
    """Give every run the same random numbers, those that torch's own checks draw included."""
    if HAS_TORCH:
        torch.manual_seed(20200713)


@pytest.fixture(params=frameworks.NAMES)
def framework(request):
    """Each framework that is installed, and was asked for."""
    name = request.param
    if name not in (request.config.getoption("--framework") or frameworks.NAMES):
        pytest.skip(f"{name} was not asked for")
    if not frameworks.is_installed(name):
        pytest.skip(f"{name} is not installed")
    return frameworks.framework(name)


# These files run lines thousands of times that other files run too, and to count them would make
# the suite a third longer.
_NOT_COUNTED = (
    "test_accuracy",
    "test_autograd",
    "test_contract",
    "test_gradients",
    "test_in_torch",
    "test_permutation_lifetime",
    "test_parity",
    "test_processes",
    "test_products",
    "test_special_inputs",
    "test_temperature",
    "test_tie_oracle",
    "test_ties",
)


@pytest.fixture(scope="module", autouse=True)
def _coverage(request):
    """Stop counting lines in these files, once each; pytest-cov's marker would do so per test."""
    counting = coverage.Coverage.current()
    if counting is None or request.module.__name__ not in _NOT_COUNTED:
        yield
        return
    counting.stop()
    yield
    counting.start()


@pytest.fixture
def small_tiles(monkeypatch):
    """Let a few items make several tiles."""
    monkeypatch.setattr(inside.tiled, "TILE", 16)


@pytest.fixture
def tiny_tiles(monkeypatch):
    """Cut tiles so small that a band of weights is several of them wide."""
    monkeypatch.setattr(inside.tiled, "TILE", 1 << 10)
    monkeypatch.setattr(inside.tiled, "WASTE", 1 << 6)


@pytest.fixture
def no_kernel_is_left_over():
    """See that a test ends with the choice of the engine left to the library."""
    yield
    assert inside.dispatch.chosen_kernel() is None


@pytest.fixture
def generator():
    """A seeded source of random numbers."""
    return torch.Generator().manual_seed(20200713)


@pytest.fixture
def readable(monkeypatch):
    """Let every data set be images of 2 x 2 equal pixels that are the digit."""
    from softorder_experiments import data

    labels = torch.arange(1000) % 10
    images = labels.to(torch.uint8)[:, None, None, None].expand(1000, 1, 2, 2).contiguous()
    pool = data.Pool(images, labels, white=16)
    pools = {"train": pool, "validation": pool[:200], "test": pool[:400]}
    monkeypatch.setattr(data, "load", lambda name: pools)
