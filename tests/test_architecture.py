"""docs/architecture.md says where a score goes; here it is sent there."""

import ast
import pathlib
import re
import sys

import pytest
import torch

import softorder as so
from inside import extension_module

ROOT = pathlib.Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIBRARY = ROOT / "src" / "softorder"
STEP = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", re.M)
MOST_STEPS = 12

needs_native = pytest.mark.skipif(extension_module.extension is None, reason="no native kernel")


def steps(title):
    """The rows of one table: number, file, function."""
    section = re.split(r"^## ", PAGE, flags=re.M)
    (text,) = [part for part in section if part.startswith(title + "\n")]
    return [(int(number), file, name) for number, file, name in STEP.findall(text)]


TITLES = ["torch, forward", "torch, backward", "JAX, forward", "JAX, backward"]


def names_of(file):
    """The names of the functions of a file; methods and fields with their class."""
    if file.startswith("native/"):
        text = (ROOT / file).read_text()
        found = set(re.findall(r"\b(\w+)\([^;]*?\{", text))
        for name in re.findall(r"^(?:class|struct) (\w+) (?:final )?\{", text, re.M):
            body = text[re.search(rf"^(?:class|struct) {name} ", text, re.M).end() :]
            body = body[: re.search(r"^\};", body, re.M).start()]
            found |= {f"{name}::{method}" for method in re.findall(r"\b(\w+)\([^;]*?\{", body)}
        return found
    found = set()
    for node in ast.parse((LIBRARY / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    found.add(f"{node.name}.{each.name}")
                elif isinstance(each, ast.AnnAssign):
                    found.add(f"{node.name}.{ast.unparse(each.target)}")
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("title", TITLES)
def test_every_function_on_the_way_exists(title):
    assert len(steps(title)) >= 3
    for _, file, name in steps(title):
        assert name in names_of(file), f"{file} has no {name}"


# A file, a colon, and the functions in it that are meant.
NAMED = re.compile(r"`([\w/]+\.(?:py|hpp|cpp))`: ((?:`[\w.:]+`(?:, )?)+)")


@pytest.mark.parametrize(("file", "names"), NAMED.findall(PAGE), ids=lambda text: text.strip(", "))
def test_every_function_of_the_list_of_places_exists(file, names):
    assert set(re.findall(r"`([\w.:]+)`", names)) <= names_of(file)


def test_the_list_of_places_is_read():
    assert len(NAMED.findall(PAGE)) >= 15


@pytest.mark.parametrize("title", TITLES)
def test_the_way_to_cpp_is_short(title):
    numbers = [number for number, _, _ in steps(title)]
    assert numbers == sorted(numbers)
    assert numbers[-1] <= MOST_STEPS
    assert steps(title)[-1][1].startswith("native/")


@pytest.mark.parametrize(
    "name", re.findall(r"`(\w+\.\w+|\w+(?:/\w+)*/\w+\.\w+)`", PAGE), ids=lambda name: name
)
def test_every_file_on_the_page_exists(name):
    if name.endswith((".py", ".hpp", ".cpp", ".md")):
        assert any((place / name).exists() for place in (ROOT, LIBRARY, LIBRARY / "_kernels"))


def calls_of(function):
    """The functions of softorder that a call goes through, in order: file and name."""
    found = []

    def note(frame, event, _):
        file = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(LIBRARY):
            found.append((file.relative_to(LIBRARY).as_posix(), frame.f_code.co_qualname))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def sort_in_torch(title):
    x = torch.tensor([[0.3, 0.1, 0.2]], requires_grad=True)
    y = so.sort(x, 0.1)  # also what is imported and compiled at the first call
    if title == "torch, forward":
        return calls_of(lambda: so.sort(x, 0.1))
    return calls_of(lambda: y.sum().backward())


def sort_in_jax(title):
    jax = pytest.importorskip("jax")
    x = jax.numpy.array([[0.3, 0.1, 0.2]])
    loss = lambda x: so.sort(x, 0.1).sum()  # noqa: E731
    # Tracing goes through Python, and so does lowering; what runs afterwards does not.
    return calls_of(lambda: jax.jit(loss if title == "JAX, forward" else jax.grad(loss)).lower(x))


@needs_native
@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified names")
@pytest.mark.parametrize("title", TITLES)
def test_a_score_takes_the_path_of_the_page(title):
    table = dict.fromkeys(range(1, MOST_STEPS + 1))
    if title == "JAX, forward":
        table.update({number: (file, name) for number, file, name in steps("torch, forward")})
    table.update({number: (file, name) for number, file, name in steps(title)})
    calls = iter((sort_in_torch if title.startswith("torch") else sort_in_jax)(title))
    for step in filter(None, table.values()):
        if not step[0].startswith("native/"):
            assert step in calls, f"{step} is not called after the one before it"


@needs_native
@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified names")
def test_no_way_to_cpp_leads_back_through_the_kernels():
    x = torch.tensor([[0.3, 0.1, 0.2]], requires_grad=True)
    calls = calls_of(lambda: so.sort(x, 0.1).sum().backward())
    first = calls.index(("torch/_autograd.py", "_Product.forward"))
    last = max(i for i, call in enumerate(calls) if call[0] == "_extension.py")
    # A call and its formula are data: they answer what their shapes and numbers are.
    data = {"_kernels/products.py", "_kernels/spec.py", "_kernels/formulas.py"}
    between = {file for file, _ in calls[first : last + 1] if file.startswith("_kernels/")}
    assert between <= data
