"""Which rows of P someone asks for."""

from __future__ import annotations

import numbers
from typing import Any

from softorder import _checks
from softorder._array import Array, device_of, find_wiring, read, wiring_of
from softorder._kernels.operator import Operator


def row_index(operator: Operator, rows: Any) -> Array | None:
    """Return rows as an integer array of positions 0..n-1; None stays None."""
    if rows is None:
        return None
    order, wiring = operator.order, operator.wiring
    xp, n = wiring.xp, order.shape[-1]
    if isinstance(rows, slice):
        start, stop, step = _bounds(rows, n)
        return xp.arange(start, stop, step, dtype=xp.int64, device=device_of(order))
    if find_wiring(rows) is None:
        rows = _checks.check_row_numbers(rows)
        rows = xp.asarray(rows, dtype=xp.int64, device=device_of(order))
    rows = read(rows, "rows")
    wiring_of(rows=rows, scores=order)
    _checks.check_rows(xp, rows, n, wiring.is_concrete(rows))
    rows = rows[None] if rows.ndim == 0 else rows
    return xp.where(rows < 0, rows + n, rows)


def _bounds(rows: slice, n: int) -> tuple[int, int, int]:
    """Return what `range` is given for a slice of n positions."""
    if rows.step not in (None, 1):
        return rows.indices(n)
    # Not by slice.indices: it would fix an n that a compiler keeps open.
    ends = (0 if rows.start is None else rows.start, n if rows.stop is None else rows.stop)
    start, stop = (_clip(end + n if end < 0 else end, n) for end in ends)
    return start, stop if stop > start else start, 1


def _clip(end: int, n: int) -> int:
    return (end if end < n else n) if end > 0 else 0


def is_single(rows: Any) -> bool:
    """Tell whether `rows` asks for one row: its dimension is then dropped."""
    return isinstance(rows, numbers.Integral) or getattr(rows, "ndim", None) == 0
