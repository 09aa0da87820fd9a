"""Builds a `Program` from a trace: inner jaxprs inlined, labels of `jaxcc.name` given to
operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh

from jaxcc import _compat
from jaxcc.layout import LayoutMap, Trace
from jaxcc.program._ir import Constant, Op, Operand, Program, rename

_INLINED = _compat.CALLS | {"call_hi_primitive"}
_ALL_REDUCES: Mapping[str, str] = {"psum": "sum", "pmax": "max", "pmin": "min"}


def program_of(
    trace: Trace,
    mesh: AbstractMesh,
    *,
    name: str,
    in_names: Sequence[str],
    in_layouts: Sequence[LayoutMap],
    out_layouts: Sequence[LayoutMap],
) -> Program:
    """The trace, made over `mesh`, as a program; `out_layouts` has one layout per leaf of the
    result.
    """
    builder = _Builder(in_names)
    values: dict[Any, Operand] = dict(zip(trace.invars, in_names, strict=True))
    values.update((var, Constant(value)) for var, value in trace.consts.items())
    builder.add(trace.eqns, values)
    results = [builder.operand(atom, values) for atom in trace.outvars]
    outputs = tuple(builder.labels.get(x, x) if isinstance(x, str) else x for x in results)
    program = Program(
        name=name,
        mesh=mesh,
        inputs=tuple(in_names),
        in_types=tuple(_type(var) for var in trace.invars),
        in_layouts=tuple(in_layouts),
        ops=tuple(builder.labelled()),
        outputs=outputs,
        out_layouts=tuple(out_layouts),
        out_tree=trace.out_tree,
        results=tuple(range(len(outputs))),
    )
    return program.with_ops(program.ops)


def _type(atom: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _converted(given: Operand, eqn: Any) -> Constant | None:
    """The float that a known number is converted to: what divides by it may know it, too."""
    (out,) = eqn.outvars
    if not isinstance(given, Constant) or not jnp.issubdtype(out.aval.dtype, jnp.floating):
        return None
    return Constant(np.asarray(given.value).astype(out.aval.dtype)) if not out.aval.shape else None


class _Builder:
    def __init__(self, taken: Iterable[str]) -> None:
        self.ops: list[Op] = []
        self.taken = set(taken)
        self.labels: dict[str, str] = {}

    def operand(self, atom: Any, values: Mapping[Any, Operand]) -> Operand:
        if isinstance(atom, _compat.Literal):
            return Constant(_compat.literal_value(atom))
        return values[atom]

    def fresh(self, stem: str) -> str:
        name, count = stem, 0
        while name in self.taken:
            count += 1
            name = f"{stem}_{count}"
        self.taken.add(name)
        return name

    def add(self, eqns: Iterable[Any], values: dict[Any, Operand]) -> None:
        """Appends operations for `eqns`; `values` says what each variable is and grows."""
        for eqn in eqns:
            kind = _compat.op_name(eqn)
            inputs = tuple(self.operand(atom, values) for atom in eqn.invars)
            if kind == "name":
                values[eqn.outvars[0]] = self.label(inputs[0], eqn)
            elif kind == "pvary":
                # A type cast for JAX's own checker; running the program puts it back where it is
                # needed.
                values[eqn.outvars[0]] = inputs[0]
            elif kind == "convert_element_type" and (number := _converted(inputs[0], eqn)):
                values[eqn.outvars[0]] = number
            elif kind in _INLINED:
                values.update(zip(eqn.outvars, self.inline(eqn, inputs), strict=True))
            elif kind in _ALL_REDUCES and eqn.params.get("axis_index_groups") is None:
                for var, given in zip(eqn.outvars, inputs, strict=True):
                    params = {"axes": _compat.axis_names(eqn), "op": _ALL_REDUCES[kind]}
                    values[var] = self.append(kind, "all_reduce", (given,), [var], eqn, params)[0]
            elif kind == "jaxcc_own_slice":
                params = {"axes": (eqn.params["axis"],), "dim": eqn.params["dim"]}
                outs = self.append("slice", "own_slice", inputs, eqn.outvars, eqn, params)
                values.update(zip(eqn.outvars, outs, strict=True))
            else:
                ours = _tiled_collective(kind, eqn)
                outs = self.append(kind, kind, inputs, eqn.outvars, eqn, ours)
                values.update(zip(eqn.outvars, outs, strict=True))

    def append(
        self,
        stem: str,
        kind: str,
        inputs: tuple[Operand, ...],
        outvars: Sequence[Any],
        eqn: Any,
        params: Mapping[str, Any] | None,
    ) -> tuple[str, ...]:
        name = self.fresh(stem)
        single = len(outvars) == 1
        outputs = (
            (name,) if single else tuple(self.fresh(f"{name}.{i}") for i in range(len(outvars)))
        )
        self.ops.append(
            Op(
                name=name,
                kind=kind,
                inputs=inputs,
                outputs=outputs,
                types=tuple(_type(var) for var in outvars),
                params=params or {},
                eqn=eqn,
                line=_compat.source_line(eqn),
            )
        )
        return outputs

    def inline(self, eqn: Any, inputs: tuple[Operand, ...]) -> list[Operand]:
        call = _compat.called(eqn)
        assert call is not None
        inner, given = call
        jaxpr = _compat.open_jaxpr(inner)
        values: dict[Any, Operand] = dict(
            zip(jaxpr.constvars, map(Constant, _compat.jaxpr_consts(inner)), strict=True)
        )
        values.update(zip(jaxpr.invars, (inputs[n] for n in given), strict=True))
        self.add(jaxpr.eqns, values)
        return [self.operand(atom, values) for atom in jaxpr.outvars]

    def label(self, given: Operand, eqn: Any) -> Operand:
        """Calls a value what the user does; adds an identity if it is no operation's, or has a
        label already.
        """
        wanted: str = eqn.params["name"]
        made = any(given in op.outputs for op in self.ops)
        if made and wanted not in self.taken and given not in self.labels:
            self.taken.add(wanted)
            self.labels[str(given)] = wanted
            return given
        (out,) = self.append(wanted, "name", (given,), eqn.outvars, eqn, None)
        return out

    def labelled(self) -> list[Op]:
        """The operations, with the users' labels for names."""
        mapping: dict[str, Operand] = dict(self.labels)
        return [
            replace(
                op,
                name=self.labels.get(op.name, op.name),
                outputs=tuple(self.labels.get(out, out) for out in op.outputs),
            )
            for op in rename(self.ops, mapping)
        ]


def _tiled_collective(kind: str, eqn: Any) -> Mapping[str, Any] | None:
    """Parameters of a plain reduce-scatter or all-gather, None of any other equation."""
    params = eqn.params
    if kind not in ("reduce_scatter", "all_gather") or not params.get("tiled"):
        return None
    axes = _compat.axis_names(eqn)
    if len(axes) != 1 or params.get("axis_index_groups") is not None:
        return None
    if kind == "all_gather":
        return {"axes": axes, "dim": params["all_gather_dimension"]}
    return {"axes": axes, "dim": params["scatter_dimension"], "op": "sum"}
