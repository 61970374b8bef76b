"""JAX: its transformations, and life without 64-bit types."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softorder as so
from inside import dispatch, tiled
from jax_cases import HOWS, NUMPY, V, X, every_how, loss, needs_native, products
from tolerances import FINITE_DIFFERENCES, GRADIENTS, SQUARE_VALUES, STOPPED, VALUES, assert_close


@every_how
def test_all_modes_give_one_derivative(how):
    x, f = jnp.asarray(X[1]), functools.partial(loss, how)
    gradient = jax.jit(jax.grad(f))(x)
    tangents = jax.jit(jax.vmap(lambda t: jax.jvp(f, (x,), (t,))[1]))(jnp.eye(5))
    step = 1e-5
    value = jax.jit(f)
    differences = [(value(x + step * e) - value(x - step * e)) / (2 * step) for e in np.eye(5)]
    assert_close(gradient, np.array(differences), FINITE_DIFFERENCES)
    assert_close(tangents, gradient, GRADIENTS)


MODES = [
    (jax.jacfwd, jax.jacrev),
    (jax.jacrev, jax.jacrev),
    (jax.jacfwd, jax.jacfwd),
    (jax.jacrev, jax.jacfwd),
]


@every_how
def test_all_modes_give_one_hessian(how):
    x = jnp.asarray(X[1])

    def f(x):
        return jnp.sum(jnp.cos(jnp.arange(5.0)) * so.sort(x, how) ** 2)

    step, slope = 1e-5, jax.jit(jax.grad(f))
    ends = [(slope(x + step * e), slope(x - step * e)) for e in np.eye(5)]
    expected = np.array([(up - down) / (2 * step) for up, down in ends])
    for outer, inner in MODES if how is HOWS["abs"] else MODES[:1]:
        assert_close(jax.jit(outer(inner(f)))(x), expected, FINITE_DIFFERENCES)


@every_how
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_vmap_gives_what_each_row_gives(how, axes):
    def both(x, v):
        slopes = jax.grad(functools.partial(loss, how), (0, 1))(x, v)
        return (*products(how, x, v), *slopes)

    every = jnp.asarray(X), jnp.stack([V, 2 * V])
    arguments = [a if axis == 0 else a[0] for a, axis in zip(every, axes, strict=True)]
    got, alone = jax.jit(jax.vmap(both, axes))(*arguments), jax.jit(both)
    for row in range(2):
        here = [a[row] if axis == 0 else a for a, axis in zip(arguments, axes, strict=True)]
        for some, each in zip(got, alone(*here), strict=True):
            assert_close(some[row], each, GRADIENTS)


def test_a_temperature_of_each_row_has_its_gradient_under_vmap():
    taus, x, step = jnp.array([0.5, 1.1]), jnp.asarray(X), 1e-5

    def f(tau, x):
        return jnp.sum(so.sort(x, so.SoftSort(tau, "square")) ** 2)

    mapped = jax.jit(jax.vmap(jax.grad(f)))(taus, x)
    of_each = jax.jit(jax.vmap(f))
    differences = (of_each(taus + step, x) - of_each(taus - step, x)) / (2 * step)
    assert_close(mapped, differences, FINITE_DIFFERENCES)
    assert_close(jax.jit(jax.grad(f))(taus, x), mapped, GRADIENTS)


def test_eager_and_compiled_are_one():
    x = jnp.asarray(X)
    for how in (HOWS["abs"], HOWS["power"]):
        compiled = jax.jit(lambda x, how=how: so.sort(x, how))(x)
        assert_close(so.sort(x, how), compiled, VALUES)


@needs_native
@pytest.mark.parametrize("name", ["abs", "neuralsort"])
def test_without_jit_results_are_the_same(name):
    """Each native product once called itself until Python gave up."""
    x, f = jnp.asarray(X), functools.partial(loss, HOWS[name])
    y, slope = jax.jit(jax.value_and_grad(f))(x)
    with jax.disable_jit():
        assert_close(f(x), y, VALUES)
        assert_close(jax.grad(f)(x), slope, GRADIENTS)


@needs_native
def test_shard_map_checks_and_differentiates_native_products():
    """The gradient once raised, and varying results passed for the same on all devices."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    script = pathlib.Path(__file__).with_name("sharded.py")
    subprocess.run([sys.executable, script], check=True, env=os.environ | {"XLA_FLAGS": flags})


