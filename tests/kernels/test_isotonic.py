"""Pooling against the min-max formula in exact arithmetic, native and portable."""

import itertools
import math
import operator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inside import KL, L2, isotonic
from tolerances import GRADIENTS, LAST_DIGITS

needs_native = pytest.mark.skipif(isotonic.extension is None, reason="no native kernel")
# "l2" and "kl" are what is chosen: the native kernel where there is one.
WAYS = {
    "l2": (L2, isotonic.pool_l2),
    "kl": (KL, isotonic.pool_kl),
    "l2-portable": (L2, lambda x: isotonic.pool_portable(x, L2)),
    "kl-portable": (KL, lambda x: isotonic.pool_portable(x, KL)),
}
every_way = pytest.mark.parametrize("way", WAYS)
every_kind = pytest.mark.parametrize(
    ("kind", "pool"), [(L2, isotonic.pool_l2), (KL, isotonic.pool_kl)], ids=["l2", "kl"]
)

_quarters = st.integers(-12, 12).map(lambda i: i / 4)
_tied = st.sampled_from([0.1, 0.3, 1 / 3])
_ordinary = st.floats(-10, 10, width=64)
_large = st.floats(-1e5, 1e5, width=64)


@st.composite
def problems(draw, element):
    """Draw a, b and the marks as (3, n)."""
    n = draw(st.integers(0, 8))
    rows = [draw(st.lists(element, min_size=n, max_size=n)) for _ in range(2)]
    rows.append(draw(st.lists(st.sampled_from([0.0, 0.0, 0.0, 1.0]), min_size=n, max_size=n)))
    return np.array(rows, dtype=np.float64).reshape(3, n)


any_problem = st.one_of(*map(problems, (_quarters, _tied, _ordinary, _large)))


def exact_value(kind, a, b):
    """Return the value of the block that holds a and b, to far more digits than a double has."""
    if kind is L2:
        return sum(map(operator.sub, map(Fraction, a), map(Fraction, b))) / len(a)
    with mpmath.workdps(60):
        return mpmath.log(sum(map(mpmath.exp, a))) - mpmath.log(sum(map(mpmath.exp, b)))


def segments(begins):
    starts = [i for i in range(len(begins)) if i == 0 or begins[i]]
    return itertools.pairwise([*starts, len(begins)])


def solve(kind, a, b, begins):
    """Return v_i = min over j <= i of max over k >= i of the value of j..k, in each segment."""
    v = []
    for start, stop in segments(begins):
        value = {
            (j, k): exact_value(kind, a[j : k + 1], b[j : k + 1])
            for j in range(start, stop)
            for k in range(j, stop)
        }
        for i in range(start, stop):
            largest = (max(value[j, k] for k in range(i, stop)) for j in range(start, i + 1))
            v.append(min(largest))
    return v


def level_sets(v, begins):
    """Return where each run of equal values begins."""
    first = []
    for i in range(len(v)):
        joins = i > 0 and not begins[i] and v[i] == v[i - 1]
        first.append(first[-1] if joins else i)
    return first


def assert_blocks(first, begins):
    """Assert that these are blocks, none over a mark."""
    first = np.asarray(first)
    own = np.arange(first.shape[-1])
    assert first.dtype == np.int64
    assert ((first >= 0) & (first <= own)).all()
    assert np.array_equal(first, np.maximum.accumulate(np.where(first == own, own, 0), axis=-1))
    assert (first == own)[np.asarray(begins) != 0].all()


@every_way
@given(x=any_problem)
def test_the_blocks_give_the_solution(way, x):
    kind, pool = WAYS[way]
    a, b, begins = x.tolist()
    first = pool(x)
    assert_blocks(first, begins)
    v = solve(kind, a, b, begins)
    ends = {i: int((first <= i).sum()) for i in set(first.tolist())}
    ours = [exact_value(kind, a[i : ends[i]], b[i : ends[i]]) for i in first.tolist()]
    tolerance = LAST_DIGITS * max(1.0, np.abs(x).max(initial=0.0))
    assert all(abs(mine - other) <= tolerance for mine, other in zip(ours, v, strict=True))


@pytest.mark.parametrize("way", ["l2", "l2-portable"])
@given(x=problems(_quarters))
def test_equal_means_are_one_block(way, x):
    a, b, begins = x.tolist()
    assert WAYS[way][1](x).tolist() == level_sets(solve(L2, a, b, begins), begins)


@every_way
@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e5 / 3, -1e17 / 7])
@pytest.mark.parametrize("n", [3, 1000])
def test_long_ties_stay_together(way, number, n):
    x = np.stack([np.full(n, number), np.full(n, 0.7), np.zeros(n)])
    x[0, 0] += abs(number)
    assert WAYS[way][1](x).tolist() == [0] + [1] * (n - 1)


@every_way
def test_ends(way):
    pool = WAYS[way][1]
    a, zero = np.array([3.0, 1.0, 2.0, 2.0, 5.0]), np.zeros(5)
    decreasing = np.stack([-a.cumsum(), zero, zero])
    assert pool(decreasing).tolist() == [0, 1, 2, 3, 4]
    assert pool(-decreasing).tolist() == [0, 0, 0, 0, 0]
    assert pool(np.stack([a.cumsum(), zero, zero + 1])).tolist() == [0, 1, 2, 3, 4]
    assert pool(np.stack([a.cumsum(), zero, [0, 0, 1, 0, 0]])).tolist() == [0, 0, 2, 2, 2]
    assert pool(np.stack([[9, 9, 1, 2, 3], zero, zero])).tolist() == [0, 0, 2, 2, 2]


