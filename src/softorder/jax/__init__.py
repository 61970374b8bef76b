"""softorder for JAX: what learns, as pytrees. Operations take JAX arrays as they are.

Importing this makes relaxations and soft permutations pytrees; so does the first operation on a JAX
array. Equinox, Flax and Optax take what is here as it is; none of them is needed.
"""

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'softorder.jax needs JAX; it is not installed. Run: pip install "softorder[jax]"'
    ) from error

from softorder.jax import _wiring as _wiring
from softorder.jax._pytrees import register_relaxation
from softorder.jax.layers import Layer, PowerMetric, SoftSort

__all__ = ["Layer", "PowerMetric", "SoftSort", "register_relaxation"]
