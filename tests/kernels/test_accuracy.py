"""Digits of SoftSort: at every temperature, across blocks, for many items and for isolated ones."""

import itertools

import numpy as np
import pytest
import torch

import oracles
import softorder as so
from engines import (
    BLOCK,
    METRICS,
    UNCUT,
    assert_alike,
    every_metric,
    fast_kernel,
    needs_native,
    threads,
)
from references import DISTRIBUTIONS, check, draw, reference, rows_of, run, spacing
from tolerances import AGREEMENT, ENGINE_VALUES, VALUES, as_numpy, assert_close


@fast_kernel
@every_metric
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients_are_accurate_at_every_temperature(kernel, metric, kind, dtype):
    for n, exponent in itertools.product((2, 7, 200), (-4, -2, 0, 1, 2, 4)):
        s = draw(kind, n, seed=n)
        rng = np.random.default_rng(n)
        tau = (10.0**exponent * spacing(kind, n)) ** METRICS[metric]
        g = rng.normal(size=(n, 1))
        check(kernel, s, None, g, tau, metric, dtype)
        v = rng.normal(size=(n, 1)).astype(np.float32).astype(np.float64)
        check(kernel, s, v, g.astype(np.float32).astype(np.float64), tau, metric, dtype)


@fast_kernel
@every_metric
def test_the_reference_is_the_oracle(kernel, metric):
    s, rng = draw("tied", 40), np.random.default_rng(1)
    v, g = rng.normal(size=(2, 40))
    y, to_s, to_v, to_tau = reference(s, v[:, None], g[:, None], 0.3, METRICS[metric])
    theirs = oracles.softsort_sort_gradients(s, v, g, 0.3, METRICS[metric])
    for a, b in zip((to_s, to_v[:, 0], np.asarray(to_tau)), theirs, strict=True):
        assert_close(a, b, VALUES["float64"])
    assert_close(
        y[:, 0],
        oracles.softsort_sort(s, 0.3, METRICS[metric], descending=True, values=v),
        VALUES["float64"],
    )


@needs_native
@every_metric
@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1])
def test_blocks_join_without_a_seam(metric, n):
    """Carries between native blocks, narrow and wide, for one feature and for several."""
    s, rng = draw("normal", n, seed=n), np.random.default_rng(n)
    v, g = rng.normal(size=(2, n, 3)).astype(np.float32).astype(np.float64)
    for exponent, features in ((3, 2),) if n == BLOCK + 1 else ((2, 1),):
        tau = (10.0**exponent * spacing("normal", n)) ** METRICS[metric]
        check("native", s, v[:, :features], g[:, :features], tau, metric, "float64")


@needs_native
@every_metric
@pytest.mark.parametrize("n", [2 * BLOCK, 3 * BLOCK + 1, 7 * BLOCK - 1, UNCUT + 1])
def test_many_blocks_are_one_row(metric, n):
    """The portable kernel cuts elsewhere."""
    s = draw("normal", n, seed=n)
    v, g = np.random.default_rng(n).normal(size=(2, n, 1))
    tau = (1000 * spacing("normal", n)) ** METRICS[metric]
    found = [run(kernel, s, v, g, tau, metric, torch.float64) for kernel in ("native", "portable")]
    assert_alike(*found, AGREEMENT[metric])


@needs_native
@every_metric
def test_a_seam_within_a_group_of_ties(metric):
    """Positions average over everything tied, however many blocks and threads that is."""
    n = 5 * BLOCK + 1
    s = np.where(np.arange(n) % 3 == 0, 1.0, 0.25)
    s[5] = 2.0
    v, g = np.random.default_rng(0).normal(size=(2, n, 1))
    with threads(2):
        found = [
            run(kernel, s, v, g, 0.5, metric, torch.float64) for kernel in ("native", "portable")
        ]
    assert_alike(*found, AGREEMENT[metric])


