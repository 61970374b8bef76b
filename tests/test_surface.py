"""The public surface: names, documentation, examples, layers, and what importing costs."""

import doctest
import importlib
import inspect
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from importlinter.application.use_cases import read_user_options
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

import frameworks
import softorder
from softorder import relaxations
from tolerances import ENGINE_VALUES, PRINTED

ROOT = pathlib.Path(__file__).parents[1]
FRAMEWORKS = ("jax", "tensorflow", "torch")
INSTALLED = [name for name in FRAMEWORKS if frameworks.is_installed(name)]
PACKAGES = [importlib.import_module(f"softorder.{name}") for name in INSTALLED]
MODULES = [softorder, *PACKAGES, relaxations]
RENAMED = {"kernels", "ops", "permutation", "plackett_luce"}
SOURCES = sorted(
    path for path in (ROOT / "src" / "softorder").rglob("*.py") if path.stem not in RENAMED
)


def module_name(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path):
    """Return the package inside softorder that a file is in, which may be a framework's."""
    return path.relative_to(ROOT / "src" / "softorder").parts[0]


def skip_without(framework):
    if framework in FRAMEWORKS and framework not in INSTALLED:
        pytest.skip(f"{framework} is not installed")


def test_importing_softorder_imports_no_framework():
    program = "import softorder, sys; assert not {'torch', 'jax', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_numpy_users_never_import_a_framework():
    program = """
import sys, numpy as np, softorder as so
x = np.array([2.0, 5.0, 4.0])
so.sort(x, 0.1), so.rank(x), so.median(x), so.SoftSort()(x).hard() @ x
assert not {'torch', 'jax', 'tensorflow'} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_without_torch_its_package_says_what_to_install():
    program = "import sys; sys.modules['torch'] = None; import softorder.torch"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 1
    assert 'needs PyTorch; it is not installed. Run: pip install "softorder[torch]"' in run.stderr


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_all_is_true(module):
    assert module.__all__ == sorted(module.__all__)
    for name in module.__all__:
        # What is imported only when it is asked for is there afterwards.
        vars(module).setdefault(name, getattr(module, name))
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(module.__all__)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_public_names_are_offered_for_completion(module, monkeypatch):
    if hasattr(module, "__getattr__"):
        # As before the first of them was asked for.
        for name in module.__all__:
            monkeypatch.delitem(vars(module), name, raising=False)
    assert set(module.__all__) <= set(dir(module))


def public_objects():
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            yield pytest.param(value, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("thing", list(public_objects()))
def test_every_public_name_is_documented(thing):
    assert inspect.getdoc(thing), "no docstring"
    members = [thing]
    if inspect.isclass(thing):
        members += [
            m.fget if isinstance(m, property) else m
            for name, m in vars(thing).items()
            if not name.startswith("_") and (callable(m) or isinstance(m, property))
        ]
    for member in members:
        text = member.__doc__ or ""
        assert text.strip(), f"{member} has no docstring"
        if not inspect.isfunction(member):
            continue
        # A function that documents arguments documents them all.
        parameters = [p for p in inspect.signature(member).parameters if p not in ("self", "cls")]
        if "Args:" in text:
            for parameter in parameters:
                assert re.search(rf"^\s+{parameter}: ", text, re.M), f"{member}: {parameter}"


def test_every_operation_has_an_example_and_its_arguments():
    for name in softorder.__all__:
        thing = getattr(softorder, name)
        if inspect.isfunction(thing):
            for section in ("Args:", "Example:"):
                assert section in (thing.__doc__ or ""), f"{name} lacks {section}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT / "src")))
def test_docstring_examples(path):
    skip_without(package_of(path))
    assert doctest.testmod(importlib.import_module(module_name(path))).failed == 0


def test_there_are_docstring_examples_at_all():
    there = [p for p in SOURCES if package_of(p) not in set(FRAMEWORKS) - set(INSTALLED)]
    attempted = [doctest.testmod(importlib.import_module(module_name(p))).attempted for p in there]
    assert sum(attempted) >= 40


def readme_blocks(language):
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def test_every_python_block_of_the_readme_runs_in_order():
    blocks = readme_blocks("python")
    assert len(blocks) >= 4
    namespace: dict = {}
    missing = tuple(f"import {name}" for name in FRAMEWORKS if name not in INSTALLED)
    for block in blocks:
        if block.startswith(missing):
            continue
        exec(compile(block, "README.md", "exec"), namespace)
    # What the comments promise, to the digits that are printed.
    for expression, printed in promises("\n".join(blocks[:1])):
        value = np.asarray(eval(expression, namespace).tolist())
        np.testing.assert_allclose(
            value, eval(printed), atol=PRINTED[4], rtol=0, err_msg=expression
        )
    first = namespace["P"].rows(0).tolist()
    expected = namespace["torch"].softmax(namespace["x"], -1).tolist()
    np.testing.assert_allclose(first, expected, rtol=ENGINE_VALUES["abs", "float32"])
    assert namespace["soft_sorted"].shape == (16, 5, 8)
    assert namespace["probabilities"].shape == (6, 10)


def promises(block):
    """Return the expressions of a block whose result is told in a comment, and what is told."""
    printed = r"^(\S.*?) +# (?:tensor|array|Array|tf\.Tensor)\((\[.*?\])\)"
    found = re.findall(printed, block, re.M)
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("framework", [*FRAMEWORKS, "numpy"])
def test_the_ten_lines_of_a_framework_need_no_other(framework):
    """In a process where the others cannot be imported."""
    skip_without(framework)
    (block,) = (b for b in readme_blocks("python") if b.split()[:2] == ["import", framework])
    others = [name for name in FRAMEWORKS if name != framework]
    plain = "torch.Tensor.tolist" if framework == "torch" else ""
    program = [f"import sys; sys.modules.update(dict.fromkeys({others}))", "import numpy", block]
    program += [
        f"numpy.testing.assert_allclose({plain}({expression}), {told}, atol={PRINTED[4]})"
        for expression, told in promises(block)
    ]
    subprocess.run([sys.executable, "-c", "\n".join(program)], check=True)


def test_every_shell_command_of_the_readme_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [line for block in readme_blocks("sh") for line in block.splitlines()]
    assert commands
    for command in commands:
        # Those of softorder are run by test_experiments_cli.py.
        known = command.startswith(("pip install", "softorder "))
        assert known or command.split()[1] in targets, command


def test_the_readme_links_to_files_that_exist():
    text = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_the_layers_hold():
    """`import-linter` reads the layers from pyproject.toml."""
    config = str(ROOT / "pyproject.toml")
    options = read_user_options(config_filename=config)
    assert len(options.contracts_options) >= 2
    assert lint_imports(config_filename=config, no_cache=True) == EXIT_STATUS_SUCCESS


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_the_old_name_of_a_module_gives_the_new_one_with_a_warning(old):
    program = f"""
import importlib, sys, warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    module = importlib.import_module("softorder.{old}")
assert [w.category for w in seen] == [DeprecationWarning]
assert "softorder.{old} is private now" in str(seen[0].message)
assert module is sys.modules["softorder._{old}"]
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_old_names_of_modules_inside_the_kernels_give_the_new_ones():
    program = """
from softorder.kernels.balance import Balance
from softorder.kernels.dense import RowSoftmax
from softorder._kernels import dense, doubly_stochastic
assert (RowSoftmax, Balance) == (dense.RowSoftmax, doubly_stochastic.Balance)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
