"""Settings of the test suite, and the switch that breaks the library on purpose."""

import os

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

from perturbations import PERTURBATIONS
from softorder.kernels import native

# One thread per worker: the suite runs on several processes, and small tensors gain nothing.
torch.set_num_threads(1)

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=2000)
# To see that a test fails is enough: nobody reads the smallest example.
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


def pytest_configure(config):
    name = config.getoption("--perturb")
    if name is not None:
        PERTURBATIONS[name]()
        settings.load_profile("perturbed")
    coverage = config.pluginmanager.getplugin("_cov")
    if coverage is not None and not native.is_built():
        # A tenth of the library serves the native kernel, and cannot be reached without it.
        coverage.options.cov_fail_under = 85


@pytest.fixture(autouse=True)
def _seed():
    """The same random numbers in every run, those that torch's own checks draw included."""
    torch.manual_seed(20200713)


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
