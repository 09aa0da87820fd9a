"""Values between a reduce and a broadcast are right on one rank only: who may read them."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcc.layout import LayoutMap, Replicated, ScheduleError
from jaxcc.program import ROOTED, Op, Program

Root = tuple[tuple[str, ...], int]
"""The axes of a group, and the rank in it that has the value."""


def root_of(op: Op) -> Root | None:
    """The root of a reduce or broadcast, None of other operations."""
    # JAX has a primitive `reduce`, too; it has no parameters of ours.
    if op.kind not in ROOTED or not op.params:
        return None
    return op.params["axes"], op.params["root"]


def is_broadcast(op: Op) -> bool:
    """Whether it gives all ranks what the root holds."""
    return op.kind == "broadcast" and root_of(op) is not None


def rooted_layouts(
    program: Program, layouts: Mapping[str, LayoutMap | str], on_root: frozenset[str]
) -> dict[str, LayoutMap | str]:
    """Holds the program against what the checked trace, in which a reduce is an all-reduce and a
    broadcast does nothing, cannot see.

    A value that only a root has is read by operations of the kinds `on_root`, whose results then
    only it has, and by broadcasts from it. What is broadcast would be Replicated over the axis if
    all ranks computed it: so the root has what all would have.

    Returns:
      The layouts, with a text for each value that only one rank has.

    Raises:
      ScheduleError: SCHEDULE_ROOTED.
    """
    roots: dict[str, Root] = {}
    for op in program.ops:
        own = root_of(op)
        held = {roots[x] for x in op.value_inputs() if x in roots}
        if op.body and any(root_of(part) for part in op.flat()):
            raise _refused(op, f"'{op.name}' holds a reduce or a broadcast inside")
        if is_broadcast(op):
            if held - {own}:
                raise _refused(op, f"'{op.name}' broadcasts from another rank than the one that")
            _check_replicated(op, layouts)
        elif own is not None and not held:
            roots.update((out, own) for out in op.outputs)
        elif len(held) > 1:
            raise _refused(op, f"'{op.name}' reads values that different ranks hold")
        elif held and op.kind not in on_root:
            raise _refused(op, f"'{op.name}' ({op.kind}) reads on every rank what only one has")
        else:
            roots.update((out, root) for out in op.outputs for root in held)
    for out in program.outputs:
        if isinstance(out, str) and out in roots:
            raise _refused(program.producer(out), f"'{out}' is returned, but only one rank has it")
    return {**layouts, **{value: _described(root) for value, root in roots.items()}}


def _described(root: Root) -> str:
    axes, rank = root
    return f"on rank {rank} of {', '.join(axes)}"


def _check_replicated(op: Op, layouts: Mapping[str, LayoutMap | str]) -> None:
    for x in op.value_inputs():
        layout = layouts.get(x)
        if not isinstance(layout, LayoutMap) or any(
            layout[axis] != Replicated for axis in op.params["axes"]
        ):
            shown = layout.describe() if isinstance(layout, LayoutMap) else layout
            raise _refused(
                op, f"'{op.name}' would give all ranks one rank's '{x}', which is {shown}"
            )


def _refused(op: Op | None, what: str) -> ScheduleError:
    return ScheduleError(
        "SCHEDULE_ROOTED",
        what,
        line=op.line if op else None,
        because="between a reduce and its broadcast a value is right on the root only",
    )