def test_a_tolerance_is_reached_under_grad():
    """It looks at values, which there are under plain grad."""
    matrix, weight = np.sin(np.arange(16.0)).reshape(4, 4), np.cos(np.arange(16.0)).reshape(4, 4)

    def of_matrix(x):
        return so.Sinkhorn(0.5, tolerance=1e-10)(x).matrix()

    def of_scores(x):
        return so.OptimalTransportSort(0.1, tolerance=1e-10)(x).matrix()

    for function, x, g in ((of_matrix, matrix, weight), (of_scores, X[1, :4], weight)):
        _, (expected,) = NUMPY.pull(function, [x], g)
        weighted = functools.partial(lambda f, g, x: jnp.sum(g * f(x)), function, g)
        assert_close(jax.grad(weighted)(jnp.asarray(x)), expected, GRADIENTS)
        with pytest.raises(ValueError, match="tolerance= looks at values"):
            jax.jit(function)(jnp.asarray(x))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [2, 5])
def test_a_tolerance_is_reached_without_64_bit_types(n, seed):
    """Newton's matrix is singular but for a ridge, which float32 must not lose."""
    matrix = np.random.default_rng(seed).normal(size=(n, n)).astype(np.float32)
    weight = np.cos(np.arange(n * n)).reshape(n, n)

    def of_matrix(x):
        return so.Sinkhorn(0.5, tolerance=1e-4)(x).matrix()

    def of_scores(x):
        return so.OptimalTransportSort(0.5, tolerance=1e-4)(x).matrix()

    for function, x in ((of_matrix, matrix), (of_scores, matrix[0])):
        y, (g,) = NUMPY.pull(function, [x.astype(np.float64)], weight)
        with jax.enable_x64(False):
            assert_close(function(jnp.asarray(x)), y, STOPPED[1e-4])
            weighted = functools.partial(lambda f, x: jnp.sum(weight * f(x)), function)
            got = jax.grad(weighted)(jnp.asarray(x))
            # Of two standardized scores the gradient is 0.
            np.testing.assert_allclose(got, g, rtol=0, atol=STOPPED[1e-4])


def test_a_permutation_made_outside_is_good_inside_and_afterwards():
    with so.config(kernel="portable"):
        P = so.SoftSort(0.7)(jnp.asarray(X))
    inside = jax.jit(lambda v: P @ v)(jnp.asarray(V))
    # Whatever the compiled function computed on its way must not have been kept.
    assert_close(P @ jnp.asarray(V), inside, VALUES)
    assert_close(inside, so.SoftSort(0.7)(X) @ V, VALUES)


def test_constants_inside_a_compiled_function_are_not_looked_at():
    items = jnp.arange(5)
    got = jax.jit(lambda x: so.SoftSort(0.7)(x).log_prob(items))(jnp.asarray(X))
    assert_close(got, so.SoftSort(0.7)(X).log_prob(np.arange(5)), VALUES)
    with pytest.raises(ValueError, match=r"each of 0\.\.4 once"):
        so.SoftSort(0.7)(jnp.asarray(X)).log_prob(jnp.zeros(5, int))


@needs_native
def test_an_index_out_of_range_is_an_error_also_where_it_cannot_be_looked_at():
    likelihood = jax.jit(lambda x, items: so.SoftSort(0.7)(x).log_prob(items))
    with pytest.raises(Exception, match=r"each of 0\.\.n-1 once"):
        likelihood(jnp.asarray(X), jnp.array([0, 1, 2, 3, 70])).block_until_ready()


@needs_native
@pytest.mark.parametrize("metric", ["abs", "square"])
def test_the_portable_kernel_is_the_native_one(metric):
    x, v = jnp.asarray(X), jnp.asarray(V)

    def both(x, tau, kernel):
        with so.config(kernel=kernel):
            P = so.SoftSort(tau, metric)(x)
            return jnp.sum((P @ v) ** 2) + jnp.sum((P.T @ v) ** 2)

    found = [
        jax.jit(jax.value_and_grad(functools.partial(both, kernel=kernel), (0, 1)))(x, 0.3)
        for kernel in ("native", "portable", "dense")
    ]
    for other in found[:2]:
        assert_close(other[0], found[2][0], SQUARE_VALUES)
        for a, b in zip(other[1], found[2][1], strict=True):
            assert_close(a, b, GRADIENTS)


def test_tiles_are_a_loop_that_is_compiled_once(monkeypatch):
    monkeypatch.setattr(tiled, "TILE", 64)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 30)))

    def f(x, kernel):
        with so.config(kernel=kernel):
            P = so.SoftSort(0.7, 1.5)(x)
            return jnp.sum((P @ x[..., None]) ** 2) + jnp.sum((P.T @ x[..., None]) ** 3)

    jaxpr = str(jax.make_jaxpr(functools.partial(f, kernel="tiled"))(x))
    assert jaxpr.count("scan[") == 2
    found = [
        jax.jit(jax.value_and_grad(functools.partial(f, kernel=k)))(x) for k in ("tiled", "dense")
    ]
    assert_close(found[0][0], found[1][0], VALUES)
    assert_close(found[0][1], found[1][1], GRADIENTS)


