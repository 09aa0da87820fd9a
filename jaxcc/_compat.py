"""Every use of `jax.extend` and `jax._src`, and every difference between supported JAX versions.

JAX promises nothing about `jax.extend` or its private modules, and primitives change their names
between releases; all other modules see only what is defined here.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax._src import core as _jax_core
from jax._src import mesh as _jax_mesh
from jax._src import source_info_util as _source_info
from jax.extend import core as _core
from jax.extend.random import threefry2x32_p as _threefry2x32_p

from jaxcc._coordination import HEARTBEAT_S

try:
    from jax._src.random import prng as _prng
except ImportError:
    from jax._src import prng as _prng  # pyright: ignore[reportAttributeAccessIssue]

JAX_VERSION: tuple[int, ...] = tuple(int(p) for p in jax.__version__.split(".")[:3])

Literal = _core.Literal
Var = _core.Var
Jaxpr = _core.Jaxpr
JaxprEqn = _core.JaxprEqn
Primitive = _core.Primitive

_NOWHERE = jax.sharding.AbstractMesh((), ())

# One name for each operation, whatever the JAX version calls it.
_ALIASES: Mapping[str, str] = {
    "pjit": "jit",
    "psum_invariant": "psum",
    "all_gather_invariant": "all_gather",
    "call": "eval_jaxpr",
    "closed_call": "eval_jaxpr",
    "core_call": "eval_jaxpr",
    "checkpoint": "remat",
    "remat2": "remat",
}


_TRACING_ROOMS = (
    *("layout", "program", "schedule", "codegen", "runtime", "comm", "optim", "nnx", "linen"),
    "random",
)


def op_name(eqn: Any) -> str:
    """The name of an equation's primitive, the same in every supported JAX version."""
    name: str = eqn.primitive.name
    return _ALIASES.get(name, name)


def open_jaxpr(jaxpr: Any) -> Any:
    """The jaxpr itself, whether or not this JAX version wraps it in a ClosedJaxpr."""
    return getattr(jaxpr, "jaxpr", jaxpr)


def jaxpr_consts(jaxpr: Any) -> list[Any]:
    """The values of the jaxpr's constvars."""
    return list(getattr(jaxpr, "consts", ()))


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs in an equation's parameters."""
    yield from _core.jaxprs_in_params(eqn.params)


def all_eqns(eqns: Iterable[Any]) -> Iterator[Any]:
    """The equations and, after each, those inside it."""
    for eqn in eqns:
        yield eqn
        for jaxpr in inner_jaxprs(eqn):
            yield from all_eqns(open_jaxpr(jaxpr).eqns)


IDENTITIES = frozenset(
    {"copy", "copy_p", "name", "optimization_barrier", "pcast", "pvary", "stop_gradient"}
)
"""Primitives that hand on their operands as they are, one by one."""

CALLS = frozenset({"jit", "eval_jaxpr", "remat", "custom_jvp_call", "custom_vjp_call"})
"""Each of these runs its one inner jaxpr on its operands and returns what that returns."""

CALLING = CALLS | {"custom_lin", "custom_linear_solve", "call_hi_primitive"}
"""Each of these does nothing but run a jaxpr, on some of its operands; see `called`."""


def called(eqn: Any) -> tuple[Any, list[int]] | None:
    """The jaxpr that an equation does nothing but run, with the numbers of the operands that it
    gets; None for other equations.
    """
    op = op_name(eqn)
    if op not in CALLING:
        return None
    every = list(range(len(eqn.invars)))
    if op == "custom_linear_solve":
        lengths = eqn.params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        given = every[first : first + lengths.solve] + every[sum(lengths) :]
        return eqn.params["jaxprs"].solve, given
    if op == "call_hi_primitive":
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
        with outside_all_traces(), at_line_of(eqn):
            return jax.make_jaxpr(eqn.params["_prim"].expand)(*avals), every
    inner = next(inner_jaxprs(eqn), None)
    return None if inner is None else (inner, every)


def scan_counts(eqn: Any) -> tuple[int, int, int]:
    """How many operands of a `scan` are constants, carried, and walked through."""
    constants, carried, walked = eqn.params["ft_in"].unpack()
    return len(constants), len(carried), len(walked)


def counts_bits(key_type: Any) -> bool:
    """Whether each random number made with a key of this dtype depends on the key and the number's
    place in the array alone.
    """
    return str(key_type) == "key<fry>" and bool(jax.config.jax_threefry_partitionable)


def counters(shape: tuple[int, ...]) -> tuple[Any, Any]:
    """The flat index of each element of an array, as its upper and lower 32 bits."""
    upper, lower = _prng.iota_2x32_shape(shape)
    return upper, lower


def counted_bits(words: tuple[Any, Any], counters: tuple[Any, Any], bit_width: int) -> Any:
    """The bits that `jax.random.bits` makes at the places `counters` with the key of these words,
    which `counts_bits`.
    """
    keys = [lax.broadcast(word, counters[0].shape) for word in words]
    first, second = _threefry2x32_p.bind(*unify_varying([*keys, *counters]))
    if bit_width != 64:
        return (first ^ second).astype(f"uint{bit_width}")
    return first.astype("uint64") << np.uint64(32) | second.astype("uint64")


