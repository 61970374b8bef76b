"""The public conformance suite: what it passes, and which law it names for what is wrong."""

import dataclasses
import pathlib
import runpy
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

import softorder as so
import softorder.torch
from catalog import TEMPERATURE, bent
from inside import Dense, Explicit
from softorder import relaxations, testing
from softorder.extend import RowSoftmax
from softorder.testing import LawBroken, check_relaxation

pytestmark = pytest.mark.usefixtures("small_tiles")

LIMIT = "limit_is_the_hard_operation"
EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "own_relaxation.py"

# ---------------------------------------------------------------- what keeps the laws


OF_MATRIX = {law.name for law in testing.LAWS if law.operations == ("matrix",)}
OFFERING = [
    name
    for name in relaxations.__all__
    if any(hasattr(getattr(relaxations, name), way) for way in ("permutation", "rank", "sort"))
]


@pytest.mark.parametrize("name", OFFERING)
def test_every_relaxation_of_the_library_keeps_every_law(name):
    has_limit = TEMPERATURE[name] is not None
    report = check_relaxation(getattr(relaxations, name)(), cold=None if has_limit else False)
    expected = set() if "matrix" in report.offers else OF_MATRIX
    assert set(report.skipped) == expected | (set() if has_limit else {LIMIT})
    assert set(report.laws) == {law.name for law in testing.LAWS} - set(report.skipped)


@pytest.mark.parametrize("metric", ["square", 1.5, bent], ids=["square", "1.5", "bent"])
def test_variants_keep_every_law(metric):
    report = check_relaxation(so.SoftSort(0.7, metric))
    assert report.offers == ("sort", "rank", "matrix")
    assert not report.skipped
    assert report.translation_invariant == (metric is not bent)


def test_a_module_with_parameters_is_examined_in_torch_alone():
    report = check_relaxation(softorder.torch.SoftSort(0.5, learnable_tau=True), framework="torch")
    assert report.skipped == {LIMIT: "no limit is known (pass cold=)"}


def test_numpy_alone_examines_values():
    report = check_relaxation(so.SoftSort(), framework="numpy")
    assert set(report.skipped.values()) == {'framework="numpy"'}
    assert {law.name for law in testing.LAWS if law.of in ("derivatives", "gradients")} == set(
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


@dataclasses.dataclass(frozen=True, eq=False)
class AlteredSort(so.Relaxation):
    """SoftSort's sort and no more, with its result altered by `change(y, x, mask)`."""

    change: Callable
    tau: float = 1.0

    def sort(self, values, *, dim, descending, mask):
        y = so.sort(values, self.tau, dim=dim, descending=descending, mask=mask)
        return self.change(y, values, mask)


@dataclasses.dataclass(frozen=True, eq=False)
class AlteredRank(so.Relaxation):
    """The same for its rank, without a temperature."""

    change: Callable

    def rank(self, scores, *, dim, descending, mask):
        y = so.rank(scores, 1.0, dim=dim, descending=descending, mask=mask)
        return self.change(y, scores, mask)


class AveragedRank(so.Relaxation):
    """Smooth ranks with the whole gradient averaged over tied scores."""

    def rank(self, scores, *, dim, descending, mask):
        x = scores
        if isinstance(x, torch.Tensor) and x.ndim == 1 and mask is None and x.isfinite().all():
            tied = (x[:, None] == x).to(x.dtype)
            x = x.detach() + (tied / tied.sum(-1)) @ (x - x.detach())
        return so.rank(x, so.ApproximateRank(), dim=dim, descending=descending, mask=mask)


def slope_off(y, x, mask):
    return y + 1e-3 * (y - y.detach()) if isinstance(y, torch.Tensor) else y


def slope_off_under_a_mask(y, x, mask):
    return y if mask is None else slope_off(y, x, mask)


def slope_off_at_ties(y, x, mask):
    if not isinstance(x, torch.Tensor) or x.ndim > 1 or mask is not None:
        return y
    tied = (x[:, None] == x).sum(-1) > 1
    lean = torch.cos(torch.arange(len(x))).to(x.dtype)
    return y + torch.where(tied, (x - x.detach()) * lean, 0).sum()


def in_float64(y, x, mask):
    return y.double() if isinstance(y, torch.Tensor) else y.astype(np.float64)


def half_in_float32(y, x, mask):
    return y.float() if isinstance(y, torch.Tensor) and y.dtype.itemsize == 2 else y


def ranks_in_half(y, x, mask):
    return y.to(x.dtype) if isinstance(y, torch.Tensor) else y


def batch_mixed(y, x, mask):
    return y + 1e-6 * y.sum() if y.ndim > 1 else y


def nan_everywhere(y, x, mask):
    return y * np.nan if mask is None and (x != x).any() else y


def nan_nowhere(y, x, mask):
    return y if isinstance(y, torch.Tensor) else np.nan_to_num(y, posinf=np.inf, neginf=-np.inf)


def first_item_counts_more(y, x, mask):
    return y + 1e-3 * (x[..., :1] - x[..., -1:]) if mask is None and x.ndim == 2 else y


def counted_from_zero(y, x, mask):
    return y - 1


def crash_without_items(y, x, mask):
    return y / y.max() * y.max() if y.ndim == 1 else y


class WithIntegers(so.SoftSort):
    def permutation(self, scores, *, dim=-1, mask=None):
        scores = scores if scores.dtype != np.int64 else scores.astype(np.float64)
        return super().permutation(scores, dim=dim, mask=mask)


class WithoutMask(so.SoftSort):
    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores, dim=dim)


