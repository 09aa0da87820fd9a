"""An output against the layout that is declared for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxcc.layout._advice import after_the_sum, axes_text, constant_repairs, pending_repairs, times
from jaxcc.layout._constants import number_text
from jaxcc.layout._digits import PER_RANK, UNIFORM, Digit, Digits, count, normal, whole_dim
from jaxcc.layout._errors import Finding
from jaxcc.layout._flatten import Slot
from jaxcc.layout._layouts import Layout, LayoutMap, Local, Partial, Replicated, Sliced
from jaxcc.layout._relation import Relation, agrees, from_layout, layout_seen, same_scale
from jaxcc.layout._repair import Repair
from jaxcc.layout._rules import Refused
from jaxcc.layout._turns import require_straight
from jaxcc.layout._values import Held, Origin, described, type_text


def check_output(
    name: str,
    relation: Relation,
    whole: tuple[int, ...],
    declared: LayoutMap | None,
    sizes: Mapping[str, int],
    held: Held,
    slot: Slot,
) -> tuple[LayoutMap | None, tuple[Finding, ...]]:
    """The output's layout and what is wrong with it.

    Args:
      name: what messages call it.
      relation: its relation to the output of a group of one, of shape `whole`.
      declared: the layout it should have; None infers one.
      sizes: ranks along each axis.
      held: the value, for its history.
      slot: its per-rank type.
    """
    output = _Output(name, relation, sizes, held, slot)
    layout = declared if declared is not None else inferred(relation, sizes)
    if layout is None:
        return None, (output.finding("LAYOUT_RESULT", f"no layout says what {output.name} is"),)
    for axis in sizes:
        finding = output.against(axis, layout[axis])
        if finding is not None:
            return None, (finding,)
    finding = output.passed_on(layout) or output.indivisible(layout, whole)
    if finding is not None:
        return None, (finding,)
    stated = from_layout(_of_blocks(layout, relation), whole, sizes)
    if not agrees(replace(relation, partial={}, local=frozenset()), stated):
        return None, (output.unlike(layout, whole, declared is not None),)
    finding = output.scale(layout)
    return (layout, ()) if finding is None else (None, (finding,))


def inferred(relation: Relation, sizes: Mapping[str, int]) -> LayoutMap | None:
    """The layout of an output, if one says it."""
    found: dict[str, Layout] = {}
    for axis, digits in relation.ranks.items():
        if len(digits) != 1:
            return None
        found[axis] = Sliced(digits[0].dim)
    found |= {axis: Partial(op) for axis, op in relation.partial.items()}
    found |= {axis: Local for axis in (*relation.local, *relation.turned)}
    # Major axes of one dimension come first.
    order = sorted(
        sizes, key=lambda a: -relation.ranks[a][0].stride if a in relation.ranks else -math.inf
    )
    return LayoutMap(tuple((axis, found.get(axis, Replicated)) for axis in order))


def _of_blocks(layout: LayoutMap, relation: Relation) -> LayoutMap:
    """The layout, where a Local value that was passed on is some block of the whole."""
    block = {axis: Sliced(relation.ranks[axis][0].dim) for axis in relation.turned}
    return LayoutMap(
        tuple((axis, block.get(axis, one) if one == Local else one) for axis, one in layout.items_)
    )


def _walks(relation: Relation) -> str:
    """Where the elements of each dimension, and of each rank, are in the whole result."""
    parts = [
        f"along dimension {dim} it has {_parts(digits)}"
        for dim, digits in enumerate(relation.dims)
        if digits != whole_dim(dim, count(digits))
    ]
    parts += [f"the rank over '{a}' has {_parts(d)}" for a, d in relation.ranks.items()]
    return ", and ".join(parts)


def _parts(digits: Digits) -> str:
    return ", each of ".join(_one_digit(digit) for digit in digits) or "one element"


def _one_digit(digit: Digit) -> str:
    if digit.dim == UNIFORM:
        return f"{digit.size} copies"
    if digit.dim == PER_RANK:
        return f"{digit.size} ranks' own values"
    if digit.stride == 1:
        return f"{digit.size} neighbours of dimension {digit.dim}"
    return f"{digit.size} elements of dimension {digit.dim}, {digit.stride} apart"


class _Output:
    def __init__(
        self, name: str, relation: Relation, sizes: Mapping[str, int], held: Held, slot: Slot
    ) -> None:
        self.name = name
        self.relation = relation
        self.sizes = sizes
        self.held = held
        self.type = type_text(slot)
        self.dtype = slot.dtype

    def finding(
        self,
        code: str,
        what: str,
        *,
        origin: Origin | None = None,
        because: str = "",
        fixes: tuple[str, ...] = (),
        repairs: tuple[Repair, ...] = (),
    ) -> Finding:
        """A finding at the line that made the value what it is."""
        where = origin or self.held.placed or self.held.origin
        shown = layout_seen(self.relation, tuple(self.sizes))
        text = shown if isinstance(shown, str) else shown.describe()
        line = where.line or self.held.origin.line
        operand = f"{self.name}: {self.type} {text}, {described(where)}"
        fixes = (*(fix for repair in repairs for fix in repair.fixes), *fixes)
        return Finding(code, what, line, (operand,), because, fixes, repairs, self.name)

    def against(self, axis: str, declared: Layout) -> Finding | None:
        """What is wrong over one axis, apart from digits and scale."""
        relation = self.relation
        op = relation.partial.get(axis)
        if declared == Local:
            return None
        if axis in relation.local:
            return self.finding(
                "LAYOUT_RESULT",
                f"{self.name} is Local over '{axis}', and its layout says {declared!r}",
                because="ranks hold unrelated values",
                fixes=(f"reduce it over '{axis}', or declare it Local",),
            )
        if isinstance(declared, Partial):
            if op is not None and op != declared.op:
                return self.finding(
                    "LAYOUT_RESULT",
                    f"{self.name} is Partial({op}) over '{axis}', not {declared!r}",
                )
            if op is None and declared.op == "prod":
                return self.finding(
                    "LAYOUT_RESULT",
                    f"{self.name} is not Partial(prod) over '{axis}', as its layout says",
                    because="the product over the ranks would be a power of what each rank holds",
                )
            return None
        if op is not None:
            repairs = pending_repairs(relation, axis, op, self.sizes, "before it is returned")
            return self.finding(
                "LAYOUT_RESULT_PARTIAL",
                f"{self.name} is returned while it is still Partial({op}) over '{axis}'",
                because=(
                    f"each rank holds only its own term of the {op}; the layout says {declared!r}"
                    f"{after_the_sum(relation, repairs)}"
                ),
                repairs=repairs,
            )
        return None

    def passed_on(self, layout: LayoutMap) -> Finding | None:
        """What is wrong with a result of which ranks hold one another's blocks: only where it is
        Local nobody asks whose."""
        turned = {axis: one for axis, one in self.relation.turned.items() if layout[axis] != Local}
        try:
            require_straight(replace(self.relation, turned=turned), self.name)
        except Refused as refused:
            because = f"{refused.because}, and its layout is {layout.describe()}"
            return self.finding(refused.code, refused.what, because=because, fixes=refused.fixes)
        return None

    def indivisible(self, layout: LayoutMap, whole: tuple[int, ...]) -> Finding | None:
        """What is wrong with a result of which the ranks' blocks are not all."""
        for dim, size in enumerate(whole):
            axes = [axis for axis in layout if layout[axis] == Sliced(dim)]
            ranks = math.prod(self.sizes[axis] for axis in axes)
            if axes and size % ranks:
                return self.finding(
                    "LAYOUT_INDIVISIBLE",
                    f"dimension {dim} of {self.name} is {size} on one rank, which the {ranks} "
                    f"ranks of {', '.join(axes)} do not divide",
                    because=f"blocks of {size // ranks} leave {size % ranks} elements out",
                )
        return None

    def unlike(self, layout: LayoutMap, whole: tuple[int, ...], declared: bool) -> Finding:
        """What a result is whose digits are not those of `layout`."""
        said = layout.describe()
        found = inferred(self.relation, self.sizes)
        plain = replace(self.relation, partial={}, local=frozenset())
        if found is not None and agrees(plain, from_layout(found, whole, self.sizes)):
            is_ = found.describe()
            return self.finding(
                "LAYOUT_RESULT",
                f"{self.name} is {is_}, and its layout says {said}",
                fixes=(
                    f"declare {self.name} {_source_text(found)} in out_layouts",
                    *_moves(layout, found),
                ),
            )
        what = f"{self.name} is not what {said} says of a result of shape {whole}"
        if not declared:
            what = f"no layout says what {self.name} is, of shape {whole} on one rank"
        placed = self.held.placed or self.held.origin
        gathered = _misplaced(self.relation, whole) if "all_gather" in placed.how else None
        if gathered is not None:
            at, dim = gathered
            new = whole[at] == 1 and len(self.relation.dims[at]) == 1
            where = f"a new dimension {at}" if new else f"dimension {at}"
            own = dim - (new and at < dim)
            return self.finding(
                "LAYOUT_RESULT",
                what,
                because=f"the ranks' blocks of dimension {own} lie along {where}",
                fixes=(f"jax.lax.all_gather(..., axis={own}, tiled=True)",),
            )
        because = (
            f"its elements are in another order than the whole result's: {_walks(self.relation)}"
        )
        return self.finding("LAYOUT_RESULT", what, because=because)

    def scale(self, layout: LayoutMap) -> Finding | None:
        """A result has to equal that of a group of one."""
        scale = self.relation.scale
        counted = [
            axis
            for axis in layout
            if layout[axis] == Partial("sum") and axis not in self.relation.partial
        ]
        scale *= math.prod(self.sizes[axis] for axis in counted)
        if any(layout[axis] == Local for axis in layout) or math.isinf(scale):
            return None
        if same_scale(scale, 1.0, self.dtype):
            return None
        if math.isnan(scale):
            at_n, at_1 = (number_text(c) for c in self.relation.const or ("other", "numbers"))
            what = f"{self.name} is {at_n} on n ranks and {at_1} on one"
        else:
            what = f"{self.name} is {times(scale)} what a group of one returns"
        because = "".join(
            f"every rank along '{axis}' holds it, and as Partial(sum) it is added up"
            for axis in counted[:1]
        )
        return self.finding(
            "LAYOUT_SCALE",
            what,
            origin=self.held.scaled,
            because=because,
            repairs=self._scale_repairs(scale, counted),
        )

    def _scale_repairs(self, scale: float, counted: Sequence[str]) -> tuple[Repair, ...]:
        const = self.relation.const
        if const is not None and const[0] != const[1]:
            return constant_repairs(const, scale, self.sizes, 0)
        traced = Repair((), traced=True, last=True)
        for axis, op in self.relation.partial.items():
            if op == "sum" and same_scale(scale, self.sizes[axis]):
                fix = f"divide it by jax.lax.axis_size('{axis}')"
                return Repair((fix,), powers=((axis, -1),)), traced
        if counted and same_scale(self.relation.scale, 1.0):
            powers = tuple((axis, -1) for axis in counted)
            fixes = (
                f"divide it by jax.lax.axis_size({axes_text(counted)})",
                f"declare {self.name} Replicated over {', '.join(counted)} in out_layouts",
            )
            return (Repair(fixes, powers=powers),)
        return (traced,)


