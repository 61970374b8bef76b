"""Threads, forked children and instruction sets give the same numbers."""

import itertools
import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

import softorder as so
from engines import BLOCK, METRICS, arguments, make, needs_native, results, threads, weigh
from forks import is_true_in_a_forked_child, needs_fork, passes_in_a_fresh_process
from inside import extension_module


def _a_forked_child_sorts_alike():
    x = torch.randn(300_000, generator=torch.Generator().manual_seed(0))
    for descending in (True, False):
        with so.config(kernel="native"), threads(2):
            y = so.sort(x, 0.01, descending=descending)
            leaf = x.clone().requires_grad_()
            so.sort(leaf, 0.01, descending=descending).square().sum().backward()
            # Not torch.equal, which might start threads of torch's own.
            expected = y.numpy().tobytes()

            def work(descending=descending, expected=expected):
                return so.sort(x, 0.01, descending=descending).numpy().tobytes() == expected

            assert is_true_in_a_forked_child(work, 5)


@needs_native
@needs_fork
def test_a_forked_child_gives_the_right_answer():
    assert passes_in_a_fresh_process(_a_forked_child_sorts_alike)


def _a_forked_child_sorts_alike_by_neuralsort():
    x = torch.rand(20_000, generator=torch.Generator().manual_seed(0))
    how = so.NeuralSort(1.0)
    with threads(2):
        leaf = x.clone().requires_grad_()
        y = so.sort(leaf, how)
        y.square().sum().backward()
        expected = y.detach().numpy().tobytes()
        assert is_true_in_a_forked_child(
            lambda: so.sort(x, how).numpy().tobytes() == expected, seconds=20
        )


@needs_native
@needs_fork
def test_a_forked_child_gives_the_right_answer_by_neuralsort():
    assert passes_in_a_fresh_process(_a_forked_child_sorts_alike_by_neuralsort)


def _sort_in_child(queue, x, tau):
    torch.set_num_threads(1)  # as a DataLoader does
    leaf = torch.tensor(x, requires_grad=True)
    y = so.sort(leaf, tau)
    (g,) = torch.autograd.grad(y.square().sum(), leaf)
    queue.put((y.detach().numpy().tolist(), g.numpy().tolist()))


def _a_forked_worker_has_the_same_gradients():
    context = multiprocessing.get_context("fork")
    x = np.random.default_rng(0).normal(size=20_000)
    with threads(2):
        leaf = torch.tensor(x, requires_grad=True)
        y = so.sort(leaf, 0.01)
        (g,) = torch.autograd.grad(y.square().sum(), leaf)
    queue = context.Queue()
    child = context.Process(target=_sort_in_child, args=(queue, x, 0.01))
    child.start()
    found = queue.get(timeout=60)
    child.join()
    assert found[0] == y.detach().tolist()
    assert found[1] == g.tolist()


@needs_fork
def test_a_forked_worker_computes_gradients():
    assert passes_in_a_fresh_process(_a_forked_worker_has_the_same_gradients)


@needs_native
def test_many_threads_at_once():
    """Different inputs, forward and backward, long rows and short ones."""
    jobs = [(n, family) for n in (50, 3 * BLOCK + 5, 20_000, 100) for family in METRICS]
    jobs += [(n, "neuralsort") for n in (50, 3000, 700, 100, 1, 17, 257, 1030)]
    expected, found = {}, {}

    def work(job, into):
        n, family = job
        x = torch.randn(2, n, generator=torch.Generator().manual_seed(n), requires_grad=True)
        for _ in range(3):
            y = so.sort(x, make(family, 0.1))
            (g,) = torch.autograd.grad(weigh(y), x)
        into[job] = y.detach(), g

    with threads(2):
        for job in jobs:
            work(job, expected)
        pool = [threading.Thread(target=work, args=(job, found)) for job in jobs]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
    assert set(found) == set(jobs)
    for job in jobs:
        assert all(torch.equal(a, b) for a, b in zip(found[job], expected[job], strict=True))