@fast_kernel
@every_metric
@pytest.mark.parametrize("kind", DISTRIBUTIONS)
def test_a_hundred_thousand_items_lose_no_digits(kernel, metric, kind):
    n = 100_000
    s = draw(kind, n)
    v = np.random.default_rng(2).normal(size=n).astype(np.float32)
    order = np.argsort(-s, kind="stable")
    some = [0, 1, n // 3, n // 2, n - 1]
    if kernel == "portable" and kind not in ("normal", "clustered"):
        pytest.skip("slow, and the same at fewer items")
    for exponent in (-4, 0, 4) if kernel == "native" else (1,):
        tau = (10.0**exponent * spacing(kind, n)) ** METRICS[metric]
        expected = rows_of(s, s[order][some], tau, METRICS[metric])
        for dtype in (torch.float32, torch.float64):
            tolerance = ENGINE_VALUES[metric, str(dtype)[6:]]
            with so.config(kernel=kernel):
                P = so.SoftSort(tau, metric)(torch.tensor(s, dtype=dtype))
                ours = P.apply(torch.tensor(np.stack([v, s]), dtype=dtype).T, 0)
            y = expected @ np.stack([v, s]).T
            largest = np.abs(np.stack([v, s])).max(-1)
            # Relative to the largest of the whole result, which is about that of the input.
            assert np.all(np.abs(as_numpy(ours[some]) - y) <= tolerance * np.abs(y).max(0)), largest


@fast_kernel
@pytest.mark.parametrize("distance", [2.0, 3.0, 4.0, 5.0, 6.0, 6.4, 6.6, 7.0, 8.0, 100.0])
def test_an_isolated_point_does_not_feel_a_far_cluster(kernel, distance):
    """At 2 to 8 scale lengths the terms of the Gaussian cancel, a hundred thousand times over."""
    if kernel == "portable" and distance not in (4.0, 6.4, 6.6):
        pytest.skip("slow, and the same mathematics")
    n = 100_000
    s = np.concatenate([[distance], np.random.default_rng(3).uniform(-1e-3, 0.0, n)])
    s = s.astype(np.float32).astype(np.float64)
    v = np.ones(n + 1)
    v[0] = -1.0
    expected = rows_of(s, s[:1], 1.0, 2.0) @ v
    for dtype in (torch.float32, torch.float64):
        with so.config(kernel=kernel):
            P = so.SoftSort(1.0, "square")(torch.tensor(s, dtype=dtype))
            y = P @ torch.tensor(v, dtype=dtype)
        assert abs(float(y[0]) - expected[0]) <= ENGINE_VALUES["square", str(dtype)[6:]]


@needs_native
@every_metric
@pytest.mark.parametrize("distance", [4.0, 6.4, 8.0])
def test_gradients_of_an_isolated_point(metric, distance):
    n = 2000
    rng = np.random.default_rng(4)
    s = np.concatenate([[distance], rng.uniform(-1e-3, 0.0, n)])
    s = s.astype(np.float32).astype(np.float64)
    v, g = rng.normal(size=(2, n + 1, 1)).astype(np.float32).astype(np.float64)
    check("native", s, v, g, 1.0, metric, "float32")


@fast_kernel
@every_metric
def test_scores_far_from_zero_keep_their_differences(kernel, metric):
    s = 1e6 + draw("uniform", 64) * 4
    s = s.astype(np.float32).astype(np.float64)
    rng = np.random.default_rng(5)
    v, g = rng.normal(size=(2, 64, 1)).astype(np.float32).astype(np.float64)
    check(kernel, s, v, g, 0.3, metric, "float32")
    check(kernel, s, None, g, 0.3, metric, "float32")


@needs_native
@every_metric
def test_a_row_of_ten_million(metric):
    n = 10_000_000 if metric == "abs" else 1_000_000
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    with so.config(kernel="native"), threads(2):
        y = so.SoftSort(1e-3, metric)(x).sort_scores()
    s = x.numpy().astype(np.float64)
    ordered = np.sort(s)[::-1]
    some = [0, 1, n // 2, n - 1]
    for i in some:
        expected = (rows_of(s, ordered[i : i + 1], 1e-3, METRICS[metric]) @ s)[0]
        assert abs(float(y[i]) - expected) <= ENGINE_VALUES[metric, "float32"] * ordered[0]
