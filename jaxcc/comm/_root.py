"""What one rank holds: for all of them, or with zeros on the others.

Both are primitives with a layout rule: on a group of one, which is traced for the checker, there is
no other rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from jaxcc import program
from jaxcc.comm._call import Group, checks_varying, varying
from jaxcc.comm._combinators_primitive import primitive

# JAX has types for some of its functions only.
_lax: Any = lax


def from_root(x: jax.Array, root: int, group: Group) -> jax.Array:
    """The root's `x` on every rank, bit for bit."""
    return _bound(_from_root, x, root, group)


def on_root(x: jax.Array, root: int, group: Group) -> jax.Array:
    """`x` on the root and zeros on the other ranks."""
    return _bound(_on_root, x, root, group)


def _bound(made: Any, x: jax.Array, root: int, group: Group) -> jax.Array:
    if not group.axes:
        return x
    if checks_varying(group.axes):
        x = varying(x, group.axes)
    return made.bind(x, axis_name=group.axes, root=root)[0]


def _send(x: jax.Array, *, axis_name: tuple[str, ...], root: int) -> Sequence[Any]:
    return [program.from_root(x, axis_name, root)]


def _keep(x: jax.Array, *, axis_name: tuple[str, ...], root: int) -> Sequence[Any]:
    return [program.on_root(x, axis_name, root)]


def _sent_back(
    cotangents: Sequence[Any], x: Any, *, axis_name: tuple[str, ...], root: int
) -> Sequence[Any]:
    (cotangent,) = cotangents
    # With check_vma=True a replicated value's cotangent is itself replicated and complete.
    if checks_varying(axis_name):
        cotangent = varying(cotangent, axis_name)
    else:
        cotangent = _lax.psum(cotangent, axis_name)
    return _on_root.bind(cotangent, axis_name=axis_name, root=root)


def _kept_back(
    cotangents: Sequence[Any], x: Any, *, axis_name: tuple[str, ...], root: int
) -> Sequence[Any]:
    return _on_root.bind(cotangents[0], axis_name=axis_name, root=root)


_from_root = primitive("broadcast", _send, transpose=_sent_back)
_on_root = primitive("on_root", _keep, transpose=_kept_back)
