"""What a backend is."""

from __future__ import annotations

from typing import Protocol

import jax

from jaxcc.comm._call import Call
from jaxcc.layout import BackendError


class Backend(Protocol):
    """One library, or one of our own kernels, that can carry collectives."""

    @property
    def name(self) -> str:
        """What users and tuning tables call it."""
        ...

    def refuses(self, call: Call) -> BackendError | None:
        """Why it cannot carry `call` here, or None; the same on all ranks of the group."""
        ...

    def all_reduce(self, x: jax.Array, call: Call) -> jax.Array:
        """`op` over the ranks' `x`, the same on every rank, for a call that it does not refuse."""
        ...
