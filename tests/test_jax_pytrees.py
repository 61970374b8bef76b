"""JAX: relaxations and permutations as pytrees, layers, and keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import softorder as so
import softorder.jax as sj
from jax_cases import V, X
from tolerances import FINITE_DIFFERENCES, SAMPLED, VALUES, assert_close


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


def test_draws_take_a_key():
    law = so.PlackettLuce(jnp.asarray(X), 0.5)
    key = jax.random.key(0)
    drawn = law.sample((1000,), key=key)
    assert drawn.shape == (1000, 2, 5)
    assert jnp.array_equal(drawn, jax.jit(lambda key: law.sample((1000,), key=key))(key))
    first = np.bincount(np.asarray(drawn[:, 1, 0]), minlength=5) / 1000
    np.testing.assert_allclose(first, np.exp(X[1]) / np.exp(X[1]).sum(), atol=SAMPLED[1000])
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
        assert_close(got, expected, VALUES)