class Clipped(so.SoftSort):
    """Infinities become large numbers: they are then sorted with the others."""

    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores.clip(-10_000, 10_000), dim=dim, mask=mask)


class NeverCold(so.SoftSort):
    def weights(self, scores):
        return so.SoftSort(max(self.tau, 0.5)).weights(scores)


class HeavyRows(Dense):
    def log_rows(self, rows=None):
        return super().log_rows(rows) + 2e-3


class CertainRows(Dense):
    def entropy(self, rows=None):
        return super().entropy(rows) * (1 - 1e-3)


class UnstableRows(Dense):
    @property
    def order(self):
        xp = self.wiring.xp
        return xp.flip(xp.argsort(self.scores.scores, axis=-1, stable=True), axis=-1)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(so.SoftSort):
    """SoftSort with another operator."""

    rows: type[Dense] = Dense

    def weights(self, scores):
        spec = super().weights(scores)
        return Explicit(lambda scores: self.rows(spec.formula.rows(scores, spec.tau), scores))


class Increasing(so.SoftSort):
    """The matrix of the increasing order."""

    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores, dim=dim, mask=mask).flip()


class NaivePower(so.SoftSort):
    """|u|^1.5 as it stands: its second derivative at 0 is infinite."""

    def weights(self, scores):
        def logits(scores, rows):
            gap = scores.at(rows)[..., :, None] - scores.items[..., None, :]
            return -(abs(gap) ** 1.5) / self.tau

        return RowSoftmax(logits)


class Downwards(so.Relaxation):
    def sort(self, values, *, dim, descending, mask):
        return so.sort(values, 1.0, dim=dim, descending=not descending, mask=mask)


class OneDirection(so.Relaxation):
    def sort(self, values, *, dim, descending, mask):
        return so.sort(values, 1.0, dim=dim, mask=mask)


class LastDim(so.Relaxation):
    def sort(self, values, *, dim, descending, mask):
        return so.sort(values, 1.0, descending=descending, mask=mask)


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
    function = getattr(testing, law.split()[0])
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
    for law in testing.LAWS:
        text = law.function.__doc__
        assert text.endswith(".")
        assert "\n" not in text
    assert len({law.name for law in testing.LAWS}) == len(testing.LAWS)


@pytest.mark.parametrize(
    "bad", [0.1, so.SoftSort, object(), so.Relaxation()], ids=["number", "class", "object", "empty"]
)
def test_what_is_no_relaxation_is_a_type_error(bad):
    with pytest.raises(TypeError, match=r"relaxation must be an object .*; got .*\. The class"):
        check_relaxation(bad)


def test_an_unknown_framework_is_an_error():
    with pytest.raises(ValueError, match=r"one of 'numpy', 'torch'; got 'tf'\. Leave it out"):
        check_relaxation(so.SoftSort(), framework="tf")  # pyright: ignore


# ---------------------------------------------------------------- what is measured


def measured(how, *names):
    operations = [testing._Operation(name, how, torch, values_in_torch=False) for name in names]
    return testing._report(operations, laws=(), skipped={})


class Standardised(so.SoftSort):
    def permutation(self, scores, *, dim=-1, mask=None):
        return super().permutation(scores / scores.std(-1)[..., None], dim=dim, mask=mask)


class Sigmoids(so.Relaxation):
    """Ranks that are smooth at ties."""

    def rank(self, scores, *, dim, descending, mask):
        lead = scores[..., :, None] - scores[..., None, :]
        return 0.5 + (1 / (1 + np.e**-lead)).sum(-1)


def test_columns_that_sum_to_one_are_seen():
    assert not measured(so.SoftSort(0.5), "matrix").doubly_stochastic
    assert measured(so.SoftSort(1e-3), "matrix").doubly_stochastic
    assert measured(so.SoftSort(1e-3), "rank").doubly_stochastic is None
    assert measured(so.SoftSort(0.5), "matrix").row_stochastic
    assert not measured(Rows(rows=HeavyRows), "matrix").row_stochastic


def test_a_jump_of_derivatives_at_ties_is_seen():
    assert measured(Sigmoids(), "rank").smooth_at_ties
    for metric in ("abs", "square", 0.5, 1.5):
        assert not measured(so.SoftSort(1.0, metric), "sort", "rank", "matrix").smooth_at_ties


@pytest.mark.parametrize("name", ["sort", "rank", "matrix"])
def test_invariance_is_seen(name):
    plain = measured(so.SoftSort(), name)
    assert (plain.translation_invariant, plain.scale_invariant) == (True, False)
    divided = measured(Standardised(), "matrix")
    assert (divided.translation_invariant, divided.scale_invariant) == (True, True)
    assert not measured(so.SoftSort(metric=bent), name).translation_invariant


def test_a_report_prints_what_was_found():
    report = testing.Report(
        "Mine", ("rank",), ("a", "b"), {"c": "why", "d": "so", "e": "why"}, None, None, *[True] * 3
    )
    assert str(report).splitlines() == [
        "Mine offers rank and keeps 2 laws.",
        "  not examined, so: d",
        "  not examined, why: c, e",
        "  row stochastic:        not measured",
        "  doubly stochastic:     not measured",
        "  smooth at ties:        yes",
        "  translation invariant: yes",
        "  scale invariant:       yes",
    ]


# ---------------------------------------------------------------- the example


def test_the_example_keeps_every_law(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.startswith(f"CauchySort offers sort, rank, matrix and keeps {len(testing.LAWS)}")


def test_the_broken_example_names_the_law_and_fails():
    run = subprocess.run([sys.executable, EXAMPLE, "--broken"], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("LawBroken: CarelessSort breaks the law mask_is_removal in sort.")
