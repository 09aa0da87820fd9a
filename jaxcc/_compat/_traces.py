"""What is being traced, and for which mesh."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax._src import core as _core
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map

_NOWHERE = jax.sharding.AbstractMesh((), ())


def current_mesh() -> Any:
    """The mesh of `jax.set_mesh`, empty if none is set. JAX's `get_mesh` refuses in a trace."""
    return _mesh.get_concrete_mesh()


@contextlib.contextmanager
def abstract_mesh(mesh: Any) -> Iterator[None]:
    """Sets the mesh of what is traced. JAX refuses one of another size than the one around, so that
    goes first.
    """
    with jax.sharding.use_abstract_mesh(_NOWHERE), jax.sharding.use_abstract_mesh(mesh):
        yield


class _MeshOfTrace(jax.sharding.AbstractMesh):
    """What a shard_map keeps of being traced for `mesh`, in the place of the mesh it was `given`:
    JAX keeps the first one that it is used with.
    """

    mesh: Any
    given: Any

    def __new__(cls, mesh: Any, given: Any) -> _MeshOfTrace:
        self = object.__new__(cls)
        for name in ("axis_sizes", "axis_names", "axis_types", "abstract_device", "size"):
            object.__setattr__(self, name, getattr(mesh, name))
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "given", given)
        return self


_for_mesh: ContextVar[bool] = ContextVar("jaxcc_for_mesh", default=False)


@functools.cache
def _let_shard_maps_follow() -> None:
    """Lets shard_maps that are traced by `traced_for` take its mesh."""
    checks, bind = _shard_map._shmap_checks, _shard_map.shard_map_p.bind

    def checked(mesh: Any, *rest: Any) -> Any:
        given = mesh.given if isinstance(mesh, _MeshOfTrace) else mesh
        context = jax.sharding.get_abstract_mesh()
        if not _for_mesh.get() or (given is not None and given.axis_names != context.axis_names):
            return checks(given, *rest)
        mesh, *others = checks(None, *rest)
        return _MeshOfTrace(mesh, given), *others

    def bound(*operands: Any, mesh: Any, **params: Any) -> Any:
        mesh = mesh.mesh if isinstance(mesh, _MeshOfTrace) else mesh
        return bind(*operands, mesh=mesh, **params)

    _shard_map._shmap_checks = checked
    _shard_map.shard_map_p.bind = bound  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def traced_for(mesh: Any) -> Iterator[None]:
    """What is traced inside is for `mesh`, an AbstractMesh: a shard_map there takes it, whatever
    mesh of these axes it was given or used with before.
    """
    _let_shard_maps_follow()
    token = _for_mesh.set(True)
    try:
        with outside_all_traces(), jax.sharding.use_abstract_mesh(mesh):
            yield
    finally:
        _for_mesh.reset(token)


@contextlib.contextmanager
def outside_all_traces() -> Iterator[None]:
    """Traces inside as if nothing were being traced around: no axes bound, no mesh set."""
    axis_env = _core.trace_ctx.axis_env
    with _core.eval_context(), abstract_mesh(_NOWHERE):
        _core.trace_ctx.set_axis_env(_core.top_axis_env)
        try:
            yield
        finally:
            _core.trace_ctx.set_axis_env(axis_env)