@every_way
@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (0,), (2, 0, 3), (1, 1, 1)])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_any_batch_shape(way, lead, n):
    pool = WAYS[way][1]
    x = np.random.default_rng(0).normal(size=(*lead, 3, n))
    x[..., 2, :] = x[..., 2, :] > 1
    first = pool(x)
    assert first.shape == (*lead, n)
    assert_blocks(first, x[..., 2, :])
    for at in np.ndindex(lead):
        assert np.array_equal(first[at], pool(x[at]))


@every_way
def test_any_strides(way):
    pool = WAYS[way][1]
    x = np.random.default_rng(0).normal(size=(3, 10, 4))
    before = x.copy()
    first = pool(x.transpose(2, 0, 1)[::-1, :, ::2])
    assert np.array_equal(first, pool(x.transpose(2, 0, 1)[::-1, :, ::2].copy()))
    assert np.array_equal(x, before)


@needs_native
@every_kind
@pytest.mark.parametrize("scale", [1.0, 1e5])
@pytest.mark.parametrize(("rows", "n"), [(5000, 12), (3, 3000)])
def test_native_is_portable(kind, pool, scale, rows, n):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 3, n)) * scale
    x[: rows // 2] = np.round(x[: rows // 2])
    x[:, 2] = rng.uniform(size=(rows, n)) < 0.05
    assert np.array_equal(pool(x), isotonic.pool_portable(x, kind))


@needs_native
@every_kind
@given(x=st.one_of(any_problem, problems(st.floats(width=64))))
def test_native_is_portable_for_any_number(kind, pool, x):
    first = pool(x)
    assert np.array_equal(first, isotonic.pool_portable(x, kind))
    assert_blocks(first, x[2])


@every_kind
def test_without_the_native_kernel_the_portable_one_serves(kind, pool, monkeypatch):
    x = np.random.default_rng(2).normal(size=(2, 3, 9))
    expected = isotonic.pool_portable(x, kind)
    monkeypatch.setattr(isotonic, "extension", None)
    assert np.array_equal(pool(x), expected)


@every_way
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
def test_what_is_no_number_gives_blocks_all_the_same(way, bad):
    x = np.random.default_rng(3).normal(size=(50, 3, 40))
    x[:, 2] = 0
    x[np.random.default_rng(4).uniform(size=x.shape) < 0.1] = bad
    x[0] = bad
    x[1] = np.random.default_rng(5).normal(size=(3, 40))
    first = WAYS[way][1](x)
    assert_blocks(first, x[:, 2])
    assert np.array_equal(first[1], WAYS[way][1](x[1]))


def assert_optimal(d, first):
    """Assert that blocks solve least squares: means fall, and no beginning of a block is above."""
    starts = np.unique(first)
    counts = np.diff([*starts, len(d)])
    means = np.add.reduceat(d, starts) / counts
    assert (np.diff(means) < LAST_DIGITS).all()
    above = np.cumsum(d - np.repeat(means, counts))
    assert above.max() < GRADIENTS["float64"]


@needs_native
@every_kind
def test_a_million_items(kind, pool):
    n = 10**6
    rng = np.random.default_rng(6)
    x = np.zeros((3, n))
    x[0] = np.arange(n)
    assert not pool(x).any()
    assert np.array_equal(pool(-x), np.arange(n))
    x[:2] = rng.normal(size=(2, n))
    first = pool(x)
    assert_blocks(first, x[2])
    if kind is L2:
        assert_optimal(x[0] - x[1], first)


@every_way
@pytest.mark.parametrize("shape", [(), (3,), (2, 5), (3, 5, 1), (4, 2, 5)])
def test_a_wrong_shape_is_an_error(way, shape):
    with pytest.raises(ValueError, match=r"x must have shape \(\.\.\., 3, n\); got shape"):
        WAYS[way][1](np.zeros(shape))


@every_way
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex128", "object", ">f8"])
def test_a_wrong_dtype_is_an_error(way, dtype):
    with pytest.raises(TypeError, match="x must be a NumPy array of float64; got"):
        WAYS[way][1](np.zeros((3, 5), dtype=dtype))
    with pytest.raises(TypeError, match="x must be a NumPy array of float64; got list"):
        WAYS[way][1]([[0.0], [0.0], [0.0]])


@needs_native
@pytest.mark.parametrize("name", ["pool_l2", "pool_kl"])
def test_the_extension_checks_for_itself(name):
    pool = getattr(isotonic.extension, name)
    x, first = np.zeros((2, 3, 5)), np.zeros((2, 5), np.int64)
    pool(x, first, 1)
    with pytest.raises(ValueError, match="x must have shape"):
        pool(np.zeros((2, 4, 5)), first, 1)
    for wrong in (np.zeros((1, 5), np.int64), np.zeros((2, 4), np.int64)):
        with pytest.raises(ValueError, match="first must have shape"):
            pool(x, wrong, 1)
    for too_flat in ((x[0], first), (x, first[0])):
        with pytest.raises(ValueError, match="must have shape"):
            pool(*too_flat, 1)
    read_only = first.copy()
    read_only.flags.writeable = False
    wrong_arguments = [
        (x.astype(np.float32), first),
        (x[:, :, ::-1], first),
        (x, first.astype(np.int32)),
        (x, np.zeros((5, 2), np.int64).T),
        (x, read_only),
        (None, first),
        (x, None),
    ]
    for arguments in wrong_arguments:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            pool(*arguments, 1)
