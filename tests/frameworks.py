"""The frameworks, each behind the same few verbs: what the parity tests and the docs' table use.

Arguments and results are NumPy arrays; what a framework cannot do is None. NumPy itself, with
`softorder.vjp`, is what the others are compared with.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import pathlib
import re
import tomllib
from collections.abc import Callable

import numpy as np

import softorder as so

NAMES = ("numpy", "torch", "jax", "tensorflow")


def is_installed(name):
    return importlib.util.find_spec(name) is not None


@functools.cache
def extra_is_installed(extra):
    """Tell whether all that an extra of pyproject.toml asks for is installed."""
    path = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    project = tomllib.loads(path.read_text())["project"]
    for requirement in project["optional-dependencies"][extra]:
        try:
            importlib.metadata.version(re.split(r"[\[<>=~!]", requirement)[0])
        except importlib.metadata.PackageNotFoundError:
            return False
    return True


@dataclasses.dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        name: Of its module.
        array: A NumPy array as one of its own.
        values: The way back, in float64 or as integers.
        pull: `(function, arrays, g, *constants)` gives y = function(*arrays, *constants) and the
            gradients of sum(g * y) in the arrays.
        second: `(function, x, g, direction)` gives the second derivatives of sum(g * function(x))
            times a direction.
        compiled: The function, compiled.
    """

    name: str
    array: Callable
    values: Callable
    pull: Callable
    second: Callable | None = None
    compiled: Callable | None = None

    def value(self, function, *arrays):
        """Return function(*arrays)."""
        return self.values(function(*map(self.array, arrays)))


def _numpy():
    def pull(function, arrays, g, *constants):
        y, pullback = so.vjp(lambda *arrays: function(*arrays, *constants), *arrays)
        found = pullback(np.asarray(g, dtype=y.dtype))
        return y, found if isinstance(found, tuple) else (found,)

    return Framework("numpy", lambda x: x, np.asarray, pull)


def _torch():
    import torch

    def array(x):
        return torch.tensor(x)

    def values(y):
        return np.asarray(y.detach().double() + 0 if y.is_floating_point() else y)

    def pull(function, arrays, g, *constants):
        leaves = [array(x).requires_grad_() for x in arrays]
        y = function(*leaves, *map(array, constants))
        found = torch.autograd.grad(y, leaves, array(g).to(y.dtype), allow_unused=True)
        zeros = (np.zeros(x.shape) for x in arrays)
        return values(y), tuple(z if d is None else values(d) for z, d in zip(zeros, found))  # noqa: B905

    def second(function, x, g, direction):
        leaf = array(x).requires_grad_()
        (d,) = torch.autograd.grad((function(leaf) * array(g)).sum(), leaf, create_graph=True)
        if not d.requires_grad:  # a linear function
            return np.zeros(x.shape)
        return values(torch.autograd.grad((d * array(direction)).sum(), leaf)[0])

    def compiled(function):
        # Functions of one place in a file are versions of one function to the compiler.
        torch.compiler.reset()
        return torch.compile(function, fullgraph=True, backend="eager")

    return Framework("torch", array, values, pull, second, compiled)


def _jax():
    import jax
    import jax.numpy as jnp

    # So that float64 is there to compare in; what is without has tests of its own.
    jax.config.update("jax_enable_x64", True)
    # Each program runs a few times only.
    jax.config.update("jax_disable_most_optimizations", True)

    def values(y):
        return np.asarray(y, dtype=np.float64 if jnp.isdtype(y.dtype, "real floating") else None)

    # Compiled as a whole: operation by operation would take ten times as long.
    @functools.partial(jax.jit, static_argnums=0)
    def both(function, arrays, g, constants):
        y, pullback = jax.vjp(lambda *arrays: function(*arrays, *constants), *arrays)
        return y, pullback(g.astype(y.dtype))

    def pull(function, arrays, g, *constants):
        arrays, constants = (tuple(map(jnp.asarray, each)) for each in (arrays, constants))
        y, found = both(function, arrays, jnp.asarray(g), constants)
        return values(y), tuple(map(values, found))

    def second(function, x, g, direction):
        gradient = jax.grad(lambda x: jnp.sum(function(x) * g))
        along = jax.jit(lambda x: jax.jvp(gradient, (x,), (jnp.asarray(direction),))[1])
        return values(along(jnp.asarray(x)))

    return Framework("jax", jnp.asarray, values, pull, second, jax.jit)


def _tensorflow():
    import tensorflow as tf

    def values(y):
        return tf.cast(y, tf.float64).numpy() if y.dtype.is_floating else y.numpy()

    def pull(function, arrays, g, *constants):
        leaves = [tf.constant(x) for x in arrays]
        with tf.GradientTape() as tape:
            tape.watch(leaves)
            y = function(*leaves, *map(tf.constant, constants))
        found = tape.gradient(y, leaves, tf.cast(tf.constant(g), y.dtype), "zero")
        return values(y), tuple(map(values, found))

    def second(function, x, g, direction):
        leaf = tf.constant(x)
        with tf.GradientTape() as outer:
            outer.watch(leaf)
            with tf.GradientTape() as inner:
                inner.watch(leaf)
                y = tf.reduce_sum(function(leaf) * g)
            along = tf.reduce_sum(inner.gradient(y, leaf, None, "zero") * direction)
        return values(outer.gradient(along, leaf, None, "zero"))

    return Framework("tensorflow", tf.constant, values, pull, second, tf.function)


_MAKE = {"numpy": _numpy, "torch": _torch, "jax": _jax, "tensorflow": _tensorflow}


@functools.cache
def framework(name):
    """Return a framework, which is imported now."""
    return _MAKE[name]()
