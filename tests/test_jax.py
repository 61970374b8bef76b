"""JAX: its transformations, its pytrees, its keys, and life without 64-bit types."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frameworks
import softorder as so
import softorder.jax as sj
from inside import dispatch, native, tiled
from tolerances import FINITE_DIFFERENCES, GRADIENTS, SQUARE_VALUES, VALUES, assert_close

frameworks.framework("jax")  # sets it up
NUMPY = frameworks.framework("numpy")

X = np.array([[0.3, -1.1, 0.9, 0.3, -0.4], [2.0, 0.1, -0.7, 0.6, 1.5]])
V = np.cos(np.arange(10.0)).reshape(5, 2)
HOWS = {
    "abs": so.SoftSort(0.7),
    "square": so.SoftSort(0.7, "square"),
    "neuralsort": so.NeuralSort(1.3),
    "power": so.SoftSort(0.7, 1.5),
}
every_how = pytest.mark.parametrize("how", HOWS.values(), ids=HOWS)
needs_native = pytest.mark.skipif(
    native.extension is None, reason="the native kernel was not built"
)


def products(how, x, v):
    """Return what the primitives give: means, sums by item, and a likelihood."""
    P = how(x)
    sums = jnp.sum(P.T @ v, -1)
    return P.sort_scores() + jnp.sum(P @ v, -1) + sums, P.log_prob(jnp.arange(5))


def loss(how, x, v=V):
    y, log_p = products(how, x, jnp.asarray(v))
    return jnp.sum(jnp.cos(jnp.arange(5.0)) * y**2) + jnp.sum(log_p)


# ---------------------------------------------------------------- transformations


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
            assert_close(function(jnp.asarray(x)), y, 2e-4)
            weighted = functools.partial(lambda f, x: jnp.sum(weight * f(x)), function)
            got = jax.grad(weighted)(jnp.asarray(x))
            # Of two standardized scores the gradient is 0.
            np.testing.assert_allclose(got, g, rtol=0, atol=2e-4)


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


# ---------------------------------------------------------------- kernels


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
    with so.config(kernel="native"), pytest.raises(ValueError, match='serves metric="abs"'):
        so.sort(x, so.SoftSort(0.1, 1.5))


# ---------------------------------------------------------------- without 64-bit types


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
    monkeypatch.setattr(dispatch, "serves_natively", lambda wiring: False)
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


# ---------------------------------------------------------------- pytrees


def test_relaxations_and_permutations_go_through_compiled_functions():
    x = jnp.asarray(X)
    how = so.SoftSort(jnp.array(0.7))
    y = jax.jit(lambda how, x: so.sort(x, how))(how, x)
    assert_close(y, so.sort(X, 0.7), VALUES)
    slope = jax.grad(lambda how: jnp.sum(so.sort(x, how) ** 2))(how)
    assert isinstance(slope, so.SoftSort)
    step = 1e-6
    ends = [np.sum(so.sort(X, 0.7 + sign * step) ** 2) for sign in (1, -1)]
    assert_close(slope.tau, (ends[0] - ends[1]) / (2 * step), FINITE_DIFFERENCES)
    for view in (
        lambda P: P,
        lambda P: P.flip(),
        lambda P: P.hard(),
        lambda P: P.straight_through(),
    ):
        P = view(so.NeuralSort(1.3)(x, dim=-1, mask=x > -1))
        v = jnp.asarray(V)
        outside, inside = P @ v, jax.jit(lambda P, v: P @ v)(P, v)
        assert_close(inside, outside, VALUES)
        again = jax.jit(lambda P: P)(P)
        assert again.shape == (2, 5, 5)
        assert_close(again @ v, outside, VALUES)
    S = jax.jit(lambda m: so.Sinkhorn(0.5)(m))(jnp.eye(3))
    assert_close(S.matrix(), so.Sinkhorn(0.5)(np.eye(3)).matrix(), VALUES)
    assert S.hard().order.tolist() == [0, 1, 2]


def test_vmap_goes_over_permutations():
    P = so.SoftSort(0.7)(jnp.asarray(X))
    got = jax.vmap(lambda P, v: P @ v)(P, jnp.asarray(X))
    assert_close(got, so.SoftSort(0.7)(X).sort_scores(), VALUES)


def test_numbers_are_part_of_the_program_and_arrays_are_leaves():
    leaves, structure = jax.tree.flatten(so.OptimalTransportSort(0.1, targets=[0.25, 0.5]))
    assert leaves == []
    assert jax.tree.unflatten(structure, leaves).targets == (0.25, 0.5)
    assert hash(structure) == hash(
        jax.tree.structure(so.OptimalTransportSort(0.1, targets=[0.25, 0.5]))
    )
    assert len(jax.tree.leaves(so.SoftSort(jnp.ones(2), sj.PowerMetric(jnp.log(1.5))))) == 2
    # While JAX moves leaves about they may be anything.
    assert jax.tree.map(lambda _: "leaf", so.SoftSort(jnp.ones(2))).tau == "leaf"


def test_a_relaxation_of_ones_own_can_be_registered():
    import dataclasses

    @sj.register_relaxation
    @dataclasses.dataclass(frozen=True, eq=False)
    class Own(so.SoftSort):
        sharpness: float = 2.0

    assert_close(
        jax.jit(lambda how, x: so.sort(x, how))(Own(0.7), jnp.asarray(X)), so.sort(X, 0.7), VALUES
    )


def test_what_learns_moves():
    how = sj.SoftSort(tau=0.5, metric=sj.PowerMetric(jnp.log(1.5)))
    layer = sj.Layer(so.sort, how, {"descending": True})
    assert_close(layer(jnp.asarray(X)), so.sort(X, so.SoftSort(0.5, 1.5), descending=True), VALUES)
    # Equinox gives every layer a key.
    assert_close(layer(jnp.asarray(X), key=None), layer(jnp.asarray(X)), VALUES)
    slope = jax.jit(jax.grad(lambda layer: jnp.sum(layer(jnp.asarray(X)) ** 2)))(layer)
    assert abs(float(slope.how.log_tau)) > 1e-3
    assert abs(float(slope.how.metric.log_p)) > 1e-3
    moved = jax.tree.map(lambda a, b: a - 0.1 * b, layer, slope)
    assert float(moved.how.tau) != float(layer.how.tau)
    assert float(moved(jnp.asarray(X)).sum()) != float(layer(jnp.asarray(X)).sum())
    with pytest.raises(ValueError, match="tau must be positive"):
        sj.SoftSort(tau=-1.0)


def test_layers_are_what_equinox_takes():
    eqx = pytest.importorskip("equinox")
    key = jax.random.key(0)
    linear = eqx.nn.Linear(5, 5, key=key)
    model = eqx.nn.Sequential([linear, sj.Layer(so.rank, sj.SoftSort(0.5))])
    slope = eqx.filter_jit(eqx.filter_grad(lambda model, x: model(x)[0]))(model, jnp.asarray(X[0]))
    assert float(abs(slope.layers[0].weight).sum()) > 0
    assert float(slope.layers[1].how.log_tau) != 0


# ---------------------------------------------------------------- keys


def test_draws_take_a_key():
    law = so.PlackettLuce(jnp.asarray(X), 0.5)
    key = jax.random.key(0)
    drawn = law.sample((1000,), key=key)
    assert drawn.shape == (1000, 2, 5)
    assert jnp.array_equal(drawn, jax.jit(lambda key: law.sample((1000,), key=key))(key))
    first = np.bincount(np.asarray(drawn[:, 1, 0]), minlength=5) / 1000
    np.testing.assert_allclose(first, np.exp(X[1]) / np.exp(X[1]).sum(), atol=0.05)
    assert jnp.array_equal(law.rsample((3,), key=key).order, law.sample((3,), key=key))
    P = so.gumbel_sinkhorn(jnp.eye(3), 0.5, shape=(7,), key=key)
    assert P.shape == (7, 3, 3)
    assert float(law.kl_divergence(so.PlackettLuce(jnp.zeros(5)), key=key)[0]) > 0
    with pytest.raises(TypeError, match=r"Pass for example key=jax.random.key\(0\)"):
        law.sample()
    with pytest.raises(TypeError, match="the source of random numbers for these scores is key="):
        law.sample(generator=np.random.default_rng(0))
    with pytest.raises(TypeError, match="scores is generator="):
        so.PlackettLuce(X).sample(key=key)


def test_a_row_vector_on_the_left_is_an_error():
    with pytest.raises(TypeError, match=r"write P.T @ v"):
        jnp.asarray(X) @ so.SoftSort(0.7)(jnp.asarray(X))


def test_knn_is_accurate_without_64_bit_types():
    points = (1000 + np.random.default_rng(0).normal(size=(20, 3))).astype(np.float32)
    query = points[:4] + np.float32(0.25)
    expected = so.knn(query.astype(np.float64), points.astype(np.float64), 3, 0.5)
    with jax.enable_x64(False):
        got = so.knn(jnp.asarray(query), jnp.asarray(points), 3, 0.5)
        assert_close(got, expected, 1e-5)
