"""softorder for NumPy: gradients by `vjp`, which `softorder` exports.

The operations themselves take arrays as they are: `softorder.sort(array, 0.1)`.
"""

from softorder.numpy._vjp import vjp

__all__ = ["vjp"]
