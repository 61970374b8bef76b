"""The places of quantiles: exact for any number of items, also where there is no float64."""

from fractions import Fraction

import numpy as np
import pytest

import frameworks
import softorder as so
from inside import CLOSEST, quantile_places, wiring_of
from tolerances import LIMIT

COUNTS = [1, 2, 11, 1000, 2**24 + 4, 2**31 - 1]
LEVELS = [0.0, 1e-5, 0.07, 0.3, 0.5, 0.7, 1 / 3, 1 - 1e-9, 1.0]


def places(framework, q, count):
    """Return places as exact numbers, (..., k)."""
    like = framework.array(np.ones(1, dtype="float32"))
    q = framework.array(q) if isinstance(q, np.ndarray) else q
    count = framework.array(count) if isinstance(count, np.ndarray) else count
    low, weight = quantile_places(wiring_of(like=like), q, count, like)
    pairs = zip(framework.values(low).flat, framework.values(weight).flat, strict=True)
    return [Fraction(int(i)) + Fraction(float(w)) for i, w in pairs]


def check(framework, levels, count, error):
    """Compare places with exact arithmetic; none lies past the last item."""
    n = int(np.max(count))
    q = levels if isinstance(levels, list) else [float(level) for level in levels]
    for level, place in zip(q, places(framework, levels, count), strict=True):
        exact = Fraction(level) * (n - 1)
        assert abs(place - exact) <= error(exact), (level, n, float(place))
        assert place <= n - 1


@pytest.fixture(params=["float64", "float32 alone"])
def precision(framework, request):
    """With float64, and in JAX also without."""
    if request.param == "float64":
        yield framework
    elif framework.name != "jax":
        pytest.skip("it has float64")
    else:
        import jax

        with jax.enable_x64(False):
            yield framework


def rounding(eps):
    return lambda place: max(2.0**-24, min(CLOSEST, 0.5 * eps * (float(place) + 1)))


@pytest.mark.parametrize("count", COUNTS)
def test_places_of_numbers_are_exact(precision, count):
    check(precision, LEVELS, count, rounding(2.0**-52))
    check(precision, LEVELS, np.array([count]), rounding(2.0**-52))


@pytest.mark.parametrize("count", COUNTS)
def test_places_of_float32_are_exact_up_to_their_rounding(precision, count):
    check(precision, np.array(LEVELS, dtype="float32"), count, rounding(2.0**-23))


def test_the_largest_of_two_to_the_24_items_is_the_last(framework):
    """In float32 its place is one past the end: an IndexError, or a wrong item."""
    n = 2**24 + 4
    assert places(framework, [1.0], n) == [n - 1]
    assert places(framework, np.array([1.0], dtype="float32"), n) == [n - 1]


def test_places_between_items_are_not_rounded_to_items():
    n = 2**24 + 4
    (place,) = places(frameworks.framework("numpy"), [0.5], n)
    assert place == Fraction(n - 1, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_seven_tenths_of_ten_is_seven(precision, dtype):
    """Else the item above, which may be infinite, would have a part."""
    levels = [0.1, 0.3, 0.6, 0.7, 0.9]
    for q in (levels, np.array(levels, dtype=dtype)):
        assert places(precision, q, 11) == [1, 3, 6, 7, 9]


def test_an_infinite_neighbour_of_a_float32_quantile_has_no_part(framework):
    x = np.array([*range(4), np.inf, np.inf, np.inf, np.inf, np.inf, np.inf, np.inf])
    q = np.array([0.3], dtype="float32")
    assert framework.value(lambda x, q: so.quantile(x, q, 1e-6), x, q) == [3.0]


def test_no_items_have_the_place_zero(precision):
    assert places(precision, [0.0, 0.7, 1.0], np.array([0])) == [0, 0, 0]


def test_the_slope_of_a_place_is_the_number_of_items(precision):
    q = np.array([0.33, 0.74], dtype="float32")

    def weight(q):
        return quantile_places(wiring_of(q=q), q, 11, q)[1]

    _, (slope,) = precision.pull(weight, [q], np.ones(2, dtype="float32"))
    np.testing.assert_allclose(slope, [10.0, 10.0])


def test_transport_has_targets_where_the_quantile_looks():
    x = np.arange(101.0)
    for q in (0.07, 0.29, 0.7, 1.0):
        how = so.OptimalTransportSort(epsilon=1e-5, targets=[q])
        for level in (q, np.float32(q), np.array(q, dtype="float32")):
            np.testing.assert_allclose(
                so.quantile(x, level, how), 100 * q, rtol=0, atol=100 * LIMIT
            )
