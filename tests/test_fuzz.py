"""A few seconds of `make fuzz`, the same in every run, and proof that it finds what is broken."""

import multiprocessing
import os

import pytest
import torch

import fuzz
from perturbations import PERTURBATIONS

# About ten seconds on an idle machine.
CASES = 300
# Broken by 1e-3, or at ties alone.
BROKEN = ["apply", "ties_items", "ties_positions", "tiled_transposed", "vjp.where"]
BROKEN += [name for name in ("native_apply", "native_log_prob_tau") if name in PERTURBATIONS]


def test_a_few_seconds_of_fuzzing_find_nothing():
    assert [line for line in map(fuzz.find, range(CASES)) if line] == []


def test_the_same_seed_is_the_same_case():
    first, second = fuzz.draw(5), fuzz.draw(5)
    assert str(first) == str(second)
    for name, x in first.inputs().items():
        torch.testing.assert_close(x, second.inputs()[name], rtol=0, atol=0, equal_nan=True)


def search_broken(name):
    """Exit with 1 as soon as a perturbed library is noticed, in a process of its own."""
    torch.set_num_threads(1)
    PERTURBATIONS[name]()
    os._exit(any(fuzz.find(seed) is not None for seed in range(CASES)))


@pytest.mark.parametrize("name", BROKEN)
def test_fuzzing_finds_what_is_broken(name):
    process = multiprocessing.get_context("forkserver").Process(target=search_broken, args=[name])
    process.start()
    process.join()
    assert process.exitcode == 1, f"{name} went unnoticed"
