"""A jaxpr as a graph of values: inner jaxprs inlined, identities removed, constants in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxcc import _compat
from jaxcc.layout import CodegenError


@dataclass(frozen=True, eq=False)
class Input:
    """The graph's input number `index`."""

    index: int
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True, eq=False)
class Constant:
    """A number that is known."""

    value: Any
    dtype: Any
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Node:
    """Result `output` of an equation; `line` is the user's, its own or that of a call around it."""

    eqn: Any
    line: _compat.SourceLine | None
    args: tuple[Value, ...]
    shape: tuple[int, ...]
    dtype: Any
    output: int = 0


Value = Input | Constant | Node


@dataclass(frozen=True)
class Graph:
    """`nodes` in an order in which each comes after its arguments."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Value, ...]


def graph_of(jaxpr: Any, consts: Sequence[Any] | Mapping[Any, Any]) -> Graph:
    """The graph of a jaxpr; `consts` are its constvars' values, in order or by variable."""
    given = consts if isinstance(consts, Mapping) else zip(jaxpr.constvars, consts, strict=True)
    env: dict[Any, Value] = {var: _constant(value) for var, value in dict(given).items()}
    inputs = tuple(Input(i, v.aval.shape, v.aval.dtype) for i, v in enumerate(jaxpr.invars))
    env |= dict(zip(jaxpr.invars, inputs, strict=True))
    nodes: list[Node] = []
    _walk(jaxpr.eqns, None, env, nodes)
    return Graph(inputs, tuple(nodes), tuple(_read(env, v) for v in jaxpr.outvars))


def _walk(
    eqns: Sequence[Any],
    caller: _compat.SourceLine | None,
    env: dict[Any, Value],
    nodes: list[Node],
) -> None:
    for eqn in eqns:
        name = _compat.op_name(eqn)
        line = _compat.source_line(eqn) or caller
        args = tuple(_read(env, v) for v in eqn.invars)
        if name in _compat.IDENTITIES:
            results: Sequence[Value] = args
        elif (call := _compat.called(eqn)) is not None:
            inner, given = call
            results = _call(inner, line, [args[n] for n in given], nodes)
        else:
            results = [
                Node(eqn, line, args, v.aval.shape, v.aval.dtype, n)
                for n, v in enumerate(eqn.outvars)
            ]
            nodes += results
        env |= dict(zip(eqn.outvars, results, strict=True))


def _call(
    closed: Any, line: _compat.SourceLine | None, args: Sequence[Value], nodes: list[Node]
) -> Sequence[Value]:
    inner = _compat.open_jaxpr(closed)
    env: dict[Any, Value] = dict(zip(inner.invars, args, strict=True))
    consts = zip(inner.constvars, _compat.jaxpr_consts(closed), strict=True)
    env |= {var: _constant(value) for var, value in consts}
    _walk(inner.eqns, line, env, nodes)
    return [_read(env, v) for v in inner.outvars]


def _read(env: Mapping[Any, Value], var: Any) -> Value:
    if isinstance(var, _compat.Literal):
        aval: Any = var.aval
        return Constant(var.val, aval.dtype)
    return env[var]


def _constant(value: Any) -> Constant:
    if np.size(value) != 1:
        raise CodegenError(
            "CODEGEN_CONST",
            f"the function closes over an array of shape {np.shape(value)}",
            because="a kernel's text holds numbers, not arrays",
            fixes=("pass the array as an argument",),
        )
    return Constant(np.reshape(value, ()), np.asarray(value).dtype, np.shape(value))
