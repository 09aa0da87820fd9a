"""Which of an update's values are computed when: by kernels in each phase, by XLA between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxcc.optim._values import (
    FILL,
    LITERAL,
    MEAN,
    PARAM,
    POINTWISE,
    REDUCE,
    SLOT,
    SOURCES,
    Value,
    parameters_text,
)


@dataclass(frozen=True)
class Work:
    """What is computed for one parameter in one phase.

    Attributes:
      leaf: which parameter.
      gather: what every rank gets all of.
      slices: what each rank keeps its slice of.
      totals: reductions of what is computed, which every rank gets.
      sources: the arrays that are read: the mean gradient, whole ones, slices.
      numbers: the numbers that are read.
      roles: for each source MEAN, PARAM (any whole array) or SLOT (any slice).
      free: for each source whether nothing reads it afterwards.
      text: equal for works that compute alike.
    """

    leaf: int
    gather: Value | None
    slices: tuple[Value, ...]
    totals: tuple[Value, ...]
    sources: tuple[Value, ...]
    numbers: tuple[Value, ...]
    roles: tuple[str, ...]
    free: tuple[bool, ...]
    text: str

    @property
    def targets(self) -> tuple[Value, ...]:
        """What its elements are computed for."""
        whole = () if self.gather is None else (self.gather,)
        return (*whole, *self.slices, *(v.inputs[0] for v in self.totals))

    @property
    def communicates(self) -> bool:
        return self.gather is not None or MEAN in self.roles


@dataclass(frozen=True)
class Phase:
    """`kernels`: works that communicate, those of one text together. `local`: works on slices.
    `reductions`: numbers that come next, with how each is computed from slices.
    """

    kernels: tuple[tuple[Work, ...], ...]
    local: tuple[Work, ...]
    reductions: Mapping[Value, Work]


@dataclass(frozen=True)
class Outputs:
    """What the traced update returns: for each parameter, and for each array of the state, which
    is a slot of a parameter or shared by all ranks.
    """

    params: Sequence[Value]
    slots: Mapping[int, Value]
    shared: Mapping[int, Value]

    def all(self) -> Iterable[Value]:
        return (*self.params, *self.slots.values(), *self.shared.values())


@dataclass(frozen=True)
class Plan:
    """`phases`, the values that XLA computes between them in order, and works on whole arrays."""

    phases: tuple[Phase, ...]
    shared: tuple[Value, ...]
    whole: Mapping[Value, Work]


def plan(made: Sequence[Value], outputs: Outputs, *, replaces_params: bool) -> Plan:
    """The plan for what `outputs` need.

    Args:
      made: all values, each after its inputs.
      outputs: what is wanted.
      replaces_params: the result of each parameter may take its place.
    """
    live = _live(made, outputs.all())
    phases = 1 + max((v.phase for v in live), default=0)
    kept = _kept(live, outputs)
    wanted_slots = [v for v in outputs.slots.values() if _is_computed(v)]
    emitted = dict.fromkeys([*kept, *wanted_slots])
    works: list[list[Work]] = []
    reductions: list[dict[Value, Work]] = []
    for phase in range(phases):
        held = {v for v in emitted if v.phase < phase}
        gathers = {n: v for n, v in enumerate(outputs.params) if v.sliced and v.phase == phase}
        slices: dict[int, list[Value]] = {}
        for v in emitted:
            if v.phase == phase and v.leaf is not None:
                slices.setdefault(v.leaf, []).append(v)
        reduced = [v for v in live if v.kind == REDUCE and v.phase == phase + 1]
        totals: dict[int, list[Value]] = {}
        for v in reduced:
            leaf = v.inputs[0].leaf
            if leaf is not None and _is_total(v):
                totals.setdefault(leaf, []).append(v)
        now = [
            _phase_work(leaf, gathers.get(leaf), slices.get(leaf, ()), held, totals.get(leaf, ()))
            for leaf in sorted({*gathers, *slices, *totals})
        ]
        works.append([work for work in now if work.targets])
        held |= {v for v in emitted if v.phase == phase}
        made_here = {v for work in now for v in work.totals}
        reductions.append({v: _reduction(v, held) for v in reduced if v not in made_here})
    whole = {v: _whole(v) for v in outputs.all() if v.leaf is not None and not v.sliced}
    passed = {v for v in outputs.all() if v.kind in SOURCES}
    later: set[Value] = passed | {s for one in whole.values() for s in one.sources}
    built: list[Phase] = []
    for phase in reversed(range(phases)):
        later |= {s for one in reductions[phase].values() for s in one.sources}
        now = [_freed(one, later, replaces_params) for one in works[phase]]
        later |= {s for one in now for s in one.sources}
        groups: dict[str, list[Work]] = {}
        for one in now:
            if one.communicates:
                groups.setdefault(one.text, []).append(one)
        local = tuple(one for one in now if not one.communicates)
        built.append(Phase(tuple(map(tuple, groups.values())), local, reductions[phase]))
    shared = tuple(v for v in live if v.leaf is None)
    return Plan(tuple(reversed(built)), shared, whole)


def _live(made: Sequence[Value], outputs: Iterable[Value]) -> list[Value]:
    """What the outputs depend on, in the order in which it can be computed."""
    needed = set(outputs)
    for v in reversed(made):
        if v in needed:
            needed.update(v.inputs)
    return [v for v in made if v in needed]


def _is_computed(v: Value) -> bool:
    return v.sliced and v.leaf is not None and v.kind != SLOT


def _kept(live: Sequence[Value], outputs: Outputs) -> list[Value]:
    """What later phases and reductions read slices of. All else they compute from inputs again."""
    kept = dict.fromkeys(
        x
        for v in live
        if v.kind == POINTWISE
        for x in v.inputs
        if x.leaf is not None and x.phase < v.phase and x.mean
    )
    known = {*kept, *(v for v in outputs.slots.values() if _is_computed(v))}
    for v in live:
        if v.kind == REDUCE and not _is_total(v):
            x = v.inputs[0]
            if not _is_at_hand(x, known):
                base = _base(x, known)
                known.add(base)
                kept[base] = None
    return list(kept)


def _is_total(v: Value) -> bool:
    """Whether a kernel can make the reduction along with what it computes."""
    return v.data in ("sum", "max", "min") and v.dtype != bool


def _is_at_hand(v: Value, known: Collection[Value]) -> bool:
    """Whether it can be computed from inputs and slices that are known."""
    if v in known or v.leaf is None or not v.mean:
        return True
    return v.kind == POINTWISE and all(_is_at_hand(x, known) for x in v.inputs)


def _base(v: Value, known: Collection[Value]) -> Value:
    """The value that `v` is a function of, and which is not one of a single other value."""
    while v.kind == POINTWISE and v not in known:
        read = {x for x in v.inputs if x.leaf is not None}
        if len(read) > 1:
            return v
        (v,) = read
    return v


def _phase_work(
    leaf: int,
    gather: Value | None,
    slices: Sequence[Value],
    held: Collection[Value],
    totals: Sequence[Value],
) -> Work:
    """The work with the totals that its kernel makes; of what does not communicate, which XLA
    computes, without: XLA reduces what it keeps.
    """
    work = _work(leaf, gather, slices, held, totals)
    return work if work.communicates else _work(leaf, gather, slices, held)


def _whole(v: Value) -> Work:
    assert v.leaf is not None
    return _work(v.leaf, v, (), ())


def _reduction(v: Value, held: Collection[Value]) -> Work:
    (x,) = v.inputs
    assert x.leaf is not None
    return _work(x.leaf, None, (x,), held)


def _work(
    leaf: int,
    gather: Value | None,
    slices: Sequence[Value],
    held: Collection[Value],
    totals: Sequence[Value] = (),
) -> Work:
    """How the targets are computed from inputs and from what is held of earlier phases."""
    sources: dict[Value, str] = {}
    numbers: dict[Value, str] = {}
    names: dict[Value, str] = {}
    lines: list[str] = []

    def name(v: Value) -> str:
        if v not in names:
            names[v] = _named(v)
        return names[v]

    def _named(v: Value) -> str:
        if v.kind == FILL:
            return f"all {name(v.inputs[0])}"
        if v.kind == LITERAL:
            return f"{v.dtype} {v.data!r}"
        if v.leaf is None and v.is_number:
            return numbers.setdefault(v, f"number {len(numbers)} {v.dtype}")
        if v in held or v.leaf is None or v.kind in SOURCES:
            role = SLOT if v in held else PARAM if v.leaf is None else v.kind
            sources[v] = role
            return f"{role} {len(sources)} {v.dtype} {v.data if role == MEAN else ''}"
        args = ", ".join([name(x) for x in v.inputs])
        lines.append(f"{v.dtype} {parameters_text(v.eqn)}({args})")
        return f"value {len(lines)}"

    targets = [name(v) for v in ((gather, *slices) if gather is not None else slices)]
    reduced = [f"{v.data} {v.dtype} {name(v.inputs[0])}" for v in totals]
    lines.append(f"{gather is not None} {targets} {reduced}")
    roles = tuple(sources.values())
    text = "\n".join(lines)
    free = (False,) * len(roles)
    made = tuple(slices), tuple(totals), tuple(sources), tuple(numbers)
    return Work(leaf, gather, *made, roles, free, text)


def _freed(work: Work, later: Collection[Value], replaces_params: bool) -> Work:
    free = tuple(
        v not in later and v.leaf is not None and (v.kind != PARAM or replaces_params)
        for v in work.sources
    )
    return replace(work, free=free, text=f"{work.text}\n{free}")
