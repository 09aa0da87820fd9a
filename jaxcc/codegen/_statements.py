"""The statements of a tile function, by how often they run, and the function around them.

Where a row is reduced, its elements are walked in several passes: what a later pass needs of an
earlier one is kept for the length of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxcc.codegen._space import ELEMENT, TILE

_FLAT = """\
      const int64_t at = block, length = end - block;
{passes}"""

_ROWS = """\
      for (int64_t at = block, length; at < end; at += length) {{
{coordinates}
        const int64_t rest = {size} - c{last};
        length = rest < end - at ? rest : end - at;
{passes}
      }}"""

_WHOLE_ROWS = """\
      const int64_t at = block;
      constexpr int64_t length = {size};
{coordinates}
{passes}"""

_LOOP = """\
JAXCC_INDEPENDENT
for (int64_t i = lanes.first(); i < length; i += lanes.step()) {{
{body}
}}"""

_EPILOGUE = """\
struct Epilogue {{
  template <class Lanes>
  JAXCC_FN static void tile(const jaxcc_tile& t, const Lanes& lanes) {{
    void* const* const own = t.buffers[t.owner];
{tile}
    for (int64_t block = t.begin, end; block < t.end; block = end) {{
      end = {end};
{rows}
{block}
    }}
  }}
{total}
}};
"""

_TOTAL = """\
  JAXCC_FN static void total(const jaxcc_parts& t) {{
{body}
  }}"""


@dataclass
class Pass:
    """One walk through the elements: what comes before it, and what is done with each."""

    row: list[str] = field(default_factory=list[str])
    element: list[str] = field(default_factory=list[str])


class Statements:
    """The lines of a tile function, each appended in an order in which they can run.

    Attributes:
      tile: lines that run once.
      passes: those of each pass.
      finish: lines that run after each block of elements.
      totals: lines of the function that makes the totals of all parts.
      size: elements in a row if rows are reduced, else None: a block may then end anywhere.
    """

    def __init__(self, sizes: Sequence[int], size: int | None) -> None:
        self.tile: list[str] = []
        self.passes = [Pass()]
        self.finish: list[str] = []
        self.totals: list[str] = []
        self.size = size
        self._sizes = sizes
        self._kept: set[str] = set()

    def add(self, level: int, number: int, line: str) -> None:
        """A line of pass `number` that runs as often as `level` says."""
        while len(self.passes) <= number:
            self.passes.append(Pass())
        if level == TILE:
            self.tile.append(line)
        else:
            one = self.passes[number]
            (one.element if level == ELEMENT else one.row).append(line)

    def kept(self, name: str, text: str, compute: str, number: int) -> str:
        """The array that holds a row's values of `text`, which pass `number` can compute; `name`
        says which they are.
        """
        array = f"row_{name}"
        if array not in self._kept:
            self._kept.add(array)
            self.passes[number].row.append(f"alignas(64) {compute} {array}[{self.size}];")
            self.passes[number].element.append(f"{array}[i] = {text};")
        return array

    def text(self) -> str:
        """The whole struct."""
        lines: list[str] = []
        for one in self.passes:
            loop = _LOOP.format(body=_indent(one.element, 2)).splitlines() if one.element else []
            lines += [*one.row, *loop]
        end = "jaxcc::block_end<Lanes>(block, t.end)"
        coordinates = _coordinates(self._sizes)
        if self.size is not None:
            end = f"block + {self.size}"
            rows = _WHOLE_ROWS.format(
                size=self.size, coordinates=_indent(coordinates, 6), passes=_indent(lines, 6)
            )
        elif self._sizes:
            rows = _ROWS.format(
                coordinates=_indent(coordinates, 8),
                size=self._sizes[-1],
                last=len(self._sizes),
                passes=_indent(lines, 8),
            )
        else:
            rows = _FLAT.format(passes=_indent(lines, 6))
        total = _TOTAL.format(body=_indent(self.totals, 4))
        text = _EPILOGUE.format(
            tile=_indent(self.tile, 4),
            end=end,
            rows=rows,
            block=_indent(self.finish, 6),
            total=total,
        )
        return "".join(f"{line}\n" for line in text.splitlines() if line)


def _coordinates(sizes: Sequence[int]) -> list[str]:
    """The place c0, c1, ... of flat index `at`; `sizes` are those of all dims but the first."""
    lines: list[str] = []
    rest = "at"
    for dim in range(len(sizes), 0, -1):
        outer = f"c{dim - 1}" if dim == 1 else f"q{dim - 1}"
        size = sizes[dim - 1]
        lines.append(f"const int64_t c{dim} = {rest} % {size}, {outer} = {rest} / {size};")
        rest = outer
    return lines


def _indent(lines: Sequence[str], by: int) -> str:
    return "\n".join(" " * by + line for line in lines)
