"""What a kernel may send."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcc.layout import ScheduleError
from jaxcc.program import SEND, Op
from jaxcc.schedule._strands import route_of


def check_sends(body: Sequence[Op], sends: Sequence[Op], axes: Sequence[str]) -> None:
    """Holds the sends of a group, whose collectives run over `axes`, against what a kernel does:
    it stores each result once, with the ranks that receive it.

    Raises:
      ScheduleError: they go to different ranks, run over the collectives' own axes, or what is
        received is read in the group, other than to be gathered.
    """
    for op in sends:
        if route_of(op) != route_of(sends[0]):
            raise ScheduleError(
                "SCHEDULE_TWO_GROUPS",
                f"fuse: '{sends[0].name}' and '{op.name}': they do not send to the same ranks of "
                "one axis",
                line=op.line,
            )
        own = [axis for axis in route_of(op)[0] if axis in axes]
        if own:
            raise ScheduleError(
                "SCHEDULE_TWO_GROUPS",
                f"fuse: '{op.name}' sends over '{own[0]}', which the group's collectives run over",
                line=op.line,
                because="a kernel sends from one group of ranks that divide its tensors to another",
                fixes=(f"leave '{op.name}' out of the group",),
            )
        readers = [reader for reader in body if op.name in reader.inputs]
        for reader in readers:
            if reader.kind != "all_gather":
                raise ScheduleError(
                    "SCHEDULE_WRONG_OPERATION",
                    f"fuse: '{op.name}' is received and then read inside the group",
                    line=op.line,
                    fixes=(f"leave '{reader.name}' out of the group",),
                )
            again = [one for one in body if one.kind == SEND and reader.name in one.inputs]
            if again:
                raise ScheduleError(
                    "SCHEDULE_WRONG_OPERATION",
                    f"fuse: '{again[0].name}' sends on what '{op.name}' has received",
                    line=again[0].line,
                    fixes=(f"leave '{again[0].name}' out of the group",),
                )
