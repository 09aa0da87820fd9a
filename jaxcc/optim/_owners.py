"""Which arrays of a transformation's state belong to a parameter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxcc.optim._unsupported import unsupported

SHARED = -1
"""The owner of what belongs to no parameter: all ranks hold it whole."""


def placeholder() -> Any:
    """What stands for the parameters where optax looks for trees like them."""
    seen: list[Any] = []

    def init(params: Any) -> Any:
        seen.append(params)

    nothing: Any = None
    optax.tree_utils.tree_map_params(init, lambda x: x, nothing)
    return seen[0]


def owners_of(tx: optax.GradientTransformation, state: Any, params: Any) -> Any:
    """Like the state: for each array the number of the parameter that it belongs to and has the
    shape of, or SHARED.

    Args:
      tx: the transformation.
      state: of whole arrays, or their types.
      params: the parameters, or their types.
    """
    leaves, tree = jax.tree.flatten(params)
    numbers = jax.tree.unflatten(tree, range(len(leaves)))

    def owner(x: Any, number: Any) -> Any:
        if _is_masked(x):
            return x
        return number if jnp.shape(x) == jnp.shape(leaves[number]) else SHARED

    try:
        mark: Any = placeholder()
        marked: Any = tx.init(mark)
    except Exception:  # A function of it, such as one that gives labels, looks into the parameters.
        return _by_structure(state, numbers, owner)

    def owned(x: Any, part: Any) -> Any:
        if not isinstance(x, type(mark)):
            return SHARED
        return jax.tree.map(owner, part, numbers, is_leaf=_is_masked)

    try:
        return jax.tree.map(owned, marked, state, is_leaf=lambda x: isinstance(x, type(mark)))
    except ValueError as error:
        raise unsupported(
            "its state holds trees that are not like the parameters", because=str(error)
        ) from error


def _by_structure(node: Any, numbers: Any, owner: Any) -> Any:
    """The owners of a state whose init tells nothing: every tree in it that has the structure of
    the parameters, of which some may be masked, is one of arrays like them.
    """
    leaves, tree = jax.tree.flatten(node, is_leaf=_is_masked)
    try:
        parts = tree.flatten_up_to(numbers)
    except ValueError:
        parts = [None]
    alike = all(_is_masked(x) or isinstance(n, int) for x, n in zip(leaves, parts, strict=False))
    if len(parts) == len(leaves) and alike:
        return tree.unflatten(map(owner, leaves, parts))
    children, outer = jax.tree.flatten(node, is_leaf=lambda x: x is not node)
    if children and children[0] is node:
        return SHARED
    return outer.unflatten([_by_structure(child, numbers, owner) for child in children])


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)
