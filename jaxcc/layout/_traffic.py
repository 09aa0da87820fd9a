"""What the collectives of a program communicate: counted, and in bytes per rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxcc import _compat
from jaxcc.layout._dtypes import bytes_of

_KINDS: Mapping[str, str] = {
    "psum": "all-reduce",
    "pmax": "all-reduce",
    "pmin": "all-reduce",
    "unreduced_psum": "all-reduce",
    "all_gather": "all-gather",
    "all_gather_reduced": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "unreduced_reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ragged_all_to_all": "all-to-all",
    "ppermute": "permutation",
    "pbroadcast": "broadcast",
}


@dataclass(frozen=True)
class Traffic:
    """What one rank gives to one kind of collective over one group.

    Attributes:
      kind: `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, ...
      axes: the mesh axes that it runs over.
      count: how many there are.
      bytes: what one rank gives to all of them.
    """

    kind: str
    axes: tuple[str, ...]
    count: int
    bytes: int


def bytes_given(eqn: Any) -> int:
    """What one rank gives to the collectives of one equation, those inside it included."""
    return sum(one.bytes for one in total([eqn]))


def total(eqns: Iterable[Any]) -> tuple[Traffic, ...]:
    """The traffic of equations by kind and axes, in the order in which these first appear.

    A collective in a `scan` counts once for each turn, in a `while` once; of a `cond` the branch
    that communicates most counts.
    """
    sums: dict[tuple[str, tuple[str, ...]], tuple[int, int]] = {}
    for eqn in eqns:
        for one in _of(eqn):
            count, size = sums.get((one.kind, one.axes), (0, 0))
            sums[one.kind, one.axes] = (count + one.count, size + one.bytes)
    return tuple(Traffic(*key, count, size) for key, (count, size) in sums.items())


def _of(eqn: Any) -> tuple[Traffic, ...]:
    op = _compat.op_name(eqn)
    if op in _KINDS:
        # A vmapped collective also has the number of a dimension.
        names: tuple[Any, ...] = _compat.axis_names(eqn)
        axes = tuple(name for name in names if isinstance(name, str))
        size = sum(bytes_of(atom.aval) for atom in eqn.invars)
        return (Traffic(_KINDS[op], axes, 1, size),) if axes else ()
    if op.startswith("jaxcc_") and "axis_name" in eqn.params:
        # A combinator of jaxcc.comm: what a rank puts in; some pass it on several times.
        size = sum(bytes_of(atom.aval) for atom in eqn.invars)
        return (Traffic(op.removeprefix("jaxcc_"), _compat.axis_names(eqn), 1, size),)
    inner = [total(_compat.open_jaxpr(jaxpr).eqns) for jaxpr in _compat.inner_jaxprs(eqn)]
    if op == "cond":
        inner = [max(inner, key=lambda branch: sum(one.bytes for one in branch))]
    turns = eqn.params["length"] if op == "scan" else 1
    return tuple(
        Traffic(one.kind, one.axes, turns * one.count, turns * one.bytes)
        for branch in inner
        for one in branch
    )


def traffic_text(traffic: Iterable[Traffic]) -> str:
    """`communication per rank: 2 all-reduces over tp, 1.5 MiB`."""
    parts = [
        f"{one.count} {one.kind}{'s' if one.count > 1 else ''} over {', '.join(one.axes)}, "
        f"{size_text(one.bytes) or '0 B'}"
        for one in traffic
    ]
    return "communication per rank: " + ("; ".join(parts) or "none")


def size_text(count: float) -> str:
    """`1.5 MiB`; empty for nothing."""
    if not count:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
