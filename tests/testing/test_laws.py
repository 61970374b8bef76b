"""The public laws: every relaxation of the library keeps them, and a wrong one breaks its own."""

import pathlib
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch

import softorder as so
import softorder.torch
from catalog import OF_SCORES, bent
from softorder.testing import LAWS, LawBroken, check_relaxation, laws
from wrong_relaxations import (
    AlteredRank,
    AlteredSort,
    AveragedRank,
    CertainRows,
    Clipped,
    Downwards,
    HeavyRows,
    Increasing,
    LastDim,
    NaivePower,
    NeverCold,
    OneDirection,
    Rows,
    UnstableRows,
    WithIntegers,
    WithoutMask,
    batch_mixed,
    counted_from_zero,
    crash_without_items,
    first_item_counts_more,
    half_in_float32,
    in_float64,
    nan_everywhere,
    nan_nowhere,
    ranks_in_half,
    slope_off,
    slope_off_at_ties,
    slope_off_under_a_mask,
)

pytestmark = pytest.mark.usefixtures("small_tiles")

LIMIT = "limit_is_the_hard_operation"
EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "own_relaxation.py"

# ---------------------------------------------------------------- what keeps the laws


OF_MATRIX = {law.name for law in LAWS if law.operations == ("matrix",)}


@pytest.mark.parametrize("how", OF_SCORES)
def test_every_relaxation_of_the_library_keeps_every_law(how):
    report = check_relaxation(how)
    assert set(report.skipped) == (set() if "matrix" in report.offers else OF_MATRIX)
    assert set(report.laws) == {law.name for law in LAWS} - set(report.skipped)


def test_a_metric_of_differences_alone_is_found_to_be_invariant():
    for metric, invariant in (("square", True), (1.5, True), (bent, False)):
        report = check_relaxation(so.SoftSort(0.7, metric), framework="numpy")
        assert report.offers == ("sort", "rank", "matrix")
        assert report.translation_invariant == invariant


def test_a_module_with_parameters_is_examined_in_torch_alone():
    report = check_relaxation(softorder.torch.SoftSort(0.5, learnable_tau=True), framework="torch")
    assert report.skipped == {LIMIT: "no limit is known (pass cold=)"}


def test_numpy_alone_examines_values():
    report = check_relaxation(so.SoftSort(), framework="numpy")
    assert set(report.skipped.values()) == {'framework="numpy"'}
    assert {law.name for law in LAWS if law.of in ("derivatives", "gradients")} == set(
        report.skipped
    )
    assert report.smooth_at_ties is None


def test_without_torch_derivatives_are_skipped_and_the_report_says_so():
    program = """
import sys
sys.modules["torch"] = None
import softorder as so
from softorder.testing import check_relaxation
print(check_relaxation(so.SoftSort()))
try:
    check_relaxation(so.SoftSort(), framework="torch")
except ImportError:
    print("torch was asked for by name")
"""
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], check=True, capture_output=True, text=True
    )
    assert "not examined, torch is not installed: first_derivatives_are_right, " in run.stdout
    assert "smooth at ties:        not measured" in run.stdout
    assert "torch was asked for by name" in run.stdout


def test_importing_the_suite_imports_no_framework():
    program = "import softorder.testing, sys; assert not {'torch', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_the_global_random_numbers_are_left_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    check_relaxation(AlteredSort(lambda y, x, mask: y))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


# ---------------------------------------------------------------- what breaks them


