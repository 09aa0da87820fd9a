"""What a kernel may do with one of its tensors."""

from __future__ import annotations

from collections.abc import Sequence

from jaxcc.layout import ScheduleError
from jaxcc.program import SEND, Op, Program, type_text
from jaxcc.schedule._strands import Strand, block_at, shapes_of
from jaxcc.schedule.verbs._alike import alike
from jaxcc.schedule.verbs._sliced_dims import REDUCTIONS
from jaxcc.schedule.verbs.reorder import region_of


def check_collectives(collectives: Sequence[Op]) -> None:
    """Holds the collectives of a group against each other.

    Raises:
      ScheduleError: they run over different axes, or in a form that a kernel does not have.
    """
    for op in collectives:
        if not op.params:
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' does not cut or put together one dimension over one axis",
                line=op.line,
                fixes=("use tiled=True and one axis",),
            )
        if op.params["axes"] != collectives[0].params["axes"]:
            raise _differ(collectives[0], op, "they do not run over one axis")


def check_strand(
    program: Program, strand: Strand, totals: Sequence[Op], axes: Sequence[str]
) -> None:
    """Holds one strand of a group, whose collectives run over `axes`, against what a kernel does
    with a tensor.

    Raises:
      ScheduleError: it does not do that.
    """
    if strand.moves:
        if strand.reduces:
            raise _whole(strand.reduces[0], f"'{strand.moves[0].name}' makes blocks")
        _check_slices(program, strand, totals, axes)
    elif strand.reduces:
        _check_whole(program, strand, axes)
    elif axes:
        raise _apart(program, strand)
    else:
        _check_local(program, strand, totals)


def _differ(a: Op, b: Op, how: str) -> ScheduleError:
    return ScheduleError(
        "SCHEDULE_TWO_GROUPS", f"fuse: '{a.name}' and '{b.name}': {how}", line=b.line
    )


def _whole(op: Op, because: str) -> ScheduleError:
    return ScheduleError(
        "SCHEDULE_WRONG_OPERATION",
        f"fuse: '{op.name}' is a whole all-reduce",
        line=op.line,
        because=because,
        fixes=(f"split('{op.name}') first",),
    )


def _apart(program: Program, strand: Strand) -> ScheduleError:
    """A strand that no collective of its group is part of."""
    last = strand.body[-1]
    out = strand.outputs[0] if strand.outputs else last.outputs[0]
    return ScheduleError(
        "SCHEDULE_TWO_GROUPS",
        f"fuse: '{out}' {type_text(program.types()[out])} has nothing to do with the group's "
        "collectives",
        line=last.line,
        because="a kernel makes blocks of what it reduces or gathers, and whole arrays only by "
        "gathering them",
        fixes=(f"leave '{out}' out of the group",),
    )


def _check_slices(
    program: Program, strand: Strand, totals: Sequence[Op], axes: Sequence[str]
) -> None:
    """Slices of what is scattered, gathered or cut out of whole arrays, along one dimension."""
    types, first = program.types(), strand.moves[0]
    block = block_at(first, types)
    for op in strand.moves:
        if op.params["dim"] != first.params["dim"] or block_at(op, types) != block:
            shapes = f"blocks of {block} and of {block_at(op, types)}"
            raise _differ(first, op, f"they slice arrays in two ways, into {shapes}")
    for op in strand.body:
        if op.kind in ("own_slice", "all_reduce") and tuple(op.params["axes"]) != tuple(axes):
            raise _differ(first, op, "they do not slice or reduce over one axis")
        rows = op.kind in REDUCTIONS and op not in totals
        if rows and (op.types[0].shape == () or first.params["dim"] in op.eqn.params["axes"]):
            raise reduces_all(op)
        if rows:
            _check_rows(op, op.eqn.invars[0].aval.shape)
    _check_order(program, strand)
    made = {out: op for op in strand.body for out in op.outputs}
    for out in strand.outputs:
        gathered = made[out].kind in ("all_gather", "all_reduce") or _sends_gathered(made, out)
        if not gathered and types[out].shape != block:
            raise ScheduleError(
                "SCHEDULE_TWO_GROUPS",
                f"fuse: '{out}' {type_text(types[out])} is read outside the group, whose kernel "
                f"makes blocks of {block}, and whole arrays only by gathering them",
                fixes=(f"leave '{out}' out of the group",),
            )


def _sends_gathered(made: dict[str, Op], out: str) -> bool:
    op = made[out]
    source = made.get(str(op.inputs[0])) if op.kind == SEND else None
    return source is not None and source.kind == "all_gather"


def reduces_all(op: Op) -> ScheduleError:
    """A reduction that is neither one of rows nor a total."""
    other = (f"split along a dimension that '{op.name}' keeps",) if op.types[0].shape else ()
    return ScheduleError(
        "SCHEDULE_NOT_POINTWISE",
        f"fuse: '{op.name}' ({op.kind}) reduces the dimension that the group slices",
        line=op.line,
        because="a kernel reduces rows, and totals that are then all-reduced and read outside",
        fixes=(
            *other,
            f"put its all-reduce into the group, too, and leave out what reads '{op.name}'",
            f"leave '{op.name}' out of the group",
        ),
    )


