"""The scan, the sums that are made of two of them, and the tables of exponentials."""

import functools

import mpmath
import numpy as np
import pytest
import torch

from inside import (
    GAUSSIAN,
    LAPLACE,
    chunked_scan,
    chunked_sums_over_others,
    gap_gradient,
    gates,
    gates_by_step,
    sums_over_others,
    torch_autograd,
)
from tolerances import (
    EXPONENTIALS,
    FINITE_DIFFERENCES,
    GRADIENTS,
    LAST_DIGITS,
    ONE_ROUNDING,
    SQUARE_VALUES,
    UNDERFLOW,
    VALUES,
)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_the_chunked_scan_is_the_plain_loop(kind):
    rng = np.random.default_rng(0)
    for n in [*range(41), 100, 255, 256, 257, 1000]:
        gate, v = rng.uniform(0, 1, (2, n)), rng.normal(size=(2, 3, n))
        if kind == "complex":
            gate = gate * np.exp(1j * rng.uniform(0, 6, (2, n)))
            v = v + 1j * rng.normal(size=(2, 3, n))
        expected, state = np.zeros_like(v), np.zeros((2, 3), dtype=v.dtype)
        for i in range(n):
            state = v[..., i] + (gate[:, None, i] * state if i else 0)
            expected[..., i] = state
        for found in (
            chunked_scan(np, gate, v),
            torch_autograd.scan(torch.tensor(gate), torch.tensor(v)).numpy(),
        ):
            assert found.shape == v.shape
            np.testing.assert_allclose(found, expected, rtol=LAST_DIGITS, atol=LAST_DIGITS)


@pytest.mark.parametrize("kernel", [LAPLACE, GAUSSIAN], ids=["abs", "square"])
def test_chunked_sums_over_others_are_those_of_two_scans(kernel):
    rng = np.random.default_rng(0)
    scan = functools.partial(chunked_scan, np)
    for n in [*range(41), 255, 256, 257, 1000]:
        gap, cut = rng.exponential(0.2, (2, n)), rng.random((2, n)) < 0.1
        w, g = rng.normal(size=(2, 2, 3, n))
        gate, steps = gates(np, kernel, gap, cut), gates_by_step(np, kernel, gap, cut)
        sums, of_w = chunked_sums_over_others(np, kernel, steps, w)
        expected = sums_over_others(scan, np, kernel, gate, w)
        np.testing.assert_allclose(sums, expected, rtol=0, atol=SQUARE_VALUES["float64"])
        to_w, of_g = chunked_sums_over_others(np, kernel, steps, g)
        to_gap = gap_gradient(np, kernel, steps, of_w, of_g, n)
        assert to_gap.shape == (2, n)
        assert (to_gap[cut] == 0).all()
        # The derivative along a direction, which a gap that cuts does not take.
        step, along = 1e-6, np.where(cut, 0.0, rng.random((2, n)))
        ends = [
            sums_over_others(scan, np, kernel, gates(np, kernel, gap + sign * step * along, cut), w)
            for sign in (1, -1)
        ]
        slope = np.sum(g * (ends[0] - ends[1])) / (2 * step)
        assert np.sum(to_gap * along) == pytest.approx(
            slope, rel=FINITE_DIFFERENCES, abs=FINITE_DIFFERENCES
        )
        # The weights are symmetric.
        assert np.sum(to_w * w) == pytest.approx(
            np.sum(g * sums), rel=GRADIENTS["float64"], abs=GRADIENTS["float64"]
        )


def test_the_table_of_exponentials_is_the_gaussian():
    """And its derivative is, everywhere; in 30 digits."""
    with mpmath.workdps(30):
        terms = [
            (mpmath.mpc(w), mpmath.mpc(d))
            for w, d in zip(GAUSSIAN.weights, GAUSSIAN.decays, strict=True)
        ]
        for u in map(mpmath.mpf, np.linspace(0, 20, 401)):
            parts = [w * mpmath.exp(-d * u) for w, d in terms]
            value = mpmath.fsum(parts).real
            slope = -mpmath.fsum(d * part for part, (_, d) in zip(parts, terms, strict=True)).real
            exact = mpmath.exp(-(u**2))
            assert abs(value - exact) < EXPONENTIALS
            assert abs(slope + 2 * u * exact) < VALUES["float64"]


def test_a_gap_that_is_cut_carried_nothing():
    assert np.exp(-(GAUSSIAN.reach**2)) < ONE_ROUNDING / 100
    assert np.exp(-LAPLACE.reach) < UNDERFLOW
