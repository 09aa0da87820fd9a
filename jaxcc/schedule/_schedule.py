"""A schedule: a checked program and the steps that rewrite it. Immutable; every verb returns a new
one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxcc.layout import LayoutMap, ScheduleError
from jaxcc.program import CycleError, Program, computes_the_same, program_text
from jaxcc.schedule import verbs
from jaxcc.schedule._compile import Compiled, compile_program
from jaxcc.schedule._source import Source
from jaxcc.schedule._step import REWRITES, Step
from jaxcc.schedule._verify import describe, layouts_of


@dataclass(frozen=True, eq=False)
class Schedule:
    """The program of a typed function, and the steps taken so far.

    `print(schedule)` shows the program as it is after the last step. Every step is checked as a
    program of its own:
    a schedule computes what its source does.
    """

    __module__ = "jaxcc"

    source: Source
    steps: tuple[Step, ...] = field(default=())

    split = verbs.split
    reorder = verbs.reorder
    as_slice = verbs.as_slice
    fuse = verbs.fuse

    @cached_property
    def program(self) -> Program:
        """The program at the group's size."""
        return self._rewritten(self.source.program(self.source.sizes))

    @cached_property
    def layouts(self) -> dict[str, LayoutMap | str]:
        """The layout of each value of the program, a text where it is none that users can write."""
        traced = self.source.program(self.source.whole)
        whole = self._rewritten(traced)
        if not computes_the_same(traced, whole):
            raise ScheduleError(
                "SCHEDULE_CHANGES_RESULT",
                f"{self.steps[-1]} would change what {traced.name} computes",
                because="its results are no longer made by the same operations of the same values",
            )
        return layouts_of(self.source, self.program, whole)

    def __str__(self) -> str:
        return self.text()

    def text(self, *, lines: bool = True) -> str:
        """The program as text; `lines` adds where the user wrote each operation."""
        layouts = {value: describe(layout) for value, layout in self.layouts.items()}
        return program_text(self.program, layouts, lines=lines)

    def then(self, step: Step) -> Schedule:
        """The schedule with one more step, checked.

        Raises:
          ScheduleError: the step's condition is not met, or it would change the result.
        """
        longer = Schedule(self.source, (*self.steps, step))
        _ = longer.layouts
        return longer

    def compile(
        self, backend: str = "auto", *, donate: Iterable[str] = (), mesh: Any = None
    ) -> Compiled:
        """The program as a function of global arrays.

        Args:
          backend: `host` runs fused operations in generated kernels between the CPU devices of this
            process; `xla` runs their parts one by one; `auto` is `host` where that can be, and says
            once what is lost where not.
          donate: names of inputs whose buffers the call may take for its results.
          mesh: whose devices kernels run on, if not the mesh that the program was checked for: for
            `local` in a `shard_map` over more axes.

        Raises:
          BackendError: no such backend, or it cannot run here.
          CodegenError: `backend="host"` and a kernel cannot be generated or compiled.
          ScheduleError: `donate` names no input.
        """
        return compile_program(
            self.source,
            self.program,
            # Without steps it is the source, which was checked.
            self.layouts if self.steps else {},
            backend,
            tuple(donate),
            mesh or self.source.mesh,
            scheduled=bool(self.steps),
        )

    def _rewritten(self, program: Program) -> Program:
        """The traced program after all steps."""
        for step in self.steps:
            try:
                program = REWRITES[step.verb](program, **step.arguments)
            except CycleError as cycle:
                raise ScheduleError(
                    "SCHEDULE_CYCLE",
                    f"{step} would make operations wait for one another: {cycle}",
                    fixes=(
                        "name all operations that lie between the ones you fuse, or write `...`",
                    ),
                ) from None
        return program
