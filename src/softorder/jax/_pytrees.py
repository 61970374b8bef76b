"""Relaxations and soft permutations as pytrees: they go through jit, vmap, grad and optimisers."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey, register_pytree_with_keys

from softorder import relaxations
from softorder._permutation import SoftPermutation

_Class = TypeVar("_Class", bound=type)


def register_relaxation(cls: _Class) -> _Class:
    """Make a relaxation of your own, a frozen dataclass, a pytree; softorder's own are.

    Its leaves are the fields that are arrays, and those of fields that are pytrees themselves, such
    as a metric that is an Equinox module. All else is part of the program, numbers too: a
    temperature that changes between calls of a compiled function is best given as an array. Serves
    as a decorator. An Equinox module is a pytree already, and needs none of this.

    Args:
        cls: The class.

    Returns:
        The class.
    """

    def flatten_with_keys(how: Any) -> tuple[Any, Any]:
        leaves, static = [], []
        for field in dataclasses.fields(how):
            value = getattr(how, field.name)
            if _is_dynamic(value):
                leaves.append((GetAttrKey(field.name), value))
            else:
                static.append((field.name, tuple(value) if isinstance(value, list) else value))
        return leaves, (tuple(key.name for key, _ in leaves), tuple(static))

    def unflatten(structure: Any, leaves: Any) -> Any:
        # Without __post_init__: leaves may be anything while JAX moves them about.
        how = object.__new__(cls)
        names, static = structure
        for name, value in (*zip(names, leaves, strict=True), *static):
            object.__setattr__(how, name, value)
        return how

    register_pytree_with_keys(cls, flatten_with_keys, unflatten)
    return cls


def _is_dynamic(value: Any) -> bool:
    """Tell whether a field is traced: an array, or a pytree that is more than a list of numbers."""
    if isinstance(value, jax.Array):
        return True
    return not (isinstance(value, (list, tuple)) or jax.tree_util.all_leaves([value]))


def _flatten_permutation(P: SoftPermutation) -> tuple[Any, Any]:
    recipe = P._recipe
    names = ("relaxation", "scores", "mask")
    parts = (recipe.relaxation, P._scores, recipe.mask)
    leaves = [(GetAttrKey(name), part) for name, part in zip(names, parts, strict=True)]
    return leaves, (P._dim, recipe.views)


def _unflatten_permutation(structure: Any, parts: Any) -> SoftPermutation:
    dim, views = structure
    relaxation, scores, mask = parts
    return SoftPermutation.from_parts(relaxation, scores, mask, dim, views)


def register() -> None:
    """Register what softorder has."""
    for name in relaxations.__all__:
        register_relaxation(getattr(relaxations, name))
    register_pytree_with_keys(SoftPermutation, _flatten_permutation, _unflatten_permutation)