def _check_rows(op: Op, shape: Sequence[int]) -> None:
    """What a kernel reduces lies together: it is the last dimensions of an array."""
    reduced = {d for d in op.eqn.params["axes"] if shape[d] != 1}
    kept = [d for d, size in enumerate(shape) if size != 1 and d not in reduced]
    if reduced and kept and min(reduced) < kept[-1]:
        raise ScheduleError(
            "SCHEDULE_NOT_POINTWISE",
            f"fuse: '{op.name}' ({op.kind}) reduces dimensions {tuple(sorted(reduced))} of "
            f"{tuple(shape)}, and keeps {kept[-1]} behind",
            line=op.line,
            because="a kernel reduces rows: the last dimensions of an array, all together",
            fixes=(
                "move what is reduced to the end, before the collective, with jnp.moveaxis",
                f"leave '{op.name}' out of the group",
            ),
        )


def _check_order(program: Program, strand: Strand) -> None:
    """A kernel first reduces what it is given and in the end gathers and sends what others read."""
    made = {out: op for op in strand.body for out in op.outputs}
    for op in strand.moves:
        inner = made.get(op.inputs[0]) if isinstance(op.inputs[0], str) else None
        if op.kind == "reduce_scatter" and inner is not None:
            raise _reduces_what_is_made(op, inner)
        behind = program.reached_from(op.outputs)
        readers = [one for one in strand.body if one.name in behind and one.kind != SEND]
        if op.kind == "all_gather" and readers:
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' is gathered and then read inside the group",
                line=op.line,
                fixes=(_before_reading(program, op, readers),),
            )


def _reduces_what_is_made(op: Op, inner: Op) -> ScheduleError:
    return ScheduleError(
        "SCHEDULE_WRONG_OPERATION",
        f"fuse: '{op.name}' reduces '{inner.name}', which is computed inside the group",
        line=op.line,
        fixes=(f"leave '{inner.name}' out of the group",),
    )


def _before_reading(program: Program, gather: Op, readers: Sequence[Op]) -> str:
    """What to do about a gather that `readers` in its group depend on."""
    work = [op for op in readers if op.kind != "all_gather"]
    try:
        region_of(program, gather, work[-1])
    except (ScheduleError, IndexError):
        return f"leave '{readers[0].name}' and what reads it out of the group"
    return (
        f"reorder('{gather.name}', after='{work[-1].name}') first, so that '{work[0].name}' runs "
        "on slices"
    )


def _check_whole(program: Program, strand: Strand, axes: Sequence[str]) -> None:
    """Whole arrays: what is all-reduced, and the work that all ranks do alike."""
    first, types = strand.reduces[0], program.types()
    same, made = alike(program, axes), strand.made
    for op in strand.body:
        if op.kind in REDUCTIONS or op.kind == "own_slice":
            raise _whole(first, f"'{op.name}' ({op.kind}) needs more than elements of its result")
        if op in strand.reduces:
            if not isinstance(op.inputs[0], str):
                raise _whole(first, f"'{op.name}' reduces what is known")
            if op.params["op"] != first.params["op"]:
                raise _differ(first, op, "a kernel reduces all that one loop reads in one way")
            continue
        if op.kind == "all_reduce":
            (inner,) = (one for one in strand.body if op.inputs[0] in one.outputs)
            raise _reduces_what_is_made(op, inner)
        for x in op.value_inputs():
            if x not in made and x not in same:
                raise _whole(first, f"'{x}', which '{op.name}' reads, may differ between the ranks")
    if len(shapes_of(strand, types)) > 1:
        raise _two_shapes(program, strand)


def _check_local(program: Program, strand: Strand, totals: Sequence[Op]) -> None:
    """Each rank's own arrays, some of which it sends."""
    for op in strand.body:
        if op.kind == "own_slice":
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' cuts out a block, and no collective of the group does",
                line=op.line,
                fixes=(f"leave '{op.name}' out of the group",),
            )
        if op in totals or (op.kind in REDUCTIONS and op.types[0].shape == ()):
            raise reduces_all(op)
    if len(shapes_of(strand, program.types())) > 1:
        raise _two_shapes(program, strand)


def _two_shapes(program: Program, strand: Strand) -> ScheduleError:
    types = program.types()
    first = strand.outputs[0]
    other = next(out for out in strand.outputs if types[out].shape != types[first].shape)
    return ScheduleError(
        "SCHEDULE_TWO_GROUPS",
        f"fuse: '{first}' {type_text(types[first])} and '{other}' {type_text(types[other])} are "
        "computed from each other, and read outside the group with two shapes",
        because="one loop of a kernel makes arrays of one shape",
        fixes=(f"leave '{other}' out of the group",),
    )
