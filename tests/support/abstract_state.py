"""Arguments of test programs, from the abstract state of a model or an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from programs import Whole


class Leaf(Whole):
    """A leaf of a state: numbers that may be variances, so not negative, and flags that are not
    set."""

    def random(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Fresh random values."""
        if np.dtype(self.dtype).kind == "b":
            return np.zeros(self.shape, bool)
        drawn = super().random(rng)
        return np.abs(drawn) if np.dtype(self.dtype).kind == "f" else drawn


def whole(tree: Any) -> Any:
    """The state as arguments; its keys stay abstract, so that it can be checked but not run."""

    def one(leaf: Any) -> Any:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return Leaf(tuple(leaf.shape), leaf.dtype, 2)

    return jax.tree.map(one, tree)


def stacked(tree: Any, layers: int) -> Any:
    """The states of several layers, as a scan over them takes it."""
    return jax.tree.map(lambda leaf: Leaf((layers, *leaf.shape), leaf.dtype), tree)


def by_path(layout: Callable[[str, Any], Any], tree: Any) -> Any:
    """For each leaf, the layout that a function gives for its path, as a text, and the leaf."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: layout(jax.tree_util.keystr(path), leaf), tree
    )


def named(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """`f` under another name, by which tests are called."""
    f.__name__ = name
    return f
