"""The annotated program: line, operation, per-rank type, layout, and bytes communicated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxcc._compat import SourceLine
from jaxcc.layout._flatten import Slot, Step
from jaxcc.layout._layouts import LayoutMap
from jaxcc.layout._relation import layout_seen
from jaxcc.layout._rules import collective_of, shape_rule_of
from jaxcc.layout._values import Held, type_text


@dataclass(frozen=True)
class ReportLine:
    """One operation of a checked program.

    Attributes:
      source: the user's line.
      op: the operation, or the library function that it is a part of.
      type: per-rank dtype and shape of the result.
      layout: the result's layout over each axis.
      bytes: what one rank gives to a collective; 0 for what does not communicate.
    """

    source: SourceLine | None
    op: str
    type: str
    layout: str
    bytes: int = 0


def report_line(
    step: Step, held: Mapping[Slot, Held], sizes: Mapping[str, int]
) -> ReportLine | None:
    """The line of a step, or None for one that only helps JAX."""
    communicates = collective_of(step.op) is not None
    if not step.results or (shape_rule_of(step.op) is not None and not step.results[0].shape):
        return None
    if step.op in ("pvary", "name", "copy", "stop_gradient", "reduced_vary_cast"):
        return None
    value = held.get(step.results[0])
    if value is None:
        return None
    shown = "refused" if value.relation is None else layout_seen(value.relation, tuple(sizes))
    layout = shown.describe() if isinstance(shown, LayoutMap) else shown
    size = sum(_bytes(slot) for slot in step.operands) if communicates else 0
    return ReportLine(step.line, step.shown, type_text(step.results[0]), layout, size)


def _bytes(slot: Slot) -> int:
    return math.prod(slot.shape) * np.dtype(slot.dtype).itemsize


@dataclass(frozen=True)
class LayoutReport:
    """A program that the checker accepts; printing it shows the program with its layouts.

    Attributes:
      sizes: the group sizes for which the promise was shown.
      in_layouts: for each leaf of the arguments.
      out_layouts: for each leaf of the result.
      lines: the program, an operation a line.
      check_vma: the flag under which the program was traced and has to run.
      in_names: what messages call each leaf of the arguments.
      notes: what the promise excludes, for instance a Local input.
    """

    sizes: tuple[Mapping[str, int], ...]
    in_layouts: tuple[LayoutMap, ...]
    out_layouts: tuple[LayoutMap, ...]
    lines: tuple[ReportLine, ...]
    check_vma: bool = True
    in_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        sizes = "; ".join(
            ", ".join(f"{axis}={n}" for axis, n in group.items()) for group in self.sizes
        )
        head = f"rank-invariant for {sizes} (check_vma={self.check_vma})"
        rows = [
            (name, "argument", "", layout.describe(), "")
            for name, layout in zip(self.in_names, self.in_layouts, strict=True)
        ]
        rows += [
            (_place(line.source), line.op, line.type, line.layout, _size(line.bytes))
            for line in _merged(self.lines)
        ]
        rows += [
            (f"result {i}", "", "", layout.describe(), "")
            for i, layout in enumerate(self.out_layouts)
        ]
        return "\n".join([head, *(f"note: {note}" for note in self.notes), *_table(rows)])


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


def _size(count: int) -> str:
    if not count:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024  # pyright: ignore[reportAssignmentType]
    return f"{count:.4g} GiB"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = (
        [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    )
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
