"""A few seconds of `make fuzz`, the same in every run, and proof that it finds what is broken."""

import numpy as np
import pytest
import torch

import fuzz
from forks import is_true_in_a_forked_child, needs_fork, passes_in_a_fresh_process
from perturbations import PERTURBATIONS

# About ten seconds on an idle machine.
CASES = 120
# Wrong by 1e-3, or at ties alone.
BROKEN = ["apply", "ties_items", "ties_positions", "tiled_transposed", "vjp.where"]
BROKEN += [name for name in ("native_apply", "native_log_prob_tau") if name in PERTURBATIONS]


def test_a_few_seconds_of_fuzzing_find_nothing():
    assert [line for line in map(fuzz.find, range(CASES)) if line] == []


def test_one_seed_is_one_case():
    first, second = (fuzz.draw(5).inputs() for _ in range(2))
    assert first.keys() == second.keys()
    for name, x in first.items():
        np.testing.assert_array_equal(x, second[name])


def search_broken_libraries():
    torch.set_num_threads(1)
    for name in BROKEN:
        assert is_true_in_a_forked_child(lambda name=name: is_noticed(name), seconds=300), name


def is_noticed(name):
    PERTURBATIONS[name]()
    return any(fuzz.find(seed) is not None for seed in range(CASES))


@pytest.mark.slow
@needs_fork
def test_fuzzing_finds_what_is_broken():
    assert passes_in_a_fresh_process(search_broken_libraries)


def test_a_finding_says_how_to_repeat_it(monkeypatch):
    monkeypatch.setattr(fuzz, "examine", lambda case: fuzz.compare_one("it", *np.eye(2), 0.1))
    line = fuzz.find(7)
    assert line.count("\n") == 0
    assert "it differs by 1, allowed 0.1" in line
    assert line.endswith("tests/fuzz.py --case 7")
