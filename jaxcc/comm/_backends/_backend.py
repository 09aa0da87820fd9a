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

    @property
    def between(self) -> str:
        """What happens between start and done."""
        ...

    def refuses(self, call: Call) -> BackendError | None:
        """Why it cannot carry `call` here, or None; the same on all ranks of the group."""
        ...

    def run(self, x: jax.Array, call: Call) -> jax.Array:
        """The result of a call that it does not refuse."""
        ...


class Bare(Protocol):
    """A library without JAX's transformations, for `run_like_lax`."""

    def refuses(self, call: Call) -> BackendError | None:
        """As that of a Backend."""
        ...

    def bare(self, x: jax.Array, call: Call) -> jax.Array:
        """The call of `x`."""
        ...
