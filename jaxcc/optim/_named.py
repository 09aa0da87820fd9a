"""optax's optimizers, fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax

from jaxcc.optim._fuse import fuse
from jaxcc.optim._state import AnyMesh
from jaxcc.optim._transformation import FusedTransformation

Rate = float | Callable[[Any], Any]


def sgd(
    learning_rate: Rate,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
    *,
    axis_name: str,
    mesh: AnyMesh | None = None,
    master: Any = None,
) -> FusedTransformation:
    """`optax.sgd`, fused; see `fuse` for the last three arguments."""
    tx = optax.sgd(learning_rate, momentum, nesterov, accumulator_dtype)
    return fuse(tx, axis_name=axis_name, mesh=mesh, master=master)


def adam(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
    axis_name: str,
    mesh: AnyMesh | None = None,
    master: Any = None,
) -> FusedTransformation:
    """`optax.adam`, fused; see `fuse` for the last three arguments."""
    tx = optax.adam(learning_rate, b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    return fuse(tx, axis_name=axis_name, mesh=mesh, master=master)


def adamw(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
    axis_name: str,
    mesh: AnyMesh | None = None,
    master: Any = None,
) -> FusedTransformation:
    """`optax.adamw`, fused; see `fuse` for the last three arguments."""
    tx = optax.adamw(
        learning_rate, b1, b2, eps, eps_root, mu_dtype, weight_decay, mask, nesterov=nesterov
    )
    return fuse(tx, axis_name=axis_name, mesh=mesh, master=master)


def lamb(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    eps_root: float = 0.0,
    weight_decay: float = 0.0,
    mask: Any = None,
    *,
    axis_name: str,
    mesh: AnyMesh | None = None,
    master: Any = None,
) -> FusedTransformation:
    """`optax.lamb`, fused: two kernels, with the norms of every parameter and its update between
    them; see `fuse` for the last three arguments.
    """
    tx = optax.lamb(learning_rate, b1, b2, eps, eps_root, weight_decay, mask)
    return fuse(tx, axis_name=axis_name, mesh=mesh, master=master)
