"""The annotated program: line, operation, per-rank type, layout, and bytes communicated."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxcc._compat import SourceLine
from jaxcc._version import __version__
from jaxcc.layout._explain import by_rank_text
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._groups import group_text
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._relation import layout_seen
from jaxcc.layout._rules import shape_rule_of
from jaxcc.layout._traffic import Traffic, bytes_given, size_text, total, traffic_text
from jaxcc.layout._values import Held, type_text

_SILENT = frozenset({"pvary", "name", "copy", "stop_gradient", "reduced_vary_cast"})


@dataclass(frozen=True)
class ReportLine:
    """One operation of a checked program.

    Attributes:
      source: the user's line.
      op: the operation, or the library function that it is a part of.
      type: per-rank dtype and shape of the result.
      layout: the result's layout over each axis.
      bytes: what one rank gives to collectives in it; 0 for what does not communicate.
    """

    source: SourceLine | None
    op: str
    type: str
    layout: str
    bytes: int = 0


def type_texts(values: Iterable[Any]) -> tuple[str, ...]:
    """The types of values as JAX prints them: `f32[4,8]`."""
    return tuple(type_text(Slot(tuple(x.shape), x.dtype)) for x in values)


@dataclass(frozen=True)
class ReportSource:
    """What a report shows of a walk; the text is made when somebody reads it.

    Attributes:
      steps: the program at n.
      held: what the walk found of its values.
      sizes: ranks along each axis.
    """

    steps: Sequence[Step] = ()
    held: Mapping[Slot, Held] = field(default_factory=dict[Slot, Held])
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])

    def lines(self) -> tuple[ReportLine, ...]:
        """The program, a line for each operation that a reader cares about."""
        return tuple(line for step in self.steps if (line := self._line(step)) is not None)

    def layout(self, slot: Slot) -> LayoutMap | str:
        """The layout of a value, or a short text where no layout says it."""
        relation = self.held[slot].relation
        if relation is None:
            return "refused"
        seen = layout_seen(relation, tuple(self.sizes))
        return by_rank_text(relation, seen)

    def _line(self, step: Step) -> ReportLine | None:
        """The line of a step, or None for one that only helps JAX."""
        if step.op in _SILENT or not step.results or step.results[0] not in self.held:
            return None
        result = step.results[0]
        if shape_rule_of(step.op) is not None and not result.shape:
            return None
        shown = self.layout(result)
        layout = shown.describe() if isinstance(shown, LayoutMap) else shown
        return ReportLine(step.line, step.shown, type_text(result), layout, bytes_given(step.eqn))


@dataclass(frozen=True)
class LayoutReport:
    """A program that the checker accepts; printing it shows the program with its layouts.

    Attributes:
      sizes: the group sizes for which the promise was shown.
      in_layouts: for each leaf of the arguments.
      out_layouts: for each leaf of the result.
      check_vma: the flag under which the program was traced and has to run.
      in_names: what messages call each leaf of the arguments.
      out_names: what messages call each leaf of the result.
      in_types, out_types: the whole type of each leaf, as JAX prints it.
      notes: what the promise excludes, for instance a Local input.
      proved: whether the promise was shown by proof; else the program was run.
      assumed: how many claims of `unsafe_assume` the proof leans on.
    """

    # Messages and help name what users import.
    __module__ = "jaxcc"

    sizes: tuple[Mapping[str, int], ...]
    in_layouts: tuple[LayoutMap, ...]
    out_layouts: tuple[LayoutMap, ...]
    check_vma: bool = True
    in_names: tuple[str, ...] = ()
    in_types: tuple[str, ...] = ()
    out_names: tuple[str, ...] = ()
    out_types: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    proved: bool = True
    assumed: int = 0
    source: ReportSource = field(default_factory=ReportSource, repr=False, compare=False)

    @functools.cached_property
    def lines(self) -> tuple[ReportLine, ...]:
        """The program, an operation a line."""
        return self.source.lines()

    @functools.cached_property
    def communication(self) -> tuple[Traffic, ...]:
        """What one rank gives to the collectives, for each kind of them and the axes they run
        over; those in loops count once for each turn.
        """
        return total(step.eqn for step in self.source.steps)

    def to_json(self) -> dict[str, Any]:
        """The report for other programs; keys are only ever added."""
        return {
            "jaxcc": __version__,
            "sizes": [dict(group) for group in self.sizes],
            "check_vma": self.check_vma,
            "arguments": [
                {"name": name, "type": of, "layout": layout.describe()}
                for name, of, layout in zip(
                    self.in_names, self.in_types, self.in_layouts, strict=True
                )
            ],
            "results": [
                {"name": name, "type": of, "layout": layout.describe()}
                for name, of, layout in zip(
                    self.out_names, self.out_types, self.out_layouts, strict=True
                )
            ],
            "proved": self.proved,
            "assumed": self.assumed,
            "lines": [
                {
                    "file": None if line.source is None else line.source.file,
                    "line": None if line.source is None else line.source.line,
                    "op": line.op,
                    "type": line.type,
                    "layout": line.layout,
                    "bytes": line.bytes,
                }
                for line in self.lines
            ],
            "communication": [
                {"op": one.kind, "axes": list(one.axes), "count": one.count, "bytes": one.bytes}
                for one in self.communication
            ],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        sizes = "; ".join(map(group_text, self.sizes))
        claim = "rank-invariant" if self.proved else "tested, not proved,"
        if self.assumed:
            claim += f", if what it assumes {self.assumed} times holds,"
        head = f"{claim} for {sizes} (check_vma={self.check_vma})"
        rows = [
            (name, "argument", of, layout.describe(), "")
            for name, of, layout in zip(self.in_names, self.in_types, self.in_layouts, strict=True)
        ]
        rows += [
            (_place(line.source), line.op, line.type, line.layout, size_text(line.bytes))
            for line in _merged(self.lines)
        ]
        rows += [
            (name, "", of, layout.describe(), "")
            for name, of, layout in zip(
                self.out_names, self.out_types, self.out_layouts, strict=True
            )
        ]
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([head, traffic_text(self.communication), *notes, *_table(rows)])


def _merged(lines: Sequence[ReportLine]) -> list[ReportLine]:
    """One line for a run of operations that one library function stands for."""
    out: list[ReportLine] = []
    for line in lines:
        same = out and (out[-1].source, out[-1].op) == (line.source, line.op)
        if same and not line.bytes and not out[-1].bytes:
            out.pop()
        out.append(line)
    return out


def _place(line: SourceLine | None) -> str:
    return "" if line is None else f"{Path(line.file).name}:{line.line}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = (
        [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    )
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