def _source_text(layout: LayoutMap) -> str:
    """The layout as a user writes it."""
    if all(one == Replicated for one in layout.values()):
        return "Replicated"
    return repr(layout[next(iter(layout))]) if len(layout) == 1 else repr(layout)


def _moves(wanted: LayoutMap, found: LayoutMap) -> tuple[str, ...]:
    """The collectives that make `wanted` of `found`, if each axis needs one at most."""
    fixes: list[str] = []
    for axis in wanted:
        want, have = wanted[axis], found[axis]
        if want == have or not isinstance(have, Sliced):
            continue
        if want == Replicated:
            call = f"jax.lax.all_gather(..., '{axis}', axis={have.dim}, tiled=True)"
            fixes.append(f"{call} before it is returned")
        elif isinstance(want, Sliced):
            dims = f"split_axis={want.dim}, concat_axis={have.dim}"
            fixes.append(f"jax.lax.all_to_all(..., '{axis}', {dims}, tiled=True)")
    return tuple(fixes)


def _misplaced(relation: Relation, whole: tuple[int, ...]) -> tuple[int, int] | None:
    """The dimension at which a gather put the leading digit of another one, and that other one."""
    for at, digits in enumerate(relation.dims):
        if not digits or digits[0].dim in (at, UNIFORM, PER_RANK):
            continue
        lead, dim = digits[0], digits[0].dim
        dims = list(relation.dims)
        dims[at] = digits[1:]
        dims[dim] = normal((lead, *dims[dim]))
        if dims == [whole_dim(d, size) for d, size in enumerate(whole)]:
            return at, dim
    return None
