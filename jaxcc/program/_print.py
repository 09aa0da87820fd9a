"""Programs as text: one line per operation, with its type, its layout and the user's line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from jaxcc import _compat
from jaxcc.program._ir import Op, Program

_SHORT = {"float": "f", "int": "i", "uint": "u", "complex": "c", "bfloat": "bf"}


def type_text(t: jax.ShapeDtypeStruct) -> str:
    """`f32[8,16]`, as jaxprs print it."""
    name = str(t.dtype)
    stem = name.rstrip("0123456789")
    return f"{_SHORT.get(stem, stem)}{name[len(stem) :]}[{','.join(map(str, t.shape))}]"


def program_text(program: Program, layouts: Mapping[str, str], *, lines: bool = True) -> str:
    """The whole program; `layouts` has a text per value, `lines` adds where the user wrote it."""
    mesh = " ".join(f"{axis}={size}" for axis, size in program.sizes.items())
    rows: list[tuple[str, str, str, str]] = []
    for name, given, layout in zip(
        program.inputs, program.in_types, program.in_layouts, strict=True
    ):
        rows.append((f"  in {name}", type_text(given), layout.describe(), ""))
    for op in program.ops:
        rows += _op_rows(op, layouts, "  ", lines)
    for out, layout in zip(program.outputs, program.out_layouts, strict=True):
        rows.append((f"  out {out}", "", layout.describe(), ""))
    return f"{program.name} on {mesh}\n" + "\n".join(_columns(rows))


def _op_rows(
    op: Op, layouts: Mapping[str, str], indent: str, lines: bool
) -> Iterator[tuple[str, str, str, str]]:
    if op.body:
        yield f"{indent}{op.name}{_chunks(op)} {{", "", "", ""
        for part in op.body:
            yield from _op_rows(part, layouts, indent + "  ", lines)
        yield f"{indent}}}", "", "", ""
        return
    line = f"{os.path.basename(op.line.file)}:{op.line.line}" if lines and op.line else ""
    types = " ".join(map(type_text, op.types))
    layout = " ".join(layouts.get(out, "") for out in op.outputs)
    yield f"{indent}{', '.join(op.outputs)} = {_call(op)}", types, layout, line


def _chunks(op: Op) -> str:
    """How an overlapped operation is cut: along which dimension of what it passes on first."""
    if op.kind != "overlapped":
        return ""
    dim = op.params["dims"][op.flat()[0].outputs[0]]
    return f" in {op.params['chunks']} chunks along dim={dim} of {op.flat()[0].outputs[0]}"


def _call(op: Op) -> str:
    detail = [
        f"{key}={_param(op.params[key])}"
        for key in ("op", "axes", "dim", "root")
        if key in op.params
    ]
    if op.kind not in ("all_reduce", "reduce"):
        detail = [d for d in detail if not d.startswith("op=")]
    if op.kind == "integer_pow":
        detail.append(f"y={op.eqn.params['y']}")
    if op.kind == "ppermute":
        pairs = " ".join(f"{source}->{to}" for source, to in op.eqn.params["perm"])
        detail += [f"axes={_param(_compat.axis_names(op.eqn))}", pairs]
    return f"{op.kind}({', '.join([*map(_operand, op.inputs), *detail])})"


def _param(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)


def _operand(x: Any) -> str:
    if isinstance(x, str):
        return x
    value = x.value
    if getattr(value, "shape", ()) == () and np.issubdtype(np.asarray(value).dtype, np.floating):
        return f"{float(value):.6g}"
    return str(x)


def _columns(rows: list[tuple[str, str, str, str]]) -> Iterator[str]:
    widths = [max((len(row[i]) for row in rows if any(row[1:])), default=0) for i in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)]
        yield "  ".join([*cells, row[3]]).rstrip()
