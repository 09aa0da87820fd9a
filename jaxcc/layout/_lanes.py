"""Collectives between the lanes of nested `jax.vmap`s, one per mesh axis.

JAX's own rules for `vmap` lack several axes at once, groups, and permutations that drop a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxcc import _compat
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._nested import ENTER, LEAVE, spec_of

# JAX has types for some of its parameters only.
_lax: Any = lax
_jnp: Any = jax.numpy


class _Group:
    """The lanes that take part in one equation with this one."""

    def __init__(self, eqn: Any) -> None:
        self.axes = _compat.axis_names(eqn)
        ranks = _lax.axis_size(self.axes)
        groups = eqn.params.get("axis_index_groups")
        self.members = np.asarray(groups if groups is not None else [range(ranks)])
        self.rank = _lax.axis_index(self.axes)
        # Of each rank: its group, and its place in it.
        where = {int(r): at for at, r in np.ndenumerate(self.members)}
        self.group, self.place = np.asarray([where[r] for r in range(ranks)]).T

    @property
    def size(self) -> int:
        """Lanes in a group."""
        return self.members.shape[1]

    @property
    def own_place(self) -> Any:
        """This lane's number in its group."""
        return _jnp.asarray(self.place)[self.rank]

    def all(self, x: Any) -> Any:
        """What every rank of the axes has, along a new first dimension."""
        for axis in reversed(self.axes):
            x = _lax.all_gather(x, axis)
        return x.reshape(-1, *x.shape[len(self.axes) :])

    def ours(self, x: Any) -> Any:
        """What the lanes of this group have."""
        return self.all(x)[_jnp.asarray(self.members)[_jnp.asarray(self.group)[self.rank]]]


def _reduced(native: Any, over: str) -> Callable[[Any, Any], Any]:
    def reduce(eqn: Any, x: Any) -> Any:
        if eqn.params.get("axis_index_groups") is None:
            return native(x, _compat.axis_names(eqn))
        return getattr(_Group(eqn).ours(x), over)(axis=0).astype(x.dtype)

    return reduce


def _all_gather(eqn: Any, x: Any) -> Any:
    dim, tiled = eqn.params["all_gather_dimension"], eqn.params["tiled"]
    return _side_by_side(_Group(eqn).ours(x), dim, tiled)


def _side_by_side(parts: Any, dim: int, tiled: bool) -> Any:
    """`parts[0], parts[1], ...` along a new dimension, or joined along the one there is."""
    x = _jnp.moveaxis(parts, 0, dim)
    return x.reshape(*x.shape[:dim], -1, *x.shape[dim + 2 :]) if tiled else x


def _blocks(x: Any, dim: int, tiled: bool, size: int) -> Any:
    """The blocks of `x` that the ranks of a group get, along a new first dimension."""
    if tiled:
        x = x.reshape(*x.shape[:dim], size, x.shape[dim] // size, *x.shape[dim + 1 :])
    return _jnp.moveaxis(x, dim, 0)


def _reduce_scatter(eqn: Any, x: Any) -> Any:
    group = _Group(eqn)
    total = _psum(eqn, x)
    blocks = _blocks(total, eqn.params["scatter_dimension"], eqn.params["tiled"], group.size)
    return blocks[group.own_place]


def _all_to_all(eqn: Any, x: Any) -> Any:
    params, group = eqn.params, _Group(eqn)
    # JAX adds and drops the dimensions of an untiled one in operations of their own.
    blocks = _blocks(x, params["split_axis"], True, group.size)
    received = _jnp.take(group.ours(blocks), group.own_place, axis=1)
    return _side_by_side(received, params["concat_axis"], True)


def _ppermute(eqn: Any, x: Any) -> Any:
    group = _Group(eqn)
    source = np.full(group.members.size, -1)
    if any(rank >= source.size for pair in eqn.params["perm"] for rank in pair):
        axes = ", ".join(group.axes)
        raise LayoutError(
            "LAYOUT_TRACE",
            f"ppermute names ranks that a group of {source.size} along {axes} does not have",
            line=_compat.source_line(eqn),
            because="the program is run for smaller groups than the mesh's, too",
            fixes=(f"take the ranks from jax.lax.axis_size('{axes}'), not from a constant",),
        )
    for sender, receiver in eqn.params["perm"]:
        source[receiver] = sender
    own = _jnp.asarray(source)[group.rank]
    # A rank that nobody sends to gets zeros.
    return _jnp.where(own >= 0, group.all(x)[own], _jnp.zeros_like(x))


def _pbroadcast(eqn: Any, x: Any) -> Any:
    return _Group(eqn).ours(x)[eqn.params["source"]]


def _enter(eqn: Any, x: Any) -> Any:
    for dim, axes in spec_of(eqn.params):
        blocks = _blocks(x, dim, True, _lax.axis_size(axes))
        x = blocks[_lax.axis_index(axes)]
    return x


def _leave(eqn: Any, x: Any) -> Any:
    for dim, axes in spec_of(eqn.params):
        for axis in reversed(axes):
            x = _side_by_side(_lax.all_gather(x, axis), dim, True)
    return x


_psum = _reduced(_lax.psum, "sum")

COLLECTIVES: Mapping[str, Callable[[Any, Any], Any]] = {
    "psum": _psum,
    "pmax": _reduced(_lax.pmax, "max"),
    "pmin": _reduced(_lax.pmin, "min"),
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "ppermute": _ppermute,
    "pbroadcast": _pbroadcast,
    ENTER: _enter,
    LEAVE: _leave,
}
"""By the name of the primitive, what one lane computes for one operand of an equation."""
