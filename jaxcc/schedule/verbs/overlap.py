"""overlap: a producer and what reads it run in chunks, so that one chunk is computed while another
is sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcc.layout import ScheduleError
from jaxcc.program import ROOTED, Op, Program
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._chunks import CannotCut, Types, chunk_dims, dim_of_operand
from jaxcc.schedule.verbs._find import find
from jaxcc.schedule.verbs._groups import grouped


def overlap[S: Scheduled](
    schedule: S, *names: str, chunks: int, dim: int | None = None, name: str | None = None
) -> S:
    """Makes one operation of a chain, that runs chunk by chunk.

    Each chunk of an operation's result is read by the same chunk of the next one, and no chunk
    waits for another: a backend may multiply the next chunk while it reduces this one. The result
    is bit for bit that of the whole, up to the order in which a product sums.

    Args:
      names: two or more operations, each of which reads what the one before it makes: products,
        fused operations, collectives, sends and pointwise work.
      chunks: how many; their sizes differ by one at most.
      dim: of what the first operation makes, to be cut; None takes the first one that can be, of
        those that `chunks` divides if there are any.
      name: what the result is called; None for `overlapped`.

    Rewrite:
      y = dot_general(x, w) ; fused { ... reduce_scatter(y) ... } ; g
      -->
      overlapped { y = dot_general(x, w) ; fused { ... reduce_scatter(y) ... } } ; g

    Raises:
      ScheduleError: SCHEDULE_NOT_DEPENDENT if one does not read what the one before it makes,
        SCHEDULE_CHUNKS if there is no dimension that all can be cut along, or fewer elements than
        chunks.
    """
    if name is None:
        name = schedule.program.fresh("overlapped")
    arguments = {"names": tuple(names), "chunks": chunks, "dim": dim, "name": name}
    if dim is None and len(names) > 1 and chunks > 1:
        # On ranks, as on one rank no collective need be in the way.
        arguments["dim"] = _choose(schedule.program, names, chunks)
    return schedule.then(Step("overlap", arguments))


@rewrite("overlap")
def _apply(
    program: Program, *, names: Sequence[str], chunks: int, dim: int | None, name: str
) -> Program:
    body = _chain(program, names)
    if chunks < 2:
        raise _argument(f"{chunks} chunks: there is nothing to overlap with fewer than two")
    if name in {*program.inputs, *(op.name for op in program.ops if op not in body)}:
        raise _argument(f"the name '{name}' is taken")
    if dim is None:
        dim = _choose(program, names, chunks)
    dims = _dims(program, body, dim)
    _check_size(program, body, dim, chunks)
    params = {"chunks": chunks, "dims": dims}
    return grouped(program, body, name, kind="overlapped", params=params)


def _argument(what: str) -> ScheduleError:
    return ScheduleError("SCHEDULE_ARGUMENT", f"overlap: {what}")


def _chain(program: Program, names: Sequence[str]) -> list[Op]:
    """The operations, in the program's order."""
    if len(names) < 2 or len(set(names)) < len(names):
        raise _argument(f"it takes two or more different operations, not {', '.join(names)}")
    chain = [find(program, n, "overlap") for n in names]
    for op in chain:
        if op.kind == "overlapped":
            raise _argument(f"'{op.name}' runs in chunks already")
        if any(part.kind in ROOTED and part.params for part in op.flat()):
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"overlap: '{op.name}' runs from or to one rank",
                line=op.line,
            )
    for maker, reader in zip(chain, chain[1:], strict=False):
        if set(maker.outputs).isdisjoint(reader.inputs):
            raise _not_dependent(program, maker, reader)
    return [op for op in program.ops if op in chain]


def _not_dependent(program: Program, maker: Op, reader: Op) -> ScheduleError:
    between = program.reached_from(maker.outputs) & program.reaching(reader.outputs)
    between -= {reader.name}
    fixes: tuple[str, ...] = ()
    if reader.name not in program.reached_from(maker.outputs):
        what = f"'{reader.name}' does not depend on '{maker.name}'"
        if maker.name in program.reached_from(reader.outputs):
            what += "; it is the other way round"
            fixes = (f"overlap('{reader.name}', '{maker.name}', ...)",)
    else:
        inner = [op.name for op in program.ops if op.name in between]
        what = f"'{reader.name}' does not read '{maker.name}' itself: between them lies"
        what = f"{what} {', '.join(inner)}"
        fixes = (f"overlap('{maker.name}', '{inner[0]}', ...), or fuse what lies between",)
    return ScheduleError(
        "SCHEDULE_NOT_DEPENDENT", f"overlap: {what}", line=reader.line, fixes=fixes
    )


def _choose(program: Program, names: Sequence[str], chunks: int) -> int:
    """The first dimension that the chain can be cut along, better one that `chunks` divides."""
    body = _chain(program, names)
    shape = body[0].flat()[0].types[0].shape
    order = sorted(range(len(shape)), key=lambda d: shape[d] % chunks != 0)
    reasons: list[str] = []
    for dim in order:
        try:
            _dims(program, body, dim)
            _check_size(program, body, dim, chunks)
        except ScheduleError as error:
            reasons.append(f"dimension {dim}: {error.findings[0].because}")
        else:
            return dim
    raise ScheduleError(
        "SCHEDULE_CHUNKS",
        f"overlap: {' and '.join(names)} have no dimension in common that they can be cut along",
        line=body[0].line,
        because="; ".join(reasons) or f"'{body[0].outputs[0]}' is a single number",
        fixes=("split the all-reduce along another dimension",),
    )


def _dims(program: Program, body: Sequence[Op], dim: int) -> dict[str, int]:
    types, leaves = program.types(), [leaf for op in body for leaf in op.flat()]
    first = leaves[0]
    if not 0 <= dim < len(first.types[0].shape):
        raise _argument(f"'{first.outputs[0]}' has no dimension {dim}")
    try:
        dims = chunk_dims(leaves, types, first.outputs[0], dim)
        for op in body:
            _check_reads(op, dims, types)
            for out in op.outputs:
                if out not in dims:
                    raise CannotCut(op, f"makes '{out}', of which there are no chunks")
    except CannotCut as error:
        raise ScheduleError(
            "SCHEDULE_CHUNKS",
            f"overlap: dimension {dim} of '{first.outputs[0]}' cannot be cut",
            line=error.op.line,
            because=str(error),
            fixes=("name another dim=, or leave the operation out",),
        ) from None
    return dims


def _check_reads(op: Op, dims: Mapping[str, int], types: Types) -> None:
    """What a group reads, it reads in one way."""
    read: dict[str, int | None] = {}
    made = {out for leaf in op.flat() for out in leaf.outputs}
    for leaf in op.flat():
        for index, x in enumerate(leaf.inputs):
            if not isinstance(x, str) or x in made:
                continue
            out = dims.get(leaf.outputs[0])
            dim = None if out is None else dim_of_operand(leaf, index, out, types)
            if read.setdefault(x, dim) != dim:
                raise CannotCut(leaf, f"reads '{x}' along another dimension than its group")


def _check_size(program: Program, body: Sequence[Op], dim: int, chunks: int) -> None:
    first = body[0].flat()[0]
    size = first.types[0].shape[dim]
    if size < chunks:
        raise ScheduleError(
            "SCHEDULE_CHUNKS",
            f"overlap: {chunks} chunks of dimension {dim} of '{first.outputs[0]}', which has size "
            f"{size}",
            line=first.line,
            because=f"of its {size} elements no {chunks} chunks can be made",
            fixes=(f"chunks={size}",) if size > 1 else (),
        )
