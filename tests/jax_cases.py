"""Arrays and relaxations for the tests of JAX."""

import jax.numpy as jnp
import numpy as np
import pytest

import frameworks
import softorder as so
from inside import extension_module

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
    extension_module.extension is None, reason="the native kernel was not built"
)


def products(how, x, v):
    """Return what the primitives give: means, sums by item, and a likelihood."""
    P = how(x)
    sums = jnp.sum(P.T @ v, -1)
    return P.sort_scores() + jnp.sum(P @ v, -1) + sums, P.log_prob(jnp.arange(5))


def loss(how, x, v=V):
    y, log_p = products(how, x, jnp.asarray(v))
    return jnp.sum(jnp.cos(jnp.arange(5.0)) * y**2) + jnp.sum(log_p)
