"""The reduce and broadcast that an all-reduce becomes, and the broadcast's way past other work."""

from __future__ import annotations

from dataclasses import replace

from jaxcc.layout import ScheduleError
from jaxcc.program import Op, Operand, Program, rename
from jaxcc.schedule._rooted import is_broadcast, root_of
from jaxcc.schedule.verbs._find import between_names, find, find_kind
from jaxcc.schedule.verbs._pointwise import POINTWISE

ON_ROOT = POINTWISE | frozenset(
    """
    argmax argmin broadcast_in_dim complex concatenate cumlogsumexp cummax cummin cumprod cumsum
    dot_general iota pad reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum
    reduce_xor reshape rev slice sort split squeeze transpose
    """.split()
)
"""The kinds that one rank can compute by itself, from its whole operands."""


def split_to_root(program: Program, name: str, root: int) -> Program:
    """The program with the all-reduce `name` as a reduce to `root` and a broadcast from it.

    Raises:
      ScheduleError: it is no all-reduce, or over several axes, or the group has no such rank.
    """
    op = find_kind(program, name, "split", "all_reduce")
    axes = op.params["axes"]
    if len(axes) != 1:
        raise ScheduleError(
            "SCHEDULE_WRONG_OPERATION",
            f"split: '{name}' runs over {', '.join(axes)}; only a reduction over one axis has a "
            "root",
            line=op.line,
        )
    ranks = program.sizes[axes[0]]
    # A group of one stands for groups of every size, and is its own root.
    if type(root) is not int or root < 0 or root >= ranks > 1:
        raise ScheduleError(
            "SCHEDULE_ARGUMENT",
            f"split: root is {root!r}, but the ranks of '{axes[0]}' are 0 to {ranks - 1}",
            line=op.line,
        )
    params = {"axes": axes, "root": min(root, ranks - 1)}
    made = {"reduce": {**params, "op": op.params["op"]}, "broadcast": params}
    reduce, broadcast = (
        replace(op, name=f"{name}.{kind}", kind=kind, outputs=(f"{name}.{kind}",), params=own)
        for kind, own in made.items()
    )
    return program.with_instead(op, (reduce, replace(broadcast, inputs=reduce.outputs)))


def moves_broadcast(program: Program, name: str) -> bool:
    """Whether `name` is a broadcast, which moves otherwise than an all-gather."""
    return any(op.name == name and is_broadcast(op) for op in program.ops)


def broadcast_after(program: Program, name: str, after: str) -> Program:
    """The program with the broadcast `name` moved past all that lies between it and `after`.

    What lies on the way runs on the root's value. Each value of it that is read elsewhere gets a
    broadcast of its own; that of `after` keeps the name.

    Raises:
      ScheduleError: `after` does not depend on the broadcast, or an operation on the way cannot run
        on one rank.
    """
    moved = find_kind(program, name, "reorder", "broadcast")
    inside = _between(program, moved, find(program, after, "reorder"))

    def reads_root(op: Op) -> bool:
        """Whether it is inside, or broadcasts from the same root already."""
        return op.name in inside or (is_broadcast(op) and root_of(op) == root_of(moved))

    whole: dict[str, Operand] = dict(zip(moved.outputs, moved.inputs, strict=True))
    elsewhere = {x for op in program.ops if not reads_root(op) for x in op.value_inputs()}
    elsewhere.update(x for x in program.outputs if isinstance(x, str))
    ops: list[Op] = []
    cast: dict[str, Operand] = {}
    for op in program.ops:
        if op is not moved:
            ops += rename([op], whole if reads_root(op) else cast)
        if op is moved or op.name in inside:
            for value, t in zip(op.outputs, op.types, strict=True):
                if value in elsewhere:
                    given = whole.get(value, value)
                    own = name if op.name == after else program.fresh(f"{given}.broadcast", *ops)
                    ops.append(
                        replace(moved, name=own, inputs=(given,), outputs=(own,), types=(t,))
                    )
                    cast[value] = own
    outputs = tuple(cast.get(x, x) if isinstance(x, str) else x for x in program.outputs)
    return program.with_ops(ops, outputs=outputs)


def _between(program: Program, moved: Op, after: Op) -> set[str]:
    """The names of the operations from the broadcast to `after`, all of which the root can run."""
    between = between_names(program, moved, after)
    for op in program.ops:
        if op.name in between and op.kind not in ON_ROOT:
            raise ScheduleError(
                "SCHEDULE_ROOTED",
                f"reorder: '{op.name}' ({op.kind}) lies between '{moved.name}' and "
                f"'{after.name}' but does not run on one rank",
                line=op.line,
                because="only the root has what it reads before the broadcast",
                fixes=(f"reorder '{moved.name}' only up to what comes before '{op.name}'",),
            )
    return between
