"""The array API in JAX: jax.numpy, with the wide types that there are, and no devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


class Namespace:
    """jax.numpy but for two things.

    float64, int64 and complex128 are their 32-bit halves unless `jax_enable_x64` is set: JAX would
    give these too, with a warning. `device=` is left out: a tracer has none, and XLA places what a
    program makes where it is used.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @property
    def float64(self) -> Any:
        """The widest real type."""
        return jnp.float64 if has_float64() else jnp.float32

    @property
    def int64(self) -> Any:
        """The widest integer type."""
        return jnp.int64 if has_float64() else jnp.int32

    @property
    def complex128(self) -> Any:
        """The widest complex type."""
        return jnp.complex128 if has_float64() else jnp.complex64


def has_float64() -> bool:
    """Tell whether JAX has 64-bit types now."""
    return bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]


def _without_device(name: str) -> Any:
    create = getattr(jnp, name)

    def function(self: Namespace, *arguments: Any, device: Any = None, **keywords: Any) -> Any:
        return create(*arguments, **keywords)

    return function


for _name in ("arange", "asarray", "eye", "full", "ones", "zeros"):
    setattr(Namespace, _name, _without_device(_name))

xp: Any = Namespace()
