"""The C++ text of a tile function, the same for g++ and for CUDA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxcc import _compat
from jaxcc.codegen._elements import Element, constant, element_of
from jaxcc.codegen._graph import Constant, Graph, Input, Node, Value
from jaxcc.codegen._index import COUNTERS, IndexMap, Needs, operand_maps, unknown
from jaxcc.codegen._primitives import RULES, Call
from jaxcc.codegen._roles import OutRole, Role
from jaxcc.codegen._space import ELEMENT, ROW, TILE, Space
from jaxcc.layout import CodegenError

_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "max", "min": "min"}

_FLAT = """\
      const int64_t at = block, length = end - block;
{row}
{loop}"""

_ROWS = """\
      for (int64_t at = block, length; at < end; at += length) {{
{coordinates}
        const int64_t rest = {size} - c{last};
        length = rest < end - at ? rest : end - at;
{row}
{loop}
      }}"""

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
      end = jaxcc::block_end<Lanes>(block, t.end);
{rows}
{block}
    }}
  }}
}};
"""


class Writer:
    """Writes one tile function: statements of three levels, each in the graph's order."""

    def __init__(
        self, graph: Graph, needs: Needs, space: Space, inputs: Sequence[Role], ranks: int, op: str
    ) -> None:
        self._space = space
        self._ranks = ranks
        self._reduction = RULES[_REDUCTIONS[op]]
        self._names: dict[tuple[Value, IndexMap], str] = {}
        self._lines: tuple[list[str], list[str], list[str]] = ([], [], [])
        self._finish: list[str] = []
        self._operands = sum(role is not Role.SCALAR for role in inputs)
        for value, slot in zip(graph.inputs, _slots(inputs), strict=True):
            for n, index in enumerate(needs[value]):
                name = f"x{value.index}" + (f"_{n}" if n else "")
                self._load(value, index, name, inputs[value.index], slot)
        for number, node in enumerate(graph.nodes):
            for n, index in enumerate(needs[node]):
                self._compute(node, index, f"v{number}" + (f"_{n}" if n else ""))

    def epilogue(self, outputs: Sequence[Value], roles: Sequence[OutRole], rank: int) -> str:
        """The finished text, with `outputs` stored as `roles` say."""
        for number, (value, role) in enumerate(zip(outputs, roles, strict=True)):
            self._store(value, tuple(range(rank)), number, role)
        tile, row, element = self._lines
        loop = _LOOP.format(body=_indent(element, 2)).splitlines()
        sizes = self._space.sizes
        if not sizes:
            rows = _FLAT.format(row=_indent(row, 6), loop=_indent(loop, 6))
        else:
            rows = _ROWS.format(
                coordinates=_indent(_coordinates(sizes), 8),
                size=sizes[-1],
                last=len(sizes),
                row=_indent(row, 8),
                loop=_indent(loop, 8),
            )
        text = _EPILOGUE.format(tile=_indent(tile, 4), rows=rows, block=_indent(self._finish, 6))
        return "".join(f"{line}\n" for line in text.splitlines() if line)

    def _define(self, value: Value, index: IndexMap, name: str, text: str) -> None:
        self._names[value, index] = name
        compute = element_of(value.dtype).compute
        self._lines[self._space.level(index)].append(f"const {compute} {name} = {text};")

    def _load(self, value: Input, index: IndexMap, name: str, role: Role, slot: str) -> None:
        if not self._space.holds(index):
            raise CodegenError(
                "CODEGEN_BROADCAST",
                f"input {value.index} is repeated along a dimension of the result",
                because="the kernel serves tensors of any shape, with operands of the same",
                fixes=("generate a kernel for one shape",),
            )
        if role is Role.SLICE and not self._moves_with_result(index):
            raise CodegenError(
                "CODEGEN_BROADCAST",
                f"input {value.index} is sliced and repeated along a dimension of the result",
                because="a rank has only its own block of it",
                fixes=("give the whole array to the kernel (Role.WHOLE)",),
            )
        element = element_of(value.dtype)
        owners = [f"t.buffers[{r}]" for r in range(self._ranks)] if role is Role.REDUCE else ["own"]
        items = [
            element.load.format(
                self._item(f"{owner}[{slot}]", element, index, role, f"{name}_at{r}")
            )
            for r, owner in enumerate(owners)
        ]
        text = items[0]
        for item in items[1:]:
            text = self._combine(text, item, element)
        self._define(value, index, name, element.round.format(text) if len(items) > 1 else text)

    def _combine(self, a: str, b: str, element: Element) -> str:
        text = self._reduction(Call((a, b), (element, element), element, {}))
        if text is None:
            raise CodegenError(
                "CODEGEN_DTYPE",
                f"elements of dtype {element.dtype} cannot be reduced over the ranks in this way",
                fixes=("cast to a number with x.astype(jnp.int32) before the collective",),
            )
        return text

    def _moves_with_result(self, index: IndexMap) -> bool:
        return self._space.is_identity(index) and self._space.level(index) == ELEMENT

    def _item(self, buffer: str, element: Element, index: IndexMap, role: Role, name: str) -> str:
        """One element of a buffer; if it moves with `i`, its pointer is set before the loop."""
        pointer, level = f"(const {element.storage}*){buffer}", self._space.level(index)
        if level == TILE:
            return f"({pointer})[0]"
        offset = self._offset(index, role is Role.SLICE)
        if level != ELEMENT:
            return f"({pointer})[{offset}]"
        self._lines[ROW].append(f"const {element.storage}* const {name} = {pointer} + {offset};")
        return f"{name}[i]"

    def _offset(self, index: IndexMap, in_block: bool) -> str:
        """Where the row's first element is, in the whole array or the owner's block."""
        if self._moves_with_result(index):
            return "(at - t.shift)" if in_block else "at"
        strides = self._space.strides(index)
        terms = [
            f"c{g} * {step}" if step > 1 else f"c{g}" for g, step in enumerate(strides) if step
        ]
        return " + ".join(terms)

    def _count(self, node: Node, index: IndexMap, name: str) -> None:
        """Defines a value that says where it stands."""
        if self._space.shape is None:
            raise unknown(node, "it counts along a shape, and the kernel serves tensors of any")
        op = _compat.op_name(node.eqn)
        counted = COUNTERS[op](node, index)
        level = self._space.level(counted)
        at = "0" if level == TILE else self._offset(counted, in_block=False)
        if level == ELEMENT:
            at = f"{at} + i"
        wide = math.prod(self._space.shape) > 2**31
        element = element_of(node.dtype, node.line)
        if op == "iota":
            # Vector instructions convert integers of 32 bits.
            text = f"({element.compute}){'' if wide else '(int32_t)'}({at})"
        elif node.output == 0:
            text = f"(uint32_t)((uint64_t)({at}) >> 32)" if wide else "0"
        else:
            text = f"(uint32_t)({at})"
        self._define(node, index, name, element.round.format(text))

    def _compute(self, node: Node, index: IndexMap, name: str) -> None:
        args = [
            self._argument(arg, arg_index)
            for arg, arg_index in zip(node.args, operand_maps(node, index), strict=True)
        ]
        op = _compat.op_name(node.eqn)
        if op in COUNTERS:
            self._count(node, index, name)
            return
        rule = RULES.get(op)
        if rule is None:  # it only moves
            (self._names[node, index],) = args
            return
        element = element_of(node.dtype, node.line)
        if op == "div" and (inverse := _inverse(node.args[1], element)):
            rule, args[1] = RULES["mul"], inverse
        elements = tuple(element_of(arg.dtype) for arg in node.args)
        text = rule(Call(tuple(args), elements, element, node.eqn.params, node.output))
        if text is None:
            raise unknown(node, f"it has no form with these parameters for {element.dtype}")
        self._define(node, index, name, element.round.format(text))

    def _argument(self, value: Value, index: IndexMap) -> str:
        if isinstance(value, Constant):
            return constant(value.value, element_of(value.dtype))
        return self._names[value, index]

    def _store(self, value: Value, index: IndexMap, number: int, role: OutRole) -> None:
        element = element_of(value.dtype)
        name, slot, storage = f"y{number}", f"t.first_result + {number}", element.storage
        text = element.store.format(self._argument(value, index))
        tile, row, loop = self._lines
        if role is OutRole.SLICE:
            row.append(f"{storage}* const {name} = ({storage}*)own[{slot}] + (at - t.shift);")
            loop.append(f"{name}[i] = {text};")
            return
        gather = f"jaxcc::Gather<{storage}, {self._ranks}, Lanes::kDirect>"
        tile.append(f"{gather} {name}_all(t, {slot}, {self._operands});")
        row.append(f"const auto {name} = {name}_all.run(block, at);")
        loop.append(f"{name}.put(i, {text});")
        self._finish.append(f"{name}_all.finish(block, end);")


def _inverse(divisor: Value, element: Element) -> str | None:
    """The reciprocal of a divisor that is a known number. XLA multiplies by it: a kernel that did
    not would differ from the unfused program in the last bit.
    """
    if not isinstance(divisor, Constant) or element.kind != "float" or element.is_half:
        return None
    kind = np.dtype(element.dtype).type
    with np.errstate(all="ignore"):
        inverse = kind(1) / kind(divisor.value)
    normal = np.isfinite(inverse) and abs(inverse) >= np.finfo(kind).tiny
    return constant(inverse, element) if normal else None


def _slots(roles: Sequence[Role]) -> list[str]:
    """Each input's place in a rank's list of buffers: scalars first, then a tensor's operands."""
    scalars = operands = 0
    slots: list[str] = []
    for role in roles:
        if role is Role.SCALAR:
            slots.append(str(scalars))
            scalars += 1
        else:
            slots.append(f"t.first_operand + {operands}")
            operands += 1
    return slots


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
