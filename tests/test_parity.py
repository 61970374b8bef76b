"""The same answers in every framework: values and gradients from the same inputs.

Each framework is compared with NumPy, whose values are compared with the oracles elsewhere, and
whose gradients (`softorder.vjp`) with torch's and with finite differences.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import framework_table
import frameworks
import parity
import softorder as so
import strategies
from tolerances import GRADIENTS, SQUARE_VALUES, VALUES, assert_close

NUMPY = frameworks.framework("numpy")
HOWS = {
    "abs": so.SoftSort,
    "square": lambda tau: so.SoftSort(tau, "square"),
    "power": lambda tau: so.SoftSort(tau, 1.5),
    "neuralsort": so.NeuralSort,
}
# What differs between operations does not depend on shapes and dtypes.
SOME = ["sort", "rank", "quantile", "P.matrix()"]
PAIRS = [
    pytest.param(operation, make, id=f"{operation}-{name}")
    for operation, (name, make) in itertools.product(parity.FOR_ANY_SCORES, HOWS.items())
]


@st.composite
def inputs(draw):
    """Scores with ties and infinities, a temperature and a mask."""
    n = 5  # one length: JAX compiles for each
    x = draw(strategies.scores(min_size=n, max_size=n, infinite=True))
    mask = np.asarray(draw(st.lists(st.sampled_from([True, True, False]), min_size=n, max_size=n)))
    return x, np.array(draw(strategies.temperatures)), mask


@pytest.mark.parametrize(("operation", "make"), PAIRS)
def test_values_and_gradients_are_numpys(framework, operation, make):
    def function(x, tau, mask):
        return parity.OPERATIONS[operation](x, make(tau), None, mask=mask)

    @settings(max_examples=12)
    @given(inputs())
    @np.errstate(invalid="ignore")  # half-way between two infinities
    def examine(drawn):
        x, tau, mask = drawn
        y = function(x, tau, mask)
        # Where the result is NaN, its gradient means nothing.
        g = np.where(np.isnan(y), 0.0, parity.weights(y))
        value, found = framework.pull(function, [x, tau], g, mask)
        _, expected = NUMPY.pull(function, [x, tau], g, mask)
        scale = max(1.0, np.abs(y[np.isfinite(y)]).max(initial=0.0))
        np.testing.assert_allclose(value, y, rtol=0, atol=scale * SQUARE_VALUES["float64"])
        # A derivative may be what rounding leaves of terms of this size, which cancel.
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(
                got, want, rtol=GRADIENTS["float64"], atol=GRADIENTS["float64"] / tau
            )

    examine()


@pytest.mark.parametrize("operation", SOME)
def test_any_batch_and_any_dim(framework, operation):
    x = np.random.default_rng(0).normal(size=(2, 6, 3))

    def function(x):
        return parity.OPERATIONS[operation](x, so.SoftSort(0.7), None, dim=1)

    assert_close(framework.value(function, x), function(x), VALUES)


@pytest.mark.parametrize("operation", SOME)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_types_come_out_as_they_went_in_and_ranks_in_float32(framework, operation, dtype):
    x = parity.X.astype(dtype)

    def function(x):
        return parity.OPERATIONS[operation](x, so.SoftSort(0.7), None)

    y = function(framework.array(x))
    of_result = "float32" if operation == "rank" else dtype
    assert of_result in str(y.dtype)
    exact = function(x.astype(np.float64))
    assert_close(framework.values(y), exact, VALUES[of_result])
    g = parity.weights(exact).astype(dtype)
    _, (found,) = framework.pull(function, [x], g)
    _, (expected,) = NUMPY.pull(function, [x.astype(np.float64)], g.astype(np.float64))
    assert_close(found, expected, GRADIENTS[dtype])


@pytest.mark.parametrize("how", [so.SoftSort(1e-3), so.FastSoftRank(1e-6)])
def test_half_precision_ranks_count_past_what_it_holds(framework, how):
    """In float16, 2049 is 2048."""
    x = np.random.default_rng(0).permutation(3000) - 1500.0
    half = framework.array(x.astype("float16"))
    ranks = so.rank(half, how)
    assert "float32" in str(ranks.dtype)
    assert_close(framework.values(ranks), x + 1501, VALUES["float32"])
    if hasattr(how, "permutation"):
        index = so.argsort(half, how)
        assert "float32" in str(index.dtype)
        assert_close(framework.values(index), np.argsort(x), VALUES["float32"])


def test_no_items_and_one(framework):
    for operation in ("sort", "rank", "P.matrix()", "P.entropy()"):
        for n in (0, 1):
            x = np.full((3, n), 2.0)

            def function(x, operation=operation):
                return parity.OPERATIONS[operation](x, so.SoftSort(0.7), None)

            y = function(x)
            value, (g,) = framework.pull(function, [x], np.ones(y.shape))
            assert_close(value, y, VALUES)
            assert_close(
                g, np.ones(x.shape) if operation == "sort" else np.zeros(x.shape), VALUES["float64"]
            )


def test_a_nan_spoils_its_own_row_alone(framework):
    x = np.array([[0.3, np.nan, 1.0], [0.3, 0.1, 1.0]])
    for how in (so.SoftSort(0.7), so.SoftSort(0.7, 1.5), so.NeuralSort(0.7)):
        y = framework.value(lambda x, how=how: so.sort(x, how), x)
        assert np.isnan(y[0]).all()
        assert_close(y[1], so.sort(x[1], how), VALUES)


def test_arrays_of_two_frameworks_are_an_error(framework):
    other = "torch" if framework.name == "numpy" else "numpy"
    if not frameworks.is_installed(other):
        pytest.skip(f"{other} is not installed")
    x, keys = framework.array(parity.X), frameworks.framework(other).array(parity.X)
    both = rf"must belong to one framework; got \w+ of {framework.name} and \w+ of {other}"
    with pytest.raises(TypeError, match=both):
        so.sort(x, 0.1, by=keys)
    with pytest.raises(TypeError, match=both):
        so.sort(x, frameworks.framework(other).array(np.array(0.1)))
    with pytest.raises(TypeError, match=r"must belong to one framework"):
        so.SoftSort(0.1)(x) @ keys


def test_the_table_of_the_docs_is_what_this_framework_has(framework):
    found = parity.examine_all(framework, NUMPY)
    text = framework_table.PAGE.read_text()
    assert framework_table.column(text, framework.name) == framework_table.marks(found)


def test_an_unknown_framework_is_an_error(pytestconfig):
    with pytest.raises(pytest.UsageError, match="invalid choice: 'cobol'"):
        pytestconfig._parser.parse(["--framework", "cobol"])
