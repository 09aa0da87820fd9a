"""The C++ text of a tile function, the same for g++ and for CUDA."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxcc import _compat
from jaxcc.codegen._elements import ELEMENTS, Element, constant, element_of
from jaxcc.codegen._graph import Constant, Graph, Input, Node, Value
from jaxcc.codegen._index import (
    COUNTERS,
    REDUCTIONS,
    IndexMap,
    Needs,
    operand_maps,
    unknown,
)
from jaxcc.codegen._primitives import RULES, Call
from jaxcc.codegen._roles import OutRole, Role
from jaxcc.codegen._space import ELEMENT, ROW, TILE, Space
from jaxcc.codegen._statements import Statements
from jaxcc.layout import CodegenError

# What reduces over the ranks: as XLA's all-reduces, or ("maximum", "minimum") as its reductions.
_REDUCED_BY = {
    "sum": "Sum",
    "prod": "Prod",
    "max": "RankMax",
    "min": "RankMin",
    "maximum": "Max",
    "minimum": "Min",
}

# A row's values that are kept must fit on a thread's stack, beside what XLA has there.
_MOST_KEPT = 1 << 18

_Place = tuple[Value, IndexMap]


class Writer:
    """Writes one tile function: statements in the graph's order, each as seldom as it may run."""

    def __init__(
        self, graph: Graph, needs: Needs, space: Space, inputs: Sequence[Role], ranks: int, op: str
    ) -> None:
        self._space = space
        self._ranks = ranks
        self._op = op
        self._text = Statements(space.sizes, _row_size(graph, needs, space))
        self._homes: dict[_Place, tuple[int, str]] = {}
        self._same: dict[_Place, _Place] = {}
        self._loads: dict[_Place, tuple[str, Role, str]] = {}
        self._here: set[tuple[_Place, int]] = set()
        self._operands = sum(role is not Role.SCALAR for role in inputs)
        for value, slot in zip(graph.inputs, _slots(inputs), strict=True):
            for n, index in enumerate(needs[value]):
                name = f"x{value.index}" + (f"_{n}" if n else "")
                self._loads[value, index] = (name, inputs[value.index], slot)
        for number, node in enumerate(graph.nodes):
            for n, index in enumerate(needs[node]):
                self._compute(node, index, f"v{number}" + (f"_{n}" if n else ""))

    @property
    def row(self) -> int:
        """How many elements must be in one tile."""
        return self._text.size or 1

    def epilogue(self, outputs: Sequence[Value], roles: Sequence[OutRole], rank: int) -> str:
        """The finished text, with `outputs` stored as `roles` say; of a total the node that
        reduces.
        """
        totals = [number for number, role in enumerate(roles) if role is OutRole.TOTAL]
        for number, (value, role) in enumerate(zip(outputs, roles, strict=True)):
            if role is OutRole.TOTAL:
                assert isinstance(value, Node)
                place = f"t, {totals.index(number)}"
                self._store_total(value, tuple(range(rank)), number, place)
            else:
                self._store(value, tuple(range(rank)), number, role)
        return self._text.text()

    def _define(self, place: _Place, number: int, name: str, text: str) -> None:
        """Names a value, which pass `number` computes."""
        self._homes[place] = (number, name)
        compute = element_of(place[0].dtype).compute
        self._text.add(self._level(place), number, f"const {compute} {name} = {text};")

    def _level(self, place: _Place) -> int:
        """What is computed from a row is so in each."""
        number, _ = self._homes[place]
        level = self._space.level(place[1])
        return ROW if number and level == TILE else level

    def _home(self, place: _Place) -> int:
        """The first pass that can compute a value."""
        place = self._same.get(place, place)
        return self._homes[place][0] if place in self._homes else 0

    def _use(self, value: Value, index: IndexMap, number: int) -> str:
        """A value as pass `number` reads it."""
        place = self._same.get((value, index), (value, index))
        value, _ = place
        if isinstance(value, Constant):
            return constant(value.value, element_of(value.dtype))
        if place not in self._homes:
            self._load(place, number)
        home, name = self._homes[place]
        level = self._level(place)
        if level == ELEMENT and home != number and (place, number) not in self._here:
            self._here.add((place, number))
            compute = element_of(value.dtype).compute
            array = self._text.kept(name, name, compute, home)
            self._text.add(ELEMENT, number, f"const {compute} {name} = {array}[i];")
        return name

    def _load(self, place: _Place, number: int) -> None:
        value, index = place
        assert isinstance(value, Input)
        name, role, slot = self._loads[place]
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
                self._item(f"{owner}[{slot}]", element, index, role, f"{name}_at{r}", number)
            )
            for r, owner in enumerate(owners)
        ]
        text = items[0]
        if len(items) > 1:
            text = element.round.format(self._over_ranks(items, element))
        # What does not move with the elements is read once, whichever pass asks first.
        moves = self._space.level(index) == ELEMENT
        self._define(place, number if moves else 0, name, text)

    def _over_ranks(self, items: Sequence[str], element: Element) -> str:
        if element.kind == "bool" and self._op in ("sum", "prod"):
            raise CodegenError(
                "CODEGEN_DTYPE",
                f"elements of dtype {element.dtype} cannot be reduced over the ranks in this way",
                fixes=("cast to a number with x.astype(jnp.int32) before the collective",),
            )
        function = f"jaxcc::over_ranks<jaxcc::{_REDUCED_BY[self._op]}, {element.compute}>"
        return f"{function}({', '.join(items)})"

    def _moves_with_result(self, index: IndexMap) -> bool:
        return self._space.is_identity(index) and self._space.level(index) == ELEMENT

    def _item(
        self,
        buffer: str,
        element: Element,
        index: IndexMap,
        role: Role,
        name: str,
        number: int,
    ) -> str:
        """One element of a buffer; if it moves with `i`, its pointer is set before the loop."""
        pointer, level = f"(const {element.storage}*){buffer}", self._space.level(index)
        if level == TILE:
            return f"({pointer})[0]"
        offset = self._offset(index, role is Role.SLICE)
        if level != ELEMENT:
            return f"({pointer})[{offset}]"
        line = f"const {element.storage}* const {name} = {pointer} + {offset};"
        self._text.add(ROW, number, line)
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
        self._define((node, index), 0, name, element.round.format(text))

    def _compute(self, node: Node, index: IndexMap, name: str) -> None:
        places = list(zip(node.args, operand_maps(node, index), strict=True))
        op = _compat.op_name(node.eqn)
        if op in COUNTERS:
            self._count(node, index, name)
            return
        if op in REDUCTIONS and _reduced_dims(node):
            self._reduce(node, index, places[0], name)
            return
        rule = RULES.get(op)
        if rule is None:  # it only moves
            (place,) = places
            self._same[node, index] = self._same.get(place, place)
            return
        number = max((self._home(place) for place in places), default=0)
        args = [self._use(*place, number) for place in places]
        element = element_of(node.dtype, node.line)
        if op == "div" and (inverse := _inverse(self._known(places[1]), element)):
            rule, args[1] = RULES["mul"], inverse
        elements = tuple(element_of(arg.dtype) for arg in node.args)
        text = rule(Call(tuple(args), elements, element, node.eqn.params, node.output))
        if text is None:
            raise unknown(node, f"it has no form with these parameters for {element.dtype}")
        self._define((node, index), number, name, element.round.format(text))

    def _known(self, place: _Place) -> Constant | None:
        """The number that a value is everywhere, where that is written in the program."""
        value, _ = place = self._same.get(place, place)
        if isinstance(value, Node) and _compat.op_name(value.eqn) == "convert_element_type":
            (source,) = value.args
            known = self._known((source, operand_maps(value, place[1])[0]))
            return known and Constant(np.asarray(known.value).astype(value.dtype), value.dtype)
        return value if isinstance(value, Constant) else None

    def _reduce(self, node: Node, index: IndexMap, place: _Place, name: str) -> None:
        """One number of each row: the pass that has its elements ends with it."""
        number = self._home(place)
        element = element_of(node.dtype, node.line)
        if element.kind == "bool":
            raise unknown(node, "rows of truth values are not reduced")
        reduced = self._use(*place, number)
        # A value may be read again in a later pass, too; a number has no name.
        own = reduced if reduced.isidentifier() else name
        array = self._text.kept(own, reduced, element.compute, number)
        function = REDUCTIONS[_compat.op_name(node.eqn)]
        text = f"({element.compute})jaxcc::reduce_block<{function}>({array}, length)"
        self._define((node, index), number + 1, name, element.round.format(text))

    def _store(self, value: Value, index: IndexMap, number: int, role: OutRole) -> None:
        element = element_of(value.dtype)
        name, slot, storage = f"y{number}", f"t.first_result + {number}", element.storage
        home = self._home((value, index))
        text = element.store.format(self._use(value, index, home))
        if role is OutRole.SLICE:
            line = f"{storage}* const {name} = ({storage}*)own[{slot}] + (at - t.shift);"
            self._text.add(ROW, home, line)
            self._text.add(ELEMENT, home, f"{name}[i] = {text};")
            return
        if role.sent:
            gathers = str(role is OutRole.SEND_GATHER).lower()
            send = f"jaxcc::Send<{storage}, {gathers}{self._block}>"
            self._put(name, f"{send} {name}_all(t, {slot});", home, text)
            return
        gather = f"jaxcc::Gather<{storage}, {self._ranks}, Lanes::kDirect{self._block}>"
        self._put(name, f"{gather} {name}_all(t, {slot}, {self._operands});", home, text)

    def _store_total(self, node: Node, index: IndexMap, number: int, place: str) -> None:
        """Result `number`, a total: `place` says which of the kernel's `totals` it is."""
        (value,) = node.args
        element = element_of(node.dtype, node.line)
        if element.kind == "bool":
            raise unknown(node, "no total of truth values is made")
        function = REDUCTIONS[_compat.op_name(node.eqn)]
        kind = f"jaxcc::Total<{element.compute}, {function}{self._block}>"
        home = self._home((value, index))
        text = self._use(value, index, home)
        self._put(f"y{number}", f"{kind} y{number}_all({place});", home, text)
        made = element.store.format(element.round.format(f"{kind}::of({place})"))
        self._text.totals += [
            f"const {element.storage} y{number} = {made};",
            "for (int32_t r = 0; r < t.ranks; ++r) {",
            f"  (({element.storage}*)t.buffers[r][t.first_result + {number}])[0] = y{number};",
            "}",
        ]

    @property
    def _block(self) -> str:
        """The template argument of what holds a block, if that is a row."""
        return f", {self.row}" if self.row > 1 else ""

    def _put(self, name: str, declared: str, home: int, text: str) -> None:
        """Hands each element to an object that takes runs of them."""
        self._text.tile.append(declared)
        self._text.add(ROW, home, f"const auto {name} = {name}_all.run(block, at);")
        self._text.add(ELEMENT, home, f"{name}.put(i, {text});")
        self._text.finish.append(f"{name}_all.finish(block, end);")


