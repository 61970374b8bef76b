"""The scan, and the tables of exponentials."""

import mpmath
import numpy as np
import pytest
import torch

from inside import GAUSSIAN, LAPLACE, chunked_scan, torch_autograd
from tolerances import EXPONENTIALS, LAST_DIGITS, ONE_ROUNDING, UNDERFLOW, VALUES


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