@needs_native
def test_a_first_derivative_is_native_from_end_to_end():
    """No step of the usual case may fall back to array operations without a word."""
    lowered = jax.jit(jax.value_and_grad(lambda x: so.sort(x, 0.1).sum())).lower(jnp.asarray(X))
    text = lowered.as_text()
    for target in ("softorder_sort", "softorder_forward", "softorder_backward"):
        assert target in text
    assert "scatter" not in text


@needs_native
@pytest.mark.parametrize("metric", ["abs", "square"])
def test_for_another_device_the_same_program_is_array_operations(metric):
    traced = jax.jit(jax.grad(lambda x: so.sort(x, so.SoftSort(0.1, metric)).sum())).trace(
        jnp.asarray(X)
    )
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "softorder_" not in text
    assert "sort" in text


def test_memory_is_linear():
    compiled = jax.jit(jax.grad(lambda x: so.sort(x, 0.1).sum())).lower(jnp.zeros(10**5)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 100 * 8 * 10**5


def test_what_is_chosen_and_what_cannot_be_is_said():
    x = jnp.zeros((1, 3), jnp.float32)
    narrow, portable = jax.enable_x64(False), so.config(kernel="portable")
    with narrow, portable, pytest.raises(ValueError, match="jax_enable_x64"):
        so.sort(x, so.SoftSort(0.1, "square"))
    with so.config(kernel="native"), pytest.raises(ValueError, match="SoftSort with metric"):
        so.sort(x, so.SoftSort(0.1, 1.5))


@pytest.fixture
def narrow():
    with jax.enable_x64(False):
        yield


@pytest.mark.usefixtures("narrow")
@every_how
def test_float32_is_right_without_64_bit_types(how):
    x = np.random.default_rng(0).normal(size=(2, 300)).astype(np.float32)
    wide = x.astype(np.float64)
    g = np.cos(np.arange(x.size, dtype=np.float64)).reshape(x.shape)
    for operation in (so.sort, so.rank):
        y, (slope,) = NUMPY.pull(lambda x, f=operation: f(x, how), [wide], g)
        value = jax.jit(lambda x, f=operation: f(x, how))(jnp.asarray(x))
        got = jax.jit(jax.grad(lambda x, f=operation: jnp.sum(f(x, how) * g.astype(np.float32))))(x)
        assert value.dtype == got.dtype == jnp.float32
        assert_close(value, y, VALUES)
        assert_close(got, slope, GRADIENTS)


@pytest.mark.usefixtures("narrow")
def test_an_unlikely_rank_has_its_logarithm_without_64_bit_types():
    def log_p(x, permutation):
        return so.SoftRank(0.5)(x).log_prob(permutation)

    found = jax.jit(jax.value_and_grad(lambda x: log_p(x, jnp.array([1, 2, 0]))))
    for gap in (0.5, 17.0, 300.0):
        x = np.array([gap, 0.0, -1.0])
        y, (slope,) = NUMPY.pull(lambda x: log_p(x, np.array([1, 2, 0])), [x], 1)
        value, gradient = found(jnp.asarray(x, jnp.float32))
        assert value.dtype == jnp.float32
        assert_close(value, y, VALUES)
        assert_close(gradient, slope, GRADIENTS)


@pytest.mark.usefixtures("narrow")
def test_square_keeps_its_accuracy_on_other_devices_too(monkeypatch):
    """The choice that is made there: tiles, because complex terms cancel in float32."""
    monkeypatch.setattr(dispatch, "may_be_native", lambda wiring, x: False)
    monkeypatch.setattr(dispatch, "DENSE_ENTRIES", 0)
    x = np.random.default_rng(0).normal(size=(2, 60)).astype(np.float32)
    how = so.SoftSort(0.7, "square")
    P = how(jnp.asarray(x))
    assert isinstance(P._operator, tiled.Tiled)
    assert_close(P.sort_scores(), how(x.astype(np.float64)).sort_scores(), VALUES)
    again = dispatch.dispatch_arrays(how.weights(P._operator.scores), P._operator.scores)
    assert isinstance(again, tiled.Tiled)


@pytest.mark.usefixtures("narrow")
def test_indices_are_as_wide_as_there_are():
    P = so.SoftSort(0.7)(jnp.asarray(X, jnp.float32))
    assert P.order.dtype == jnp.int32
    assert P.order.tolist() == np.argsort(-X, stable=True).tolist()
    mask = jnp.array([True, False, True, True, True])
    assert_close(
        so.rank(jnp.asarray(X, jnp.float32), 0.7, mask=mask),
        so.rank(X, 0.7, mask=np.asarray(mask)),
        VALUES,
    )
