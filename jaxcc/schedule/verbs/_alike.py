"""Which values all ranks along some axes have alike, as far as that can be read off a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jaxcc import _compat
from jaxcc.layout import Replicated
from jaxcc.program import Op, Program

_MAKES_ALIKE = frozenset({"all_reduce", "all_gather"})


def alike(program: Program, axes: Sequence[str]) -> set[str]:
    """The values that depend on nothing that differs between the ranks along `axes`."""
    known = {
        name
        for name, layout in zip(program.inputs, program.in_layouts, strict=True)
        if all(layout[axis] == Replicated for axis in axes)
    }
    for op in program.ops:
        for leaf in op.flat():
            runs_over = set(leaf.params.get("axes", ())) | set(_names(leaf))
            everywhere = leaf.kind in _MAKES_ALIKE and leaf.params and runs_over >= set(axes)
            depends = not known.issuperset(leaf.value_inputs()) or runs_over.intersection(axes)
            if everywhere or not depends:
                known.update(leaf.outputs)
    return known


def _names(op: Op) -> Iterator[str]:
    """All texts among the parameters of an operation's equations, inner ones included; the axes
    that they run over are among them.
    """
    if op.eqn is None:
        return
    inner = (_compat.open_jaxpr(jaxpr).eqns for jaxpr in _compat.inner_jaxprs(op.eqn))
    for eqn in (op.eqn, *(one for eqns in inner for one in _compat.all_eqns(eqns))):
        for value in eqn.params.values():
            yield from _texts(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | set | frozenset):
        for one in value:
            yield from _texts(one)
