"""What of a program its schedules depend on, as text: the same for every group size, and wherever
its lines stand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxcc import _compat
from jaxcc.program import Op, Operand, Program, type_text

_SHOWN = 5


@dataclass(frozen=True)
class Outline:
    """A program's inputs, operations and results, each as one line of text.

    Numbers and the contents of captured arrays are left out: steps do not depend on them.

    Attributes:
      axes: of the mesh.
      inputs: type and layout of each, by name.
      operations: what each does to which operands, and its type, by name.
      results: value and layout of each.
    """

    axes: tuple[str, ...]
    inputs: Mapping[str, str]
    operations: Mapping[str, str]
    results: tuple[str, ...]

    def differences(self, now: Outline) -> list[str]:
        """How the program `now` differs from this one; of many differences, the first few."""
        found: list[str] = []
        if self.axes != now.axes:
            found.append(f"the mesh has axes {_listed(now.axes)}, not {_listed(self.axes)}")
        found += _changes("input", self.inputs, now.inputs)
        found += _changes("operation", self.operations, now.operations)
        if self.results != now.results:
            found.append(f"its results are {_listed(now.results)}, not {_listed(self.results)}")
        more = len(found) - _SHOWN
        return [*found[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def outline(program: Program) -> Outline:
    """The outline of a program; that of a group of one is the same for all group sizes."""
    return Outline(
        axes=tuple(program.sizes),
        inputs={
            name: f"{type_text(t)} {layout.describe()}"
            for name, t, layout in zip(
                program.inputs, program.in_types, program.in_layouts, strict=True
            )
        },
        operations={op.name: _operation(op) for op in program.ops},
        results=tuple(
            f"{_operand(x)} {layout.describe()}"
            for x, layout in zip(program.outputs, program.out_layouts, strict=True)
        ),
    )


def _changes(kind: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    lost = [f"{kind} '{name}' is missing: {old[name]}" for name in old if name not in new]
    other = [
        f"{kind} '{name}' is {new[name]}, not {old[name]}"
        for name in old
        if name in new and new[name] != old[name]
    ]
    added = [f"{kind} '{name}' is new: {new[name]}" for name in new if name not in old]
    return lost + other + added


def _operation(op: Op) -> str:
    own = op.params or (op.eqn.params if op.eqn is not None else {})
    details = [f"{key}={_text(own[key])}" for key in sorted(own) if _is_plain(own[key])]
    if op.has_inner_jaxprs:
        details.append(f"body={_digest(op)}")
    call = ", ".join([*map(_operand, op.inputs), *details])
    return f"{op.kind}({call}) {' '.join(map(type_text, op.types))}"


def _operand(x: Operand) -> str:
    if isinstance(x, str):
        return x
    return str(x) if getattr(x.value, "shape", ()) else "number"


def _is_plain(value: Any) -> bool:
    """Whether a parameter reads the same in every process; defaults are left out, so that those
    that a JAX version adds do not matter.
    """
    if isinstance(value, tuple):
        return value != () and all(x is None or x == () or _is_plain(x) for x in value)
    return type(value) in (int, str) or value is True


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({','.join(map(_text, value))})"
    return str(value)


def _digest(op: Op) -> str:
    """Stands for the operations and types inside a loop or a branch."""
    inner = [_compat.open_jaxpr(jaxpr).eqns for jaxpr in _compat.inner_jaxprs(op.eqn)]
    lines = [
        f"{_compat.op_name(eqn)} {' '.join(_type(var) for var in eqn.outvars)}"
        for eqns in inner
        for eqn in _compat.all_eqns(eqns)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _type(var: Any) -> str:
    return type_text(jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"
