"""Reading, running and making equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax._src import effects as _effects
from jax.extend import core as _core

from jaxcc._compat._lines import at_line_of
from jaxcc._compat._traces import abstract_mesh, outside_all_traces

Literal = _core.Literal


Var = _core.Var


Jaxpr = _core.Jaxpr


JaxprEqn = _core.JaxprEqn


Primitive = _core.Primitive


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


def axis_names(eqn: Any) -> tuple[str, ...]:
    """The mesh axes that a collective equation runs over."""
    axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
    return tuple(axes) if isinstance(axes, tuple | list | frozenset) else (axes,)


def literal_value(literal: Any) -> Any:
    """The number of a Literal, without the mesh of the trace that it comes from."""
    dtype = literal.aval.dtype
    return np.asarray(literal.val, dtype) if isinstance(dtype, np.dtype) else literal.val


def bind(eqn: Any, *values: Any) -> list[Any]:
    """Runs or traces one equation on `values`, keeping the user's line on what it makes."""
    # The equation may have been traced over an AbstractMesh; it now runs where we are.
    mesh = jax.sharding.get_abstract_mesh()
    with at_line_of(eqn), eqn.ctx.manager, abstract_mesh(mesh):
        # 0.11 replaced get_bind_params's list of functions by keyword parameters.
        params = eqn.primitive.get_bind_params(eqn.params)
        if isinstance(params, tuple):
            functions, params = params
            out = eqn.primitive.bind(*functions, *values, **params)
        else:
            out = eqn.primitive.bind(*values, **params)
    return list(out) if eqn.primitive.multiple_results else [out]


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


def allow_on_many_devices(effect: type) -> None:
    """Lets an ordered effect be part of a program that runs on several devices, each with one
    token.
    """
    _effects.shardable_ordered_effects.add_type(effect)
