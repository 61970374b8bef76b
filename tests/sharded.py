"""`jax.shard_map` over two devices; `test_jax.py` runs it in a process that has two.

Arrays are split along the batch; the temperature and the values are the same on both devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import softorder as so
from tolerances import GRADIENTS, assert_close

jax.config.update("jax_enable_x64", True)
EACH, ALL = PartitionSpec("device"), PartitionSpec()
MESH = Mesh(np.array(jax.devices()), ("device",))


def sharded(function, inputs, outputs):
    return jax.shard_map(function, mesh=MESH, in_specs=inputs, out_specs=outputs)


def loss(x, tau, v, mask):
    """Return a number that uses every product of the native kernel."""
    P = so.SoftSort(tau)(x, mask=mask)
    y = jnp.sum(jnp.cos(P @ v)) + jnp.sum(jnp.sin(P.T @ v)) + jnp.sum(P.sort_scores() ** 2)
    return y + jnp.sum(P.log_prob(jnp.arange(x.shape[-1])))


def check_gradients():
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=(4, 6))), jnp.asarray(0.5), jnp.ones((6, 1))]
    mask = jnp.asarray(rng.random((4, 6)) < 0.7)
    where = (EACH, ALL, ALL)
    slopes = jax.grad(loss, (0, 1, 2))
    expected = jax.jit(slopes)(*arrays, mask)
    # A gradient inside is summed over devices where all of them share the argument.
    inside = jax.jit(sharded(slopes, (*where, EACH), where))(*arrays, mask)
    total = sharded(lambda *a: jax.lax.psum(loss(*a), "device"), (*where, EACH), ALL)
    outside = jax.jit(jax.grad(total, (0, 1, 2)))(*arrays, mask)
    for got in (inside, outside):
        for to, right in zip(got, expected, strict=True):
            assert_close(to, right, GRADIENTS)


def check_that_what_varies_cannot_pass_for_one():
    with pytest.raises(ValueError, match="require replication"):
        sharded(lambda x: so.sort(x, 0.5), EACH, ALL)(jnp.ones((4, 6)))


if __name__ == "__main__":
    assert len(jax.devices()) == 2
    check_gradients()
    check_that_what_varies_cannot_pass_for_one()
