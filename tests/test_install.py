"""What is installed: with and without a compiler, the licences, the page of an index."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("scikit_build_core")


def build(folder, **environment):
    """Build a wheel as pip does, and unpack it; return its name and the folder."""
    source = folder / "source"
    ignored = shutil.ignore_patterns(".*", "build", "results", "records", "__pycache__")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = "import sys; from scikit_build_core import build; print(build.build_wheel('..'))"
    done = subprocess.run(
        [sys.executable, "-c", command],
        cwd=source,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    name = done.stdout.split()[-1]
    zipfile.ZipFile(folder / name).extractall(folder / "site")
    return name, folder / "site"


@pytest.fixture(scope="module")
def without_compiler(tmp_path_factory):
    return build(tmp_path_factory.mktemp("failed"), CXX="false", SOFTORDER_NATIVE="1")


@pytest.fixture(scope="module")
def on_purpose(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pure"), SOFTORDER_NATIVE="0")


def run(site, *arguments):
    return subprocess.run(
        # Not the package that is installed for development, nor its hook.
        [sys.executable, "-S", "-W", "always", *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), *packages()])},
        cwd=site,
        capture_output=True,
        text=True,
        check=True,
    )


def packages():
    return [path for path in sys.path if path.endswith("-packages")]


def test_an_installation_without_a_compiler_says_so(without_compiler):
    """Nobody sees what a build says, and pip keeps the wheel that it made."""
    name, site = without_compiler
    assert name.endswith("py3-none-any.whl")
    done = run(site, "-c", "import softorder; print(softorder.__file__)")
    assert str(site) in done.stdout
    assert "UserWarning: softorder has no native kernel: its build failed" in done.stderr
    assert "pip install --force-reinstall --no-deps --no-cache-dir softorder" in done.stderr
    info = run(site, "-m", "softorder", "info").stdout
    assert re.search(r"native kernel +not there: its build failed .*--no-cache-dir", info)


def test_an_installation_without_the_native_kernel_on_purpose_is_silent(on_purpose):
    name, site = on_purpose
    assert name.endswith("py3-none-any.whl")
    program = "import numpy, softorder; print(softorder.sort(numpy.array([2.0, 1.0]), 1e-3))"
    done = run(site, "-c", program)
    assert done.stdout.strip() == "[1. 2.]"
    assert not done.stderr
    info = run(site, "-m", "softorder", "info").stdout
    assert re.search(r"native kernel +not there: left out on purpose .*--no-cache-dir", info)


def test_licences_of_what_is_inside_are_in_the_wheel(on_purpose):
    (folder,) = on_purpose[1].glob("*.dist-info/licenses")
    found = {path.name: path.read_text() for path in folder.rglob("*.*") if path.is_file()}
    assert "Wenzel Jakob" in found["nanobind.txt"]
    assert "Thibaut Goetghebuer-Planchon" in found["robin-map.txt"]
    assert (folder / "LICENSE").is_file()


def test_the_page_of_an_index_has_no_relative_links(on_purpose):
    (path,) = on_purpose[1].glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    assert metadata["Description-Content-Type"] == "text/markdown"
    page = metadata.get_payload()
    assert "# softorder" in page
    assert "make test" in page
    targets = re.findall(r'\]\(([^)]*)\)|(?:src|srcset|href)="([^"]*)"', page)
    assert targets
    assert all("".join(pair).startswith("https://") for pair in targets)