def test_one_permutation_shared_by_threads():
    x, v, _ = arguments((3 * BLOCK,))
    P = so.SoftSort(0.1)(x)
    given = [v.to(dtype) for dtype in (torch.float32, torch.float64)] * 4
    expected = [so.SoftSort(0.1)(x) @ w for w in given]
    found = [None] * 8

    def work(i):
        for _ in range(5):
            found[i] = P @ given[i]

    pool = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@needs_native
@pytest.mark.parametrize(
    ("family", "shape"),
    [
        *itertools.product(METRICS, [(5 * BLOCK + 3,), (3, 3 * BLOCK), (300, 50)]),
        ("abs", (2, 300_000)),
        ("square", (2, 50_000)),
        *itertools.product(["neuralsort"], [(20_000,), (3, 5000), (300, 50)]),
    ],
)
def test_the_number_of_threads_does_not_change_a_bit(family, shape):
    x, v, tau = arguments(shape, torch.float32)
    x = (x * 1000).round() / 1000
    products = ["P @ v", "sort"] + (["P.T @ u"] if family == "neuralsort" else [])
    found = []
    for number in (1, 2, 4, 8):
        with threads(number):
            found.append([y for p in products for y in results("native", p, x, v, tau, family)])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a is b is None or torch.equal(a, b)


INSTRUCTION_SETS = """
import sys, torch
from engines import make, results
from inside import extension
from tolerances import AGREEMENT

torch.set_num_threads(1)
assert extension.instruction_set() == sys.argv[1]
rng = torch.Generator().manual_seed(0)
worst = 0.0
softsort = [(1, 1), (300, 1), (300, 3)]
cases = [("abs", n, f, 0.3, "portable", 1e-3) for n, f in [*softsort, (140_001, 1)]]
cases += [("square", n, f, 0.3, "portable", 1e-3) for n, f in [*softsort, (9_001, 1)]]
for n, f in [(1, 1), (7, 2), (300, 1), (300, 3), (1001, 1)]:
    cases += [("neuralsort", n, f, tau, "dense", 1e-6) for tau in (0.1, 3.0, 1000.0)]
import softorder as so
for family, n, features, tau, reference, least in cases:
    x = torch.randn(1, n, generator=rng, dtype=torch.float64)
    v = torch.randn(1, n, features, generator=rng, dtype=torch.float64)
    found = []
    for kernel in ("native", reference):
        leaves = [t.clone().requires_grad_() for t in (x, v, torch.tensor([tau]).double())]
        with so.config(kernel=kernel):
            P = make(family, leaves[2])(leaves[0])
            y, z = P @ leaves[1], P.T @ leaves[1]
        gradients = torch.autograd.grad((y * y.detach().cos()).sum() + (z * z).mean(), leaves)
        found.append([y.detach(), z.detach(), *gradients])
    for a, b in zip(*found, strict=True):
        error = float((a - b).abs().max() / b.abs().max().clamp(min=least))
        worst = max(worst, error / AGREEMENT[family])
print(worst)
assert worst < 1
"""
HERE = pathlib.Path(__file__).parent


def with_instructions(name):
    """Run that program in a process that may use one instruction set."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    return subprocess.run(
        [sys.executable, "-c", INSTRUCTION_SETS, name],
        env={**os.environ, "SOFTORDER_INSTRUCTIONS": name, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", ["baseline", "avx2", "avx512"])
def test_every_instruction_set_gives_the_same(name):
    """Users run on other machines than this one."""
    if extension_module.extension is None:
        pytest.skip("no native kernel")
    child = with_instructions(name)
    if "SOFTORDER_INSTRUCTIONS must be one of" in child.stderr:
        pytest.skip(f"this machine has no {name}")
    assert child.returncode == 0, child.stdout + child.stderr


def test_an_instruction_set_that_is_not_there_is_an_error():
    if extension_module.extension is None:
        pytest.skip("no native kernel")
    assert "SOFTORDER_INSTRUCTIONS must be one of baseline" in with_instructions("abacus").stderr
