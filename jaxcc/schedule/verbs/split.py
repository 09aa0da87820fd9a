"""split: an all-reduce becomes a reduce-scatter and an all-gather, or a reduce and a broadcast."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import jax

from jaxcc.layout import ScheduleError
from jaxcc.program import Op, Program
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._broadcast import split_to_root
from jaxcc.schedule.verbs._find import find_kind

Policy = Literal["reduce-scatter", "reduce-broadcast"]


def split[S: Scheduled](
    schedule: S,
    name: str,
    *,
    dim: int | None = None,
    policy: Policy = "reduce-scatter",
    root: int = 0,
) -> S:
    """Splits the all-reduce `name` into `name.scatter` and `name.gather`, or into `name.reduce` and
    `name.broadcast`.

    Args:
      name: a sum over one mesh axis; with the second policy a maximum or minimum, too.
      dim: the dimension that is scattered; by default the first that the group's size divides.
      policy: `reduce-scatter`, where each rank gets a block, or `reduce-broadcast`, where the root
        gets the whole.
      root: the rank that gets it.

    Rewrite:
      total = all_reduce(y)
      -->
      total.scatter = reduce_scatter(y, dim)
      total.gather = all_gather(total.scatter, dim)
      or
      total.reduce = reduce(y, root)
      total.broadcast = broadcast(total.reduce, root)

    Raises:
      ScheduleError: there is no such all-reduce, it is not a sum over one axis, the ranks do not
        divide `dim`, there is no rank `root`, or an argument is another policy's.
    """
    _check_policy(dim, policy, root)
    if policy != "reduce-scatter":
        return schedule.then(Step("split", {"name": name, "policy": policy, "root": root}))
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


def _check_policy(dim: int | None, policy: Policy, root: int) -> None:
    what = ""
    if policy not in get_args(Policy):
        what = f"policy is {policy!r}; there are {', '.join(get_args(Policy))}"
    elif policy == "reduce-broadcast" and dim is not None:
        what = f"dim is {dim}, but a reduce to one rank slices no dimension"
    elif policy == "reduce-scatter" and root != 0:
        what = f"root is {root}, but a reduce-scatter has no root"
    if what:
        raise ScheduleError(
            "SCHEDULE_ARGUMENT",
            f"split: {what}",
            fixes=("policy='reduce-scatter' takes dim=, policy='reduce-broadcast' takes root=",),
        )


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


def _block(program: Program, op: Op, dim: int | None) -> jax.ShapeDtypeStruct:
    """What a rank holds of the all-reduce `op` if `dim` is scattered."""
    ranks = _ranks(program, op)
    (whole,) = op.types
    shape = list(whole.shape)
    if dim is None or not 0 <= dim < len(shape):
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
def _apply(
    program: Program,
    *,
    name: str,
    dim: int | None = None,
    policy: Policy = "reduce-scatter",
    root: int = 0,
) -> Program:
    _check_policy(dim, policy, root)
    if policy == "reduce-broadcast":
        return split_to_root(program, name, root)
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
    return program.with_instead(op, (scatter, gather))
