"""fuse: a reduce-scatter, the work on its slices and all-gathers become one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType

from jaxcc import _compat
from jaxcc.layout import ScheduleError
from jaxcc.program import COLLECTIVES, MOVES, Op, Operand, Program
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._find import find
from jaxcc.schedule.verbs._pointwise import POINTWISE

# What a kernel does as it reads an operand, or instead of reading one.
_FEEDERS = frozenset({"own_slice", "broadcast_in_dim", "iota"})


def fuse[S: Scheduled](schedule: S, *names: str | EllipsisType, name: str) -> S:
    """Makes one operation, `name`, of several.

    Args:
      names: operations; `...` between two stands for all that lies on the way from those before it
        to those after it.
      name: what the result is called.

    Rewrite:
      t = reduce_scatter(y) ; u = f(t, ...) ; g = all_gather(u)
      -->
      name { t = reduce_scatter(y) ; u = f(t, ...) ; g = all_gather(u) }

    Raises:
      ScheduleError: the operations hold no collective, or collectives of two groups or dimensions,
        or an operation that is not pointwise; or one outside lies between them.
    """
    resolved = _resolve(schedule.program, names)
    return schedule.then(Step("fuse", {"names": resolved, "name": name}))


def _resolve(program: Program, names: Sequence[str | EllipsisType]) -> tuple[str, ...]:
    """The names with each `...` replaced by what lies between."""
    if not names or names[0] is ... or names[-1] is ...:
        raise ScheduleError(
            "SCHEDULE_ARGUMENT",
            "fuse: `...` stands between two names, so it is neither first nor last",
        )
    chosen = {n for n in names if isinstance(n, str)}
    for one in chosen:
        find(program, one, "fuse")
    for index, entry in enumerate(names):
        if entry is not ...:
            continue
        before = [out for n in names[:index] if isinstance(n, str) for out in _outputs(program, n)]
        after = [
            out for n in names[index + 1 :] if isinstance(n, str) for out in _outputs(program, n)
        ]
        chosen |= program.reached_from(before) & program.reaching(after)
    return tuple(op.name for op in program.ops if op.name in chosen)


def _outputs(program: Program, name: str) -> tuple[str, ...]:
    return find(program, name, "fuse").outputs


@rewrite("fuse")
def _apply(program: Program, *, names: Sequence[str], name: str) -> Program:
    group = [find(program, n, "fuse") for n in names]
    body = _with_feeders(program, group)
    _check(program, body)
    if any(op.name == name for op in program.ops if op not in body) or name in program.inputs:
        raise ScheduleError("SCHEDULE_ARGUMENT", f"fuse: the name '{name}' is taken")
    made = {out for op in body for out in op.outputs}
    rest = [op for op in program.ops if op not in body]
    read = {x for op in rest for x in op.value_inputs()} | set(program.outputs)
    types = program.types()
    outputs = tuple(out for op in body for out in op.outputs if out in read)
    inputs: list[Operand] = []
    for op in body:
        inputs += [x for x in op.value_inputs() if x not in made and x not in inputs]
    fused = Op(
        name=name,
        kind="fused",
        inputs=tuple(inputs),
        outputs=outputs,
        types=tuple(types[out] for out in outputs),
        params={"axes": _collectives(body)[0].params["axes"]},
        body=tuple(body),
        line=body[0].line,
    )
    last = max(program.ops.index(op) for op in body)
    head = [op for op in program.ops[: last + 1] if op not in body]
    return program.with_ops([*head, fused, *program.ops[last + 1 :]])


def _with_feeders(program: Program, group: Sequence[Op]) -> list[Op]:
    """The group and what only it reads, in the program's order."""
    chosen = {op.name for op in group}
    while more := {op.name for op in program.ops if _feeds(program, op, chosen)}:
        chosen |= more
    return [op for op in program.ops if op.name in chosen]


def _feeds(program: Program, op: Op, chosen: set[str]) -> bool:
    """Whether the group can compute `op` by itself and nothing else needs it. Numbers are computed
    once, outside.
    """
    if op.name in chosen or set(op.outputs) & set(program.outputs):
        return False
    readers = [user for out in op.outputs for user in program.users(out)]
    pointwise = op.kind in POINTWISE and op.types[0].shape != ()
    if pointwise and any(user.kind in MOVES for user in readers):
        return False
    return (pointwise or _is_feeder(op)) and all(user.name in chosen for user in readers)


def _is_feeder(op: Op) -> bool:
    if op.kind == "random_bits":
        key = op.eqn.invars[0].aval
        return key.shape == () != op.types[0].shape and _compat.counts_bits(key.dtype)
    return op.kind in _FEEDERS


def _collectives(body: Sequence[Op]) -> list[Op]:
    return [op for op in body if op.kind in COLLECTIVES]


def _check(program: Program, body: Sequence[Op]) -> None:
    collectives = _collectives(body)
    if not collectives:
        raise ScheduleError("SCHEDULE_NO_COLLECTIVE", "fuse: there is no collective to fuse with")
    first = collectives[0]
    for op in collectives:
        if op.params["axes"] != first.params["axes"] or op.params.get("dim") != first.params.get(
            "dim"
        ):
            raise ScheduleError(
                "SCHEDULE_TWO_GROUPS",
                f"fuse: '{first.name}' and '{op.name}' do not slice one dimension over one axis",
                line=op.line,
            )
        if op.kind == "all_reduce":
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' is a whole all-reduce",
                line=op.line,
                fixes=(f"split('{op.name}') first",),
            )
    for op in body:
        if op.kind not in POINTWISE | COLLECTIVES and not _is_feeder(op):
            raise ScheduleError(
                "SCHEDULE_NOT_POINTWISE",
                f"fuse: '{op.name}' ({op.kind}) does not treat every element by itself",
                line=op.line,
            )
    made = {out: op for op in body for out in op.outputs}
    for op in collectives:
        inner = made.get(op.inputs[0]) if isinstance(op.inputs[0], str) else None
        if op.kind == "reduce_scatter" and inner is not None:
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' reduces '{inner.name}', which is computed inside the group",
                line=op.line,
                fixes=(f"leave '{inner.name}' out of the group",),
            )
        if op.kind == "all_gather" and any(user in body for user in program.users(op.name)):
            raise ScheduleError(
                "SCHEDULE_WRONG_OPERATION",
                f"fuse: '{op.name}' is gathered and then read inside the group",
                line=op.line,
                fixes=(
                    f"reorder('{op.name}', after=...) first, so that its readers run on slices",
                ),
            )
