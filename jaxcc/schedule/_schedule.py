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
from jaxcc.schedule._arguments import checked, checking
from jaxcc.schedule._compile import Compiled, compile_program
from jaxcc.schedule._saved import loaded, saved
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

    split = checking(verbs.split)
    reorder = checking(verbs.reorder)
    as_slice = checking(verbs.as_slice)
    fuse = checking(verbs.fuse)
    overlap = checking(verbs.overlap)
    dead = checking(verbs.dead)

    @cached_property
    def program(self) -> Program:
        """The program at the group's size."""
        return self._rewritten(self.source.program(self.source.sizes))

    @cached_property
    def layouts(self) -> dict[str, LayoutMap | str]:
        """The layout of each value of the program, a text where it is none that users can write."""
        program = self.program  # First, so that messages speak of the ranks that there are.
        traced = self._traced_whole
        whole = self._rewritten(traced)
        if not computes_the_same(traced, whole):
            raise ScheduleError(
                "SCHEDULE_CHANGES_RESULT",
                f"{self.steps[-1]} would change what {traced.name} computes",
                because="its results are no longer made by the same operations of the same values",
            )
        return layouts_of(self.source, program, whole)

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
        return self._longer((step,))

    def apply(self, steps: str | Iterable[Step]) -> Schedule:
        """The schedule with all of these steps, checked: the other way of `to_json` and `steps`.

        Steps name what they act on, so they apply at any group size that has room for them, and to
        other shapes.

        Args:
          steps: those of another schedule; or the text of `to_json`, which is only taken for the
            program that it was made for, on a mesh with the same axes. It may come from anyone: it
            is data, and no text in it is run.

        Raises:
          ScheduleError: SCHEDULE_FORMAT or SCHEDULE_VERB if the text is not one that this jaxcc
            reads, SCHEDULE_OTHER_PROGRAM if the program has changed since, SCHEDULE_ARGUMENT if a
            verb takes other arguments; or a step's condition is not met.
        """
        if not isinstance(steps, Iterable):
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"apply: {steps!r} is neither the steps of a schedule nor the text of to_json",
                fixes=("apply(other.steps), or apply(other.to_json())",),
            )
        if not isinstance(steps, str):
            return self._longer(tuple(map(checked, steps)))
        if self.steps:
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"apply: saved steps start from {self.source.name} itself, and this schedule has "
                f"{len(self.steps)} steps already",
                fixes=(f"{self.source.name}.schedule(...).apply(text)",),
            )
        return self._longer(loaded(steps, self._traced_whole))

    def to_json(self) -> str:
        """The steps as JSON for `apply`, with what they depend on of the program.

        That is its inputs, operations and results with their names, types and layouts, for a group
        of one; not numbers, the contents of captured arrays, or where its lines stand.
        """
        return saved(self._traced_whole, self.steps, self.source.sizes)

    def compile(
        self, backend: str = "auto", *, donate: Iterable[str] = (), mesh: Any = None
    ) -> Compiled:
        """The program as a function of global arrays.

        Args:
          backend: `host` runs fused operations in generated kernels between the CPU devices of this
            process; `xla` runs their parts one by one; `auto` is `host` where that can be, and says
            once what is lost where not.
          donate: names of inputs, or one name, whose buffers the call may take for its results.
          mesh: whose devices kernels run on, if not the mesh that the program was checked for: for
            `local` in a `shard_map` over more axes.

        Raises:
          BackendError: no such backend, or it cannot run here.
          CodegenError: `backend="host"` and a kernel cannot be generated or compiled.
          ScheduleError: `donate` names no input.
        """
        names = (donate,) if isinstance(donate, str) else donate
        if not isinstance(names, Iterable):
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"compile: donate={donate!r} is neither a name nor several",
                fixes=(f"name inputs: {', '.join(self.program.inputs)}",),
            )
        return compile_program(
            self.source,
            self.program,
            # Without steps it is the source, which was checked.
            self.layouts if self.steps else {},
            backend,
            tuple(names),
            mesh or self.source.mesh,
            scheduled=bool(self.steps),
        )

    def _longer(self, steps: tuple[Step, ...]) -> Schedule:
        longer = Schedule(self.source, (*self.steps, *steps))
        _ = longer.layouts
        return longer

    @cached_property
    def _traced_whole(self) -> Program:
        """The source on a group of one, which is the same whatever the group's size."""
        return self.source.program(self.source.whole)

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
