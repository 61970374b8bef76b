"""Between which two positions of sorted items a quantile lies: one rule for all who need it."""

from __future__ import annotations

import math
from typing import Any

from softorder._array import Array, Wiring, device_of, find_wiring

# Of the digits that numbers are written in where there is no float64: two of them, multiplied, and
# a few such products, added, fit into 32 bits.
BASE = 1 << 12
FRACTION_DIGITS = 5
# A place that is so close to a position, or as close as its own last digits tell, is the position.
CLOSEST = 2.0**-10


def quantile_places(wiring: Wiring, q: Any, count: Any, like: Array) -> tuple[Array, Array]:
    """Return the positions below the places q (count - 1), and how far above them the places are.

    A place that differs from a position by the rounding of q alone counts as that position: 0.7
    times 10 is 7, in float32 too.

    Args:
        wiring: The framework of the results.
        q: Quantiles in [0, 1]: k numbers, or an array (k,), which has a gradient.
        count: How many items there are: a number, or an integer array (..., 1).
        like: An array on the device of the results.

    Returns:
        int64 and the widest floating type, (..., k).
    """
    xp, is_array = wiring.xp, find_wiring(q) is not None
    eps = float(xp.finfo(q.dtype).eps) if is_array else 2.0**-52
    if not wiring.has_float64():
        return _in_integers(wiring, q, count, eps)
    q = (
        xp.astype(q, xp.float64)
        if is_array
        else xp.asarray(q, dtype=xp.float64, device=device_of(like))
    )
    return _in_float64(wiring, q, count, eps)


def _in_float64(wiring: Wiring, q: Array, count: Any, eps: float) -> tuple[Array, Array]:
    xp = wiring.xp
    if find_wiring(count) is not None:
        count = xp.astype(count, xp.float64)
    place = q * (count - 1)
    place = xp.where(place < 0, 0.0, place)  # there are no items
    low = wiring.stop_gradient(xp.floor(place))
    return _snap(xp, xp.astype(low, xp.int64), place - low, eps)


def _in_integers(wiring: Wiring, q: Any, count: Any, eps: float) -> tuple[Array, Array]:
    """Multiply in digits of 12 bits, as by hand: float32 cannot count above 2^24."""
    xp, is_array = wiring.xp, find_wiring(q) is not None
    last = xp.asarray(count, dtype=xp.int64) - 1
    last = xp.where(last < 0, 0, last)
    if is_array:
        digits = _digits(xp.floor, wiring.stop_gradient(q))
    else:
        digits = zip(*(_digits(math.floor, float(level)) for level in q), strict=True)
    # By powers of the base. Half a unit of the last digit that is kept rounds.
    columns: dict[int, Any] = {-3: BASE // 2}
    factors = [last % BASE, last // BASE % BASE, last // BASE**2]
    for i, digit in enumerate(digits):
        digit = xp.astype(xp.asarray(digit), xp.int64)
        for j, factor in enumerate(factors):
            columns[j - i] = columns.get(j - i, 0) + digit * factor
    kept, carry = {}, 0
    for power in sorted(columns):
        carry, kept[power] = divmod(columns[power] + carry, BASE)
    low = kept[0] + BASE * kept[1] + BASE**2 * kept[2]
    weight = xp.astype(kept[-1] * BASE + kept[-2], xp.float64) / BASE**2
    if is_array:
        weight = weight + (q - wiring.stop_gradient(q)) * xp.astype(last, xp.float64)
    return _snap(xp, low, weight, eps)


def _digits(floor: Any, x: Any) -> list[Any]:
    """Return the digits of x in [0, 1]: the whole part, and those of the fraction. It is exact."""
    digits = []
    for _ in range(FRACTION_DIGITS + 1):
        whole = floor(x)
        digits.append(whole)
        x = (x - whole) * BASE
    return digits


def _snap(xp: Any, low: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """Take places that are positions but for rounding as positions."""
    rounding = 0.5 * eps * (xp.astype(low, weight.dtype) + 1)
    rounding = xp.where(rounding > CLOSEST, CLOSEST, rounding)
    above = 1 - weight <= rounding
    low = xp.where(above, low + 1, low)
    return low, xp.where(above | (weight <= rounding), 0.0, weight)
