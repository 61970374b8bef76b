"""Which engine serves: by name, by itself, or an error that says what to do."""

import contextlib
import threading

import pytest
import torch

import softorder as so
from engines import every_engine, fast_kernel, make, needs_native, weigh
from inside import NEURALSORT, PermutationRelaxation, dispatch, engine_of, extension_module
from tolerances import GRADIENTS, LIMIT, assert_close

pytestmark = pytest.mark.usefixtures("no_kernel_is_left_over")


@every_engine
def test_a_kernel_is_chosen_by_name(kernel, family):
    with so.config(kernel=kernel):
        assert engine_of(make(family, 0.1)(torch.randn(3))) == kernel


def test_left_alone_the_choice_is_automatic():
    def kernel(x, metric="abs"):
        return engine_of(so.SoftSort(0.1, metric)(x))

    on_cpu = "native" if extension_module.extension is not None else "dense"
    assert kernel(torch.randn(3)) == on_cpu
    assert kernel(torch.randn(3), 1.5) == "dense"
    assert kernel(torch.randn(3000), 1.5) == "tiled"
    assert kernel(torch.empty(3000, device="meta")) == "portable"
    assert kernel(torch.empty(3, device="meta")) == "dense"
    with so.config(kernel="dense"), so.config(kernel=None):
        assert kernel(torch.randn(3)) == on_cpu


def test_left_alone_the_choice_for_neuralsort_is_automatic(monkeypatch):
    def kernel_of(x):
        return engine_of(so.NeuralSort(0.1)(x))

    if extension_module.extension is not None:
        assert kernel_of(torch.randn(3)) == kernel_of(torch.randn(3000)) == "native"
    assert kernel_of(torch.empty(3, device="meta")) == "dense"
    assert kernel_of(torch.empty(3000, device="meta")) == "tiled"
    monkeypatch.setattr(extension_module, "extension", None)
    assert kernel_of(torch.randn(3)) == "dense"
    assert kernel_of(torch.randn(3000)) == "tiled"
    x = torch.randn(600)
    assert_close(so.sort(x, so.NeuralSort(1e-6)), x.sort().values, LIMIT)


@pytest.mark.parametrize("name", ["fast", "", 3, "Native"])
def test_an_unknown_kernel_is_an_error(name):
    with pytest.raises((ValueError, TypeError), match="kernel"), so.config(kernel=name):
        pass


@fast_kernel
@pytest.mark.parametrize("metric", [1.5, 0.5, lambda a, b: abs(a - b)])
def test_a_kernel_that_cannot_serve_a_metric_says_so(kernel, metric):
    with so.config(kernel=kernel), pytest.raises(ValueError, match=f'kernel="{kernel}".*tiled'):
        so.SoftSort(0.1, metric)(torch.randn(3))


@needs_native
def test_the_native_kernel_is_for_the_cpu():
    with so.config(kernel="native"), pytest.raises(ValueError, match=r"meta.*portable"):
        so.SoftSort(0.1)(torch.empty(3, device="meta"))


def test_a_choice_holds_in_its_own_thread_alone():
    seen = []
    with so.config(kernel="dense"):
        thread = threading.Thread(target=lambda: seen.append(dispatch.chosen_kernel()))
        thread.start()
        thread.join()
        assert dispatch.chosen_kernel() == "dense"
    assert seen == [None]


def test_choices_nest_and_end_with_an_error():
    with so.config(kernel="dense"):
        with contextlib.suppress(KeyError), so.config(kernel="tiled"):
            assert dispatch.chosen_kernel() == "tiled"
            raise KeyError
        assert dispatch.chosen_kernel() == "dense"
        with contextlib.suppress(ValueError), so.config(kernel="unknown"):
            pass
        assert dispatch.chosen_kernel() == "dense"


@needs_native
def test_a_choice_holds_for_the_backward_of_what_was_made_in_it():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    with so.config(kernel="tiled"):
        y = so.sort(x, so.SoftSort(0.3, 1.5))
    with so.config(kernel="native"):
        (g,) = torch.autograd.grad(weigh(y), x)
    with so.config(kernel="dense"):
        (expected,) = torch.autograd.grad(weigh(so.sort(x, so.SoftSort(0.3, 1.5))), x)
    assert_close(g, expected, GRADIENTS["float64"])


@needs_native
def test_a_missing_extension(monkeypatch):
    monkeypatch.setattr(extension_module, "extension", None)
    with so.config(kernel="native"), pytest.raises(RuntimeError) as error:
        so.SoftSort(0.1)(torch.randn(3))
    for part in ("needs the compiled extension", "an installation without it", "Reinstall"):
        assert part in str(error.value)
    small, large = torch.randn(3), torch.randn(3000)
    assert engine_of(so.SoftSort(0.1)(small)) == "dense"
    assert engine_of(so.SoftSort(0.1)(large)) == "portable"
    assert_close(so.sort(large, 1e-6), large.sort().values, LIMIT)


def test_the_portable_kernel_does_not_serve():
    parts = r'kernel="portable" serves SoftSort.*got another relaxation.*Use kernel="tiled"'
    with so.config(kernel="portable"), pytest.raises(ValueError, match=parts):
        so.NeuralSort(0.1)(torch.randn(3))


def test_a_relaxation_without_a_native_kernel_says_so():
    class Mine(PermutationRelaxation):
        def weights(self, scores):
            return NEURALSORT.rows(scores, 1.0)

    assert engine_of(Mine()(torch.randn(3))) == "dense"
    parts = r'kernel="native" serves .*NeuralSort.*got another relaxation.*Use kernel="tiled"'
    with so.config(kernel="native"), pytest.raises(ValueError, match=parts):
        Mine()(torch.randn(3))


def test_a_native_kernel_that_is_not_there(monkeypatch):
    if extension_module.extension is not None:
        with so.config(kernel="native"), pytest.raises(ValueError, match=r"meta.*tiled"):
            so.NeuralSort(0.1)(torch.empty(3, device="meta"))
    monkeypatch.setattr(extension_module, "extension", None)
    with so.config(kernel="native"), pytest.raises(RuntimeError, match=r"Reinstall.*tiled"):
        so.NeuralSort(0.1)(torch.randn(3))
