"""The products of products.py in array operations: what higher derivatives are taken of."""

from __future__ import annotations

from typing import Any

from softorder._array import Array, Wiring, arange_like
from softorder._kernels.dispatch import dispatch_arrays
from softorder._kernels.products import DEFINITIONS, Call
from softorder._kernels.scores import SortedScores
from softorder._kernels.spec import KernelSpec


def define(
    wiring: Wiring,
    call: Call,
    order: Array,
    counts: Array | None,
    scores: Array,
    values: Any,
    scale: Any,
) -> Array:
    """Return a product in array operations, which have derivatives of every order and kind.

    Args:
        wiring: The framework of the arrays.
        call: Which product.
        order: As in `scores.SortedRows`.
        counts: Likewise.
        scores: (rows, n).
        values: See `DEFINITIONS`; passed over if the call has `own_scores`.
        scale: A number, or (rows,).
    """
    valid = None
    if counts is not None:
        n = order.shape[-1]
        position = arange_like(wiring.xp, n, order)[:, None]
        valid = wiring.add_along_axis(position, order, n)[..., 0] < counts[..., None]
    tau = call.formula.tau(scale if isinstance(scale, float) else scale[..., None])
    P = dispatch_arrays(KernelSpec(call.formula, tau), SortedScores(wiring, scores, valid, order))
    if not call.own_scores:
        return DEFINITIONS[call.product].compute(P, values)
    return P.sort_scores(flip=call.flip)
