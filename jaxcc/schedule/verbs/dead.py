"""dead: a result that nobody reads is neither returned nor computed."""

from __future__ import annotations

import jax

from jaxcc.layout import ScheduleError
from jaxcc.program import Program
from jaxcc.schedule._step import Scheduled, Step, rewrite
from jaxcc.schedule.verbs._find import find

_SPREADING = ("all_gather", "broadcast")


def dead[S: Scheduled](schedule: S, *names: str) -> S:
    """States that nobody reads these results: each becomes None in the result's pytree, and what
    only it needed goes away.

    What other operations read of it stays computed. The results that are left, and their
    derivatives, are those of the source.

    Args:
      names: results; or values that are gathered or broadcast only to be returned.

    Rewrite:
      g = all_gather(new_m) ; out new_w ; out g
      -->
      out new_w

    Raises:
      ScheduleError: a name is no result, or that of a fused operation, or the only result. An input
        is none: one that nobody reads costs nothing.
    """
    for name in names:
        schedule = schedule.then(Step("dead", {"name": name}))
    return schedule


@rewrite("dead")
def _apply(program: Program, *, name: str) -> Program:
    gone = _results(program, name)
    kept = [index for index, out in enumerate(program.outputs) if out not in gone]
    if not kept:
        raise ScheduleError(
            "SCHEDULE_NOT_RESULT", f"dead: {program.name} would have no result but '{name}' left"
        )
    marks = [None if out in gone else True for out in program.outputs]
    return program.with_ops(
        program.ops,
        outputs=tuple(program.outputs[index] for index in kept),
        out_layouts=tuple(program.out_layouts[index] for index in kept),
        out_tree=jax.tree.structure(jax.tree.unflatten(program.out_tree, marks)),
        results=tuple(program.results[index] for index in kept),
    )


def _results(program: Program, name: str) -> set[str]:
    """The outputs that `name` is, or is spread to."""
    spread = [op.outputs[0] for op in program.users(name) if op.kind in _SPREADING]
    found = {value for value in (name, *spread) if value in program.outputs}
    for value in found:
        maker = program.producer(value)
        if maker is not None and maker.body:
            raise ScheduleError(
                "SCHEDULE_NOT_RESULT",
                f"dead: '{value}' is computed by the fused '{maker.name}'",
                line=maker.line,
                fixes=(f"dead('{name}') before the step that fuses '{maker.name}'",),
            )
    if found:
        return found
    results = ", ".join(map(str, program.outputs))
    if name in program.inputs:
        what = f"'{name}' is an input; one that nothing reads is passed, but costs nothing"
    else:
        what = f"'{find(program, name, 'dead').name}' is no result of {program.name}"
    raise ScheduleError("SCHEDULE_NOT_RESULT", f"dead: {what}; the results are {results}")
