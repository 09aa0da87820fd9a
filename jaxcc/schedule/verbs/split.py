"""split: an all-reduce becomes a reduce-scatter and an all-gather."""

from __future__ import annotations

from dataclasses import replace

import jax

from jaxcc.layout import ScheduleError
from jaxcc.program import Op, Program, rename
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._find import find_kind


def split[S: Scheduled](schedule: S, name: str, *, dim: int | None = None) -> S:
    """Splits the all-reduce `name` into `name.scatter` and `name.gather`.

    Args:
      name: a sum over one mesh axis.
      dim: the dimension that is scattered; by default the first that the group's size divides.

    Rewrite:
      total = all_reduce(y)
      -->
      total.scatter = reduce_scatter(y, dim)
      total.gather = all_gather(total.scatter, dim)

    Raises:
      ScheduleError: there is no such all-reduce, it is not a sum over one axis, or the ranks do not
        divide `dim`.
    """
    op = find_kind(schedule.program, name, "split", "all_reduce")
    ranks = _ranks(schedule.program, op)
    shape = op.types[0].shape
    if dim is None:
        dim = next((d for d, size in enumerate(shape) if size and size % ranks == 0), None)
        if dim is None:
            raise ScheduleError(
                "SCHEDULE_INDIVISIBLE",
                f"split: no dimension of '{name}' {shape} is a multiple of its {ranks} ranks",
                line=op.line,
                fixes=("pad one dimension to a multiple of the group's size",),
            )
    dim = dim % len(shape) if -len(shape) <= dim < 0 else dim
    return schedule.then(Step("split", {"name": name, "dim": dim}))


def _ranks(program: Program, op: Op) -> int:
    """The group's size of an all-reduce that can be split."""
    axes = op.params["axes"]
    if op.params["op"] != "sum" or len(axes) != 1:
        raise ScheduleError(
            "SCHEDULE_WRONG_OPERATION",
            f"split: '{op.name}' is a {op.params['op']} over {', '.join(axes)}; "
            "only a sum over one axis can be scattered",
            line=op.line,
        )
    return program.sizes[axes[0]]


def _block(program: Program, op: Op, dim: int) -> jax.ShapeDtypeStruct:
    """What a rank holds of the all-reduce `op` if `dim` is scattered."""
    ranks = _ranks(program, op)
    (whole,) = op.types
    shape = list(whole.shape)
    if not 0 <= dim < len(shape):
        raise ScheduleError(
            "SCHEDULE_ARGUMENT",
            f"split: '{op.name}' has shape {whole.shape}, which has no dimension {dim}",
            line=op.line,
        )
    if shape[dim] % ranks:
        raise ScheduleError(
            "SCHEDULE_INDIVISIBLE",
            f"split: the {ranks} ranks do not divide dimension {dim} of '{op.name}' {whole.shape}",
            line=op.line,
        )
    shape[dim] //= ranks
    return jax.ShapeDtypeStruct(shape, whole.dtype)


@rewrite("split")
def _apply(program: Program, *, name: str, dim: int) -> Program:
    op = find_kind(program, name, "split", "all_reduce")
    block = _block(program, op, dim)
    params = {"axes": op.params["axes"], "dim": dim}
    scatter = replace(
        op,
        name=f"{name}.scatter",
        kind="reduce_scatter",
        outputs=(f"{name}.scatter",),
        types=(block,),
        params={**params, "op": "sum"},
    )
    gather = replace(
        op,
        name=f"{name}.gather",
        kind="all_gather",
        inputs=scatter.outputs,
        outputs=(f"{name}.gather",),
        params=params,
    )
    index = program.ops.index(op)
    after = rename(program.ops[index + 1 :], {name: gather.name})
    outputs = tuple(gather.name if x == name else x for x in program.outputs)
    return program.with_ops([*program.ops[:index], scatter, gather, *after], outputs=outputs)
