"""A program's digest: equal for programs that differ only in names and in the order of operations.

It is the same in every process, so that a cache on disk can be keyed by it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxcc.program import Constant, Op, Operand, Program, type_text

_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Digester:
    """Makes digests, and remembers those of equations and constants, which programs share."""

    def __init__(self) -> None:
        # Each with the object itself, whose id would otherwise be given to another.
        self._known: dict[int, tuple[Any, str]] = {}

    def of(self, program: Program) -> str:
        """The digest of all that the program computes and how: operations, fusions, types, layouts
        and group sizes.
        """
        values = {
            name: _hash("input", str(index), type_text(given), layout.describe())
            for index, (name, given, layout) in enumerate(
                zip(program.inputs, program.in_types, program.in_layouts, strict=True)
            )
        }
        ops = sorted(self._op(op, values) for op in program.ops)
        outputs = [self._operand(x, values) for x in program.outputs]
        layouts = [layout.describe() for layout in program.out_layouts]
        return _hash(repr(program.sizes), *ops, "outputs", *outputs, *layouts)

    def _op(self, op: Op, values: dict[str, str]) -> str:
        """The digest of an operation; `values` gets those of its results."""
        if op.body:
            inner = dict(values)
            parts = sorted(self._op(part, inner) for part in op.body)
            if op.kind == "overlapped":
                # Values have names that do not matter, but the order of their dimensions does.
                dims = [op.params["dims"].get(out) for part in op.flat() for out in part.outputs]
                parts += [str(op.params["chunks"]), str(dims)]
            key = _hash(op.kind, *parts)
            values.update((out, _hash(key, inner[out])) for out in op.outputs)
            return key
        inputs = [self._operand(x, values) for x in op.inputs]
        types = map(type_text, op.types)
        key = _hash(op.kind, _text(op.params), self._equation(op), *inputs, "types", *types)
        values.update((out, _hash(key, str(index))) for index, out in enumerate(op.outputs))
        return key

    def _operand(self, x: Operand, values: Mapping[str, str]) -> str:
        if not isinstance(x, Constant):
            return values[x]
        return self._remembered(x.value, lambda: _constant(x.value))

    def _equation(self, op: Op) -> str:
        # What an equation of ours was made from, a sum for instance, says no more than our params.
        if op.params or op.eqn is None:
            return ""
        return self._remembered(op.eqn, lambda: _text(op.eqn.params))

    def _remembered(self, what: Any, text: Any) -> str:
        if id(what) not in self._known:
            self._known[id(what)] = (what, text())
        return self._known[id(what)][1]


def digest(program: Program) -> str:
    """The digest of one program."""
    return Digester().of(program)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _text(params: Mapping[str, Any]) -> str:
    return _ADDRESS.sub("", repr(sorted((key, str(value)) for key, value in params.items())))


def _constant(value: Any) -> str:
    try:
        array = np.asarray(value)
        return _hash(str(array.dtype), str(array.shape), array.tobytes().hex())
    except TypeError:  # a random key's bits are not NumPy's
        return _hash(str(value))