WRONG = [
    (WithIntegers(), "integer_scores_are_a_type_error", "matrix"),
    (AlteredSort(in_float64), "dtype_in_is_dtype_out", "sort"),
    (AlteredSort(half_in_float32), "half_precision_loses_rounding_alone", "sort"),
    (AlteredRank(ranks_in_half), "half_precision_loses_rounding_alone", "rank"),
    (AlteredSort(batch_mixed), "batch_rows_are_independent_in_any_dim", "sort"),
    (LastDim(), "batch_rows_are_independent_in_any_dim", "sort"),
    (AlteredRank(crash_without_items), "empty_input_gives_empty_output", "rank"),
    (Rows(rows=HeavyRows), "rows_are_distributions", "matrix"),
    (Rows(rows=UnstableRows), "order_is_the_stable_argsort", "matrix"),
    (Rows(rows=CertainRows), "products_are_those_of_the_matrix", "matrix"),
    (Downwards(), "results_count_upwards", "sort"),
    (Increasing(), "order_is_the_stable_argsort", "matrix"),
    (OneDirection(), "descending_reverses", "sort"),
    (NeverCold(), LIMIT, "sort"),
    (AlteredRank(counted_from_zero), "one_item_stays_as_it_is", "rank"),
    (AlteredSort(first_item_counts_more), "items_in_another_order_change_nothing", "sort"),
    (WithoutMask(), "mask_is_removal", "sort"),
    (Clipped(), "infinite_items_form_blocks_of_their_own", "sort"),
    (AlteredSort(nan_everywhere), "nan_spoils_its_own_batch_row_alone", "sort"),
    (AlteredSort(nan_nowhere), "nan_spoils_its_own_batch_row_alone", "sort"),
    (AlteredSort(slope_off), "first_derivatives_are_right", "sort"),
    (AlteredRank(slope_off), "first_derivatives_are_right", "rank"),
    (NaivePower(), "second_derivatives_are_right", "sort"),
    (AlteredSort(slope_off_at_ties), "a_tied_group_moves_as_one", "sort"),
    (AveragedRank(), "gradients_of_tied_pairs_are_central_differences", "rank"),
    (AlteredSort(slope_off_under_a_mask), "mask_is_removal (gradients)", "sort"),
]


def named(how, law, operation):
    wrong = getattr(how, "change", None) or getattr(how, "rows", None) or type(how)
    return pytest.param(how, law, operation, id=wrong.__name__)


@pytest.mark.parametrize(("how", "law", "operation"), [named(*case) for case in WRONG])
def test_a_wrong_relaxation_breaks_the_law_that_it_breaks(how, law, operation):
    with pytest.raises(LawBroken) as broken:
        check_relaxation(how)
    text = str(broken.value)
    assert f"{type(how).__name__} breaks the law {law} in {operation}." in text
    function = getattr(laws, law.split()[0])
    assert function.__doc__ in text
    assert "\nExpected " in text
    assert "; got " in text
    assert len(text) < 900


def test_a_crash_is_a_broken_law_with_its_cause():
    with pytest.raises(LawBroken, match="Expected no exception; got ValueError: ") as broken:
        check_relaxation(AlteredRank(crash_without_items))
    assert isinstance(broken.value.__cause__, ValueError)
    assert isinstance(broken.value, AssertionError)


def test_every_law_states_itself_in_one_sentence():
    for law in LAWS:
        text = law.function.__doc__
        assert text.endswith(".")
        assert "\n" not in text
    assert len({law.name for law in LAWS}) == len(LAWS)


@pytest.mark.parametrize(
    "bad", [0.1, so.SoftSort, object(), so.Relaxation()], ids=["number", "class", "object", "empty"]
)
def test_what_is_no_relaxation_is_a_type_error(bad):
    with pytest.raises(TypeError, match=r"relaxation must be an object .*; got .*\. The class"):
        check_relaxation(bad)


def test_an_unknown_framework_is_an_error():
    with pytest.raises(ValueError, match=r"one of 'numpy', 'torch'; got 'tf'\. Leave it out"):
        check_relaxation(so.SoftSort(), framework="tf")  # pyright: ignore


# ---------------------------------------------------------------- the example


def test_the_example_keeps_every_law(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.startswith(f"CauchySort offers sort, rank, matrix and keeps {len(LAWS)}")


def test_the_broken_example_names_the_law_and_fails():
    run = subprocess.run([sys.executable, EXAMPLE, "--broken"], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("LawBroken: CarelessSort breaks the law mask_is_removal in sort.")
