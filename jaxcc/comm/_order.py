"""Where collectives take the order buffer from that keeps those of one program in one order."""

from __future__ import annotations

from typing import Protocol

import jax


class Orders(Protocol):
    """Where calls take the order buffer from, and put the next."""

    def take(self, after: jax.Array | None = None) -> jax.Array | None:
        """The order buffer for the next call; a given `after` must be an earlier call's."""
        ...

    def put(self, order: jax.Array | None) -> None:
        """Keeps the order buffer that a call gave."""
        ...


class Unordered:
    """For collectives that JAX itself keeps in order, by an effect."""

    def take(self, after: jax.Array | None = None) -> None:
        return None

    def put(self, order: jax.Array | None) -> None:
        return None
