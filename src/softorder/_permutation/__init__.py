"""The object in the middle: a soft permutation, a lazy linear operator."""

from softorder._permutation.soft_permutation import Recipe, SoftPermutation
from softorder._permutation.transposed import TransposedPermutation

__all__ = ["Recipe", "SoftPermutation", "TransposedPermutation"]