def _reduced_dims(node: Node) -> list[int]:
    """The dimensions that a reduction makes one element of several along."""
    (shape,) = (arg.shape for arg in node.args)
    return [d for d in node.eqn.params["axes"] if shape[d] != 1]


def _row_size(graph: Graph, needs: Needs, space: Space) -> int | None:
    """How many elements the rows have that nodes reduce; None if none does."""
    found: int | None = None
    for node in graph.nodes:
        if _compat.op_name(node.eqn) not in REDUCTIONS or not needs[node]:
            continue
        (shape,) = (arg.shape for arg in node.args)
        axes = _reduced_dims(node)
        if not axes:
            continue
        if not space.sizes or space.shape != shape:
            raise unknown(node, "it reduces all of an array whose slices ranks have")
        if set(axes) != {d for d in space.groups[-1] if shape[d] != 1}:
            raise unknown(
                node,
                f"it reduces dimensions {tuple(axes)}, and a kernel the last ones all together, "
                f"back to where an operand is repeated along some: here {space.groups[-1]}",
            )
        found = space.sizes[-1]
        if found * 8 > _MOST_KEPT:
            raise unknown(node, f"its rows of {found} elements are too long to be kept")
    return found


def _inverse(divisor: Constant | None, element: Element) -> str | None:
    """The reciprocal of a divisor that is a known number. XLA multiplies by it, of bfloat16 in
    float32: a kernel that divided would differ from the unfused program in the last bits.
    """
    if divisor is None or not element.is_float:
        return None
    work = ELEMENTS["float32"] if element.dtype == "bfloat16" else element
    kind = np.dtype(work.dtype).type
    with np.errstate(all="ignore"):
        return constant(kind(1) / kind(divisor.value), work)


def _slots(roles: Sequence[Role]) -> list[str]:
    """Each input's place in a rank's list of buffers: a tensor's scalars, or its operands."""
    scalars = operands = 0
    slots: list[str] = []
    for role in roles:
        if role is Role.SCALAR:
            slots.append(f"t.first_scalar + {scalars}")
            scalars += 1
        else:
            slots.append(f"t.first_operand + {operands}")
            operands += 1
    return slots
