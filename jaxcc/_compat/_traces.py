"""What is being traced, and for which mesh."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import jax
from jax import lax
from jax._src import core as _core
from jax._src import mesh as _mesh
from jax._src import shard_map as _shard_map
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching

_NOWHERE = jax.sharding.AbstractMesh((), ())


def trace_state() -> object:
    """What is being traced now: equal to another result if that came from the same trace, or from
    a part of it under `vmap` or a derivative, whose operations are that trace's.
    """
    with _outside_transforms():
        return _core.get_opaque_trace_state()


def outside_transforms(x: jax.Array) -> jax.Array:
    """`x`, a value that no derivative is taken of, in the trace that `trace_state` tells; of one
    that `vmap` has several of, the first.
    """
    with _outside_transforms():
        while isinstance(x, _batching.BatchTracer | _ad.JVPTracer | _ad.LinearizeTracer):
            if not isinstance(x, _batching.BatchTracer):
                x = x.primal
            elif x.batch_dim is None:
                x = x.val
            else:
                x = lax.index_in_dim(x.val, 0, x.batch_dim, keepdims=False)
    return x


@contextlib.contextmanager
def _outside_transforms() -> Iterator[None]:
    trace: Any = _core.trace_ctx.trace
    while isinstance(trace, _batching.BatchTrace | _ad.JVPTrace | _ad.LinearizeTrace):
        trace = trace.parent_trace
    with _core.set_current_trace(trace):
        yield


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
