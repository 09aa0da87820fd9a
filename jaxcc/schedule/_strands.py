"""A group's operations by the tensors that its kernel has: which are computed together, element by
element.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import jax

from jaxcc import _compat
from jaxcc.program import COLLECTIVES, SEND, Op, operand_type

FEEDERS = frozenset({"own_slice", "broadcast_in_dim", "iota", "random_bits"})
"""What a kernel makes as it reads an operand, or instead of reading one."""

Types = Mapping[str, jax.ShapeDtypeStruct]


@dataclass(frozen=True)
class Strand:
    """Operations that one loop computes: what a kernel does with one of its tensors.

    Attributes:
      body: in an order in which they can run. Feeders and numbers may be in several strands.
      outputs: what is read outside the group.
    """

    body: tuple[Op, ...]
    outputs: tuple[str, ...]

    @property
    def made(self) -> set[str]:
        """The values that it computes."""
        return {out for op in self.body for out in op.outputs}

    @property
    def moves(self) -> list[Op]:
        """Its reduce-scatters and all-gathers: it computes slices."""
        return [op for op in self.body if op.kind in ("reduce_scatter", "all_gather")]

    @property
    def reduces(self) -> list[Op]:
        """Its whole all-reduces: it computes whole arrays. Those of totals are none."""
        made = self.made
        return [op for op in self.body if op.kind == "all_reduce" and op.inputs[0] not in made]

    @property
    def sends(self) -> list[Op]:
        """What it sends."""
        return [op for op in self.body if op.kind == SEND]


def strands(body: Sequence[Op], outputs: Sequence[str], types: Types) -> list[Strand]:
    """The strands of `body`, of whose values `outputs` are read outside, in the order in which
    they end.

    What depends on each other is in one strand. Among strands with collectives, work that depends
    on none is part of the first that makes blocks of its shape, if there is one.
    """
    made = {out: op for op in body for out in op.outputs}
    shared = [op for op in body if _is_shared(op, made, outputs, types)]
    groups: list[list[Op]] = []
    for op in body:
        if op in shared:
            continue
        read = [made[x] for x in op.value_inputs() if x in made]
        joined = [group for group in groups if any(x in group for x in read)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(x for group in joined for x in group), op])
    found = [_strand(body, group, shared, outputs) for group in groups]
    loose = [one for one in found if not (one.moves or one.reduces or one.sends)]
    if not any(one.moves for one in found):
        return found
    for one in loose:
        host = next((other for other in found if _takes(other, one, types)), None)
        if host is not None:
            found.remove(one)
            both = [op for op in body if op in host.body or op in one.body]
            found[found.index(host)] = _strand(body, both, shared, outputs)
    return found


def _is_shared(op: Op, made: Mapping[str, Op], outputs: Collection[str], types: Types) -> bool:
    """Whether each strand that reads what the operation makes can make it by itself."""
    if any(out in outputs for out in op.outputs) or op.kind in (*COLLECTIVES, SEND):
        return False
    if op.kind in FEEDERS:
        return not any(x in made for x in op.value_inputs())
    shapes = [operand_type(x, types).shape for x in op.inputs]
    number = not any([*shapes, *(t.shape for t in op.types)])
    return number and all(
        _is_shared(made[x], made, outputs, types) for x in op.value_inputs() if x in made
    )


def _strand(
    body: Sequence[Op], group: Sequence[Op], shared: Sequence[Op], outputs: Sequence[str]
) -> Strand:
    """The strand of `group`, with what it reads of `shared`."""
    inside = list(group)
    for op in reversed(body):
        if op in shared and any(set(op.outputs).intersection(user.inputs) for user in inside):
            inside.append(op)
    ordered = tuple(op for op in body if op in inside)
    own = {out for op in ordered for out in op.outputs}
    return Strand(ordered, tuple(out for out in outputs if out in own))


def _takes(host: Strand, loose: Strand, types: Types) -> bool:
    if not host.moves:
        return False
    return shapes_of(loose, types) <= {block_of(host, types)[0]}


def shapes_of(strand: Strand, types: Types) -> set[tuple[int, ...]]:
    """The shapes of the arrays that are read outside or that totals are made of: whole ones where
    the strand gathers.
    """
    made = {out: op for op in strand.body for out in op.outputs}
    found: set[tuple[int, ...]] = set()
    for out in strand.outputs:
        op = made[out]
        if op.kind == "all_reduce" and op not in strand.reduces:
            op = made[str(op.inputs[0])]
            found.add(operand_type(op.inputs[0], types).shape)
        else:
            found.add(types[out].shape)
    return found


def block_of(strand: Strand, types: Types) -> tuple[tuple[int, ...], int]:
    """The shape of a rank's block of what the strand computes slices of, and the dimension that it
    is cut along.
    """
    op = strand.moves[0]
    return block_at(op, types), op.params["dim"]


def block_at(op: Op, types: Types) -> tuple[int, ...]:
    """The shape of a rank's block of a reduce-scatter or an all-gather."""
    if op.kind == "reduce_scatter" or not isinstance(op.inputs[0], str):
        return op.types[0].shape
    return types[op.inputs[0]].shape


def axes_of(body: Sequence[Op]) -> tuple[str, ...]:
    """The axes that a group's collectives run over, which are the same for all."""
    return next((op.params.get("axes", ()) for op in body if op.kind in COLLECTIVES), ())


def route_of(send: Op) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """The axes that a send runs over, and from which rank to which."""
    return _compat.axis_names(send.eqn), tuple(send.eqn.params["perm"])