def axis_names(eqn: Any) -> tuple[str, ...]:
    """The mesh axes that a collective equation runs over."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return (axes,) if isinstance(axes, str) else tuple(axes)


@dataclass(frozen=True)
class SourceLine:
    """Where a user wrote something: file, line (from 1), columns (from 0) and function name.

    `within` is where it is in a library that the line calls, such as `optax/_src/base.py:7`.
    """

    file: str
    line: int
    column: int
    end_column: int | None
    function: str
    within: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def source_line(eqn: Any) -> SourceLine | None:
    """The user's line that made this equation, or None if JAX made it by itself.

    What a library made is the user's where that called it.
    """
    traceback = eqn.source_info.traceback
    inner = frame = _source_info.user_frame(traceback)
    if inner is None or frame is None:
        return None
    library = _library(inner.file_name)
    if library is not None:
        frames = _source_info.user_frames(traceback)
        frame = next((f for f in frames if _library(f.file_name) is None), inner)
    within = f"{library}:{inner.start_line}" if frame is not inner else ""
    same_line = frame.end_line == frame.start_line
    return SourceLine(
        frame.file_name,
        frame.start_line,
        frame.start_column,
        frame.end_column if same_line else None,
        frame.function_name,
        within,
    )


def is_transposed(eqn: Any) -> bool:
    """Whether reverse-mode differentiation made this equation in its backward pass."""
    return "transpose(" in str(eqn.source_info.name_stack)


@functools.cache
def _library(file: str) -> str | None:
    """A file's path within the folder that packages are installed in; None for a user's file."""
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :]
    return None


def literal_value(literal: Any) -> Any:
    """The number of a Literal, without the mesh of the trace that it comes from."""
    dtype = literal.aval.dtype
    return np.asarray(literal.val, dtype) if isinstance(dtype, np.dtype) else literal.val


def bind(eqn: Any, *values: Any) -> list[Any]:
    """Runs or traces one equation on `values`, keeping the user's line on what it makes."""
    # The equation may have been traced over an AbstractMesh; it now runs where we are.
    mesh = jax.sharding.get_abstract_mesh()
    with at_line_of(eqn), eqn.ctx.manager, _abstract_mesh(mesh):
        # 0.11 replaced get_bind_params's list of functions by keyword parameters.
        params = eqn.primitive.get_bind_params(eqn.params)
        if isinstance(params, tuple):
            functions, params = params
            out = eqn.primitive.bind(*functions, *values, **params)
        else:
            out = eqn.primitive.bind(*values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


def _hide_from_user_lines() -> None:
    """Makes JAX attribute what jaxcc traces to the line that called it."""
    from jax.extend import source_info_util

    here = os.path.dirname(os.path.abspath(__file__))
    for room in _TRACING_ROOMS:
        source_info_util.register_exclusion(os.path.join(here, room) + os.sep)


# Before the first trace: every room that traces imports this module.
_hide_from_user_lines()


def type_of(x: Any) -> tuple[tuple[int, ...], Any]:
    """The shape and dtype that `x` has, or will have as a JAX array."""
    if not isinstance(x, jax.Array):
        return np.shape(x), jax.dtypes.canonicalize_dtype(jax.numpy.result_type(x))
    return x.shape, x.dtype


def is_tracer(x: Any) -> bool:
    """Whether `x` stands for a value in a trace."""
    return isinstance(x, _jax_core.Tracer)


def varying_axes(x: Any) -> frozenset[str]:
    """The mesh axes over which JAX takes a value or a type `x` to differ between ranks."""
    aval = x if isinstance(x, _jax_core.ShapedArray) else jax.typeof(x)
    return frozenset(aval.manual_axis_type.varying)


def unify_varying(values: list[Any], axes: tuple[str, ...] = ()) -> list[Any]:
    """The values cast so that JAX takes all of them to vary over the same axes, `axes` included.

    JAX's own functions do this; binding a primitive by hand does not.
    """
    wanted = frozenset(axes).union(*(varying_axes(x) for x in values))
    return [_vary_over(x, wanted) for x in values]


def as_varying_as(values: list[Any], types: list[Any]) -> list[Any]:
    """The values cast so that each varies at least over the axes that its type does."""
    return [_vary_over(x, varying_axes(t)) for x, t in zip(values, types, strict=True)]


def _vary_over(x: Any, axes: frozenset[str]) -> Any:
    missing = tuple(sorted(axes - varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def traced_primitive(name: str, abstract_eval: Callable[..., Any]) -> Any:
    """A primitive that can be traced but has no implementation."""
    primitive = Primitive(name)
    primitive.def_abstract_eval(abstract_eval)
    return primitive


def with_operation(
    eqn: Any, name: str, params: dict[str, Any], given: list[Any], made: list[Any]
) -> Any:
    """An equation at the place of `eqn` for an operation that is never bound, and has no effect."""
    return eqn.replace(
        primitive=Primitive(name), params=params, invars=given, outvars=made, effects=frozenset()
    )


def identity_primitive(name: str, batched: Callable[[dict[str, Any], int], dict[str, Any]]) -> Any:
    """A primitive that returns its operand, and whose tangent and cotangent pass through.

    `batched` gives its parameters for an operand that `vmap` has added a dimension to.
    """
    from jax.interpreters import ad, batching, mlir

    primitive = traced_primitive(name, lambda x, **_: x)
    primitive.def_impl(lambda x, **_: x)
    mlir.register_lowering(primitive, lambda _, x, **__: [x])
    ad.primitive_jvps[primitive] = lambda primals, tangents, **params: (
        primitive.bind(*primals, **params),
        tangents[0],
    )
    batching.primitive_batchers[primitive] = lambda args, dims, **params: (
        primitive.bind(*args, **batched(params, dims[0])),
        dims[0],
    )
    return primitive


@contextlib.contextmanager
def at_line_of(eqn: Any) -> Iterator[None]:
    """Gives what is traced inside the user's line of `eqn`."""
    if eqn is None:
        yield
        return
    with _source_info.user_context(eqn.source_info.traceback):
        yield


def allow_on_many_devices(effect: type) -> None:
    """Lets an ordered effect be part of a program that runs on several devices, each with one
    token.
    """
    from jax._src import effects

    effects.shardable_ordered_effects.add_type(effect)


def varying_type(t: jax.ShapeDtypeStruct, axes: tuple[str, ...]) -> jax.ShapeDtypeStruct:
    """The type with JAX told that it differs between the ranks of `axes`; inside `shard_map`."""
    if not axes:
        return t
    # Only a value's own type carries all that JAX wants; the zero is never computed.
    zero = lax.pcast(jax.numpy.zeros(t.shape, t.dtype), axes, to="varying")
    return jax.ShapeDtypeStruct.like(zero)


def backend_started() -> bool:
    """Whether JAX has looked for devices; it does so only once."""
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def join(coordinator: str, ranks: int, rank: int, *, devices: int, timeout_s: float) -> None:
    """Makes this process one of several, before JAX starts, each with as many devices.

    `jax.distributed.initialize` does so, too, but has rank 0 run the coordination service, which
    then dies with rank 0.
    """
    from jax._src.distributed import global_state
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    jax.config.update("jax_num_cpu_devices", devices)
    own_gpus = ",".join(str(rank * devices + k) for k in range(devices))
    jax.config.update("jax_cuda_visible_devices", own_gpus)
    client = _jax.get_distributed_runtime_client(
        coordinator,
        rank,
        init_timeout=math.ceil(timeout_s),
        use_compression=True,
        heartbeat_timeout=HEARTBEAT_S,
    )
    client.connect()
    global_state.coordinator_address = coordinator
    global_state.num_processes, global_state.process_id = ranks, rank
    global_state.client = client

    # A program that calls it for other launchers runs as it is; JAX refuses a second call.
    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if num_processes not in (None, ranks) or process_id not in (None, rank):
            raise ValueError(
                f"jax.distributed.initialize is told of rank {process_id} of {num_processes}, "
                f"but this is rank {rank} of {ranks}"
            )

    jax.distributed.initialize = initialize


def start_on_cpu(count: int) -> bool:
    """Makes an imported JAX start on CPU; False if it has started without `count` devices."""
    if backend_started():
        return jax.default_backend() == "cpu" and jax.device_count() == count
    jax.config.update("jax_platforms", "cpu")
    return True


class KeyValueStore(Protocol):
    """What the processes of `jax.distributed` tell each other through."""

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None: ...
    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str: ...


def key_value_store() -> KeyValueStore | None:
    """The store of `jax.distributed`; None before it is initialized."""
    from jax._src import distributed

    return distributed.global_state.client  # pyright: ignore[reportReturnType]


def trace_state() -> object:
    """What is being traced now: equal to another result if that came from the same trace."""
    from jax._src import core

    return core.get_opaque_trace_state()


def current_mesh() -> Any:
    """The mesh of `jax.set_mesh`, empty if none is set. JAX's `get_mesh` refuses in a trace."""
    return _jax_mesh.get_concrete_mesh()


@contextlib.contextmanager
def _abstract_mesh(mesh: Any) -> Iterator[None]:
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
    from jax._src import shard_map

    checks, bind = shard_map._shmap_checks, shard_map.shard_map_p.bind

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

    shard_map._shmap_checks = checked
    shard_map.shard_map_p.bind = bound  # pyright: ignore[reportAttributeAccessIssue]


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
    axis_env = _jax_core.trace_ctx.axis_env
    with _jax_core.eval_context(), _abstract_mesh(_NOWHERE):
        _jax_core.trace_ctx.set_axis_env(_jax_core.top_axis_env)
        try:
            yield
        finally:
            _jax_core.trace_ctx.set_axis_env(axis_env)
