"""Hypothesis strategies: scores with ties, infinities and masks, as the contract allows them."""

import numpy as np
from hypothesis import strategies as st

# A coarse grid makes ties likely, and keeps the other scores far enough apart for gradients.
_grid = st.integers(-12, 12).map(lambda i: i / 4)
_ends = st.sampled_from([np.inf, -np.inf])

temperatures = st.sampled_from([1e-3, 0.1, 0.5, 1.0, 3.0, 100.0])
powers = st.sampled_from([0.5, 1.0, 1.5, 2.0, 3.0])


def scores(min_size=0, max_size=9, infinite=False):
    """Vectors with ties, and infinities on request."""
    element = st.one_of(_grid, _grid, _ends) if infinite else _grid
    return st.lists(element, min_size=min_size, max_size=max_size).map(
        lambda x: np.asarray(x, dtype=np.float64)
    )


def distinct_scores(min_size=1, max_size=9):
    """Vectors without ties, at least 1/4 apart."""
    return st.lists(_grid, min_size=min_size, max_size=max_size, unique=True).map(
        lambda x: np.asarray(x, dtype=np.float64)
    )


@st.composite
def masked_scores(draw, infinite=False):
    """A vector and a mask of its length, with anything in the masked slots."""
    s = draw(scores(min_size=1, infinite=infinite))
    mask = np.asarray(draw(st.lists(st.booleans(), min_size=len(s), max_size=len(s))))
    anything = draw(st.lists(st.sampled_from([np.nan, np.inf, 0.0, 7e7]), min_size=len(s)))
    return np.where(mask, s, anything[: len(s)]), mask


def vectors(n):
    """Plain vectors of one length."""
    return st.lists(_grid, min_size=n, max_size=n).map(lambda x: np.asarray(x, dtype=np.float64))
