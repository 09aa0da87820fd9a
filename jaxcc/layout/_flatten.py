"""A trace as one straight list of steps: calls that JAX only uses to group equations are opened.

A jitted function that is called twice has one jaxpr, so a jaxpr's variable does not name a value; a
`Slot` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxcc import _compat
from jaxcc._compat import SourceLine
from jaxcc.layout._nested import ENTER, LEAVE, opened
from jaxcc.layout._trace import Trace


@dataclass(eq=False, slots=True)
class Slot:
    """One value of one run of the program, by identity: an input, a constant, a literal or a
    result.

    Attributes:
      shape: per-rank shape.
      dtype: element type.
      value: the array or number, if it is a constant or a literal.
    """

    shape: tuple[int, ...]
    dtype: Any
    value: Any = None


# What messages call the two moves of a shard_map inside the function: how, and the result.
_MOVES: Mapping[str, tuple[str, str]] = {
    ENTER: ("sliced by the in_specs of shard_map", "what enters shard_map"),
    LEAVE: ("made by shard_map", "the result of shard_map"),
}


class Place(NamedTuple):
    """Where equations stand: the line and the name of the call that they are a part of, no name in
    the function itself; and the equations of all calls that they are in, outermost first."""

    line: SourceLine | None = None
    caller: str | None = None
    calls: tuple[Any, ...] = ()


@dataclass(eq=False, slots=True)
class Step:
    """One equation that computes, moves or communicates.

    Attributes:
      op: the primitive's name, the same in every JAX version.
      params: the primitive's parameters.
      operands: what it reads.
      results: what it makes.
      eqn: the equation itself.
      stands: where the equation stands.
      place: its place among the steps of the program; in a loop or a branch that of the loop, which
        of its bodies, and the place there.
    """

    op: str
    params: Mapping[str, Any]
    operands: tuple[Slot, ...]
    results: tuple[Slot, ...]
    eqn: Any
    stands: Place
    place: tuple[int, ...] = ()

    @property
    def of_gradient(self) -> bool:
        """Whether JAX made it, or the call that it is in, as a part of a backward pass."""
        return any(map(_compat.is_transposed, (*self.stands.calls, self.eqn)))

    # Nobody speaks of most steps: what messages say of one is made when they do.

    @property
    def line(self) -> SourceLine | None:
        """The user's line, or that of the call it is in."""
        return _compat.source_line(self.eqn) or self.stands.line

    @property
    def shown(self) -> str:
        """What messages call it: `op`, or the library function whose call it is a part of."""
        caller = self.stands.caller
        return self.op if caller is None or _compat.source_line(self.eqn) else caller

    @property
    def how(self) -> str:
        """How its results came about."""
        return _MOVES[self.op][0] if self.op in _MOVES else f"made by {self.shown}"

    @property
    def name(self) -> str:
        """What messages call its results."""
        return _MOVES[self.op][1] if self.op in _MOVES else f"the result of {self.shown}"


@dataclass
class Program:
    """The steps of a trace, with its inputs, constants and outputs as slots.

    `columns` are what positions were put together from, `left` what left a shard_map, and how.
    """

    steps: list[Step] = field(default_factory=list[Step])
    inputs: tuple[Slot, ...] = ()
    consts: list[Slot] = field(default_factory=list[Slot])
    outputs: tuple[Slot, ...] = ()
    slots: dict[Any, Slot] = field(default_factory=dict[Any, Slot])
    columns: dict[Slot, tuple[Slot, ...]] = field(default_factory=dict[Slot, tuple[Slot, ...]])
    left: dict[Slot, tuple[Slot, Any]] = field(default_factory=dict[Slot, tuple[Slot, Any]])


def flatten(trace: Trace) -> Program:
    """Opens every call of `trace`."""
    program = Program()
    scope = program.slots
    program.inputs = tuple(_define(var, scope) for var in trace.invars)
    for var, value in trace.consts.items():
        program.consts.append(_define(var, scope, value))
    _open(trace.eqns, scope, Place(), program)
    program.outputs = tuple(_read(atom, scope) for atom in trace.outvars)
    _number(program, ())
    return program


def flatten_body(jaxpr: Any, step: Step, number: int = 0) -> Program:
    """Opens every call of a jaxpr that `step` runs: the body of a loop, or branch `number`."""
    program = Program()
    body, scope = _compat.open_jaxpr(jaxpr), program.slots
    program.inputs = tuple(_define(var, scope) for var in body.invars)
    for var, value in zip(body.constvars, _compat.jaxpr_consts(jaxpr), strict=True):
        program.consts.append(_define(var, scope, value))
    # A body in the function itself is the user's own.
    caller = None if step.stands.caller is None else step.shown
    inside = Place(step.line, caller, (*step.stands.calls, step.eqn))
    _open(body.eqns, scope, inside, program)
    program.outputs = tuple(_read(atom, scope) for atom in body.outvars)
    _number(program, (*step.place, number))
    return program


def _number(program: Program, prefix: tuple[int, ...]) -> None:
    for index, step in enumerate(program.steps):
        step.place = (*prefix, index)


def _define(var: Any, scope: dict[Any, Slot], value: Any = None) -> Slot:
    aval = var.aval
    slot = Slot(tuple(getattr(aval, "shape", ())), getattr(aval, "dtype", None), value)
    scope[var] = slot
    return slot


def _read(atom: Any, scope: Mapping[Any, Slot]) -> Slot:
    if isinstance(atom, _compat.Literal):
        literal: Any = atom
        return Slot(tuple(literal.aval.shape), literal.aval.dtype, literal.val)
    return scope[atom]


def _open(eqns: Sequence[Any], scope: dict[Any, Slot], place: Place, program: Program) -> None:
    for eqn in eqns:
        op = _compat.op_name(eqn)
        if op == "shard_map":
            _open(opened(eqn), scope, place, program)
            continue
        operands = tuple([_read(atom, scope) for atom in eqn.invars])
        inner = _compat.called(eqn) if op in _compat.CALLING else None
        if inner is not None:
            jaxpr, given = inner
            within = _within(eqn, op, place)
            results = _open_call(jaxpr, [operands[i] for i in given], within, program)
            scope.update(zip(eqn.outvars, results, strict=True))
            continue
        if op == ENTER and program.left.get(operands[0], (None, None))[1] == eqn.params:
            # What the gradient keeps of a shard_map: every rank gets its own value back.
            scope[eqn.outvars[0]] = program.left[operands[0]][0]
            continue
        results = tuple([_define(var, scope) for var in eqn.outvars])
        if op == LEAVE and eqn.params["sure"]:
            program.left[results[0]] = operands[0], eqn.params
        elif op == "concatenate" and _are_columns(eqn, operands):
            program.columns[results[0]] = operands
        elif op == "gather" or op.startswith("scatter"):
            operand, positions, *updates = operands
            operands = (operand, *program.columns.get(positions, (positions,)), *updates)
        program.steps.append(Step(op, eqn.params, operands, results, eqn, place))


def _within(eqn: Any, op: str, place: Place) -> Place:
    """The place of the equations inside a call.

    Those in jnp's own jitted functions have no user frame: the call's line and name stand for them.
    """
    own = _compat.source_line(eqn)
    named = own is not None or place.caller is None
    name = str(eqn.params.get("name", op)) if named else place.caller
    return Place(own or place.line, name, (*place.calls, eqn))


def _are_columns(eqn: Any, operands: Sequence[Slot]) -> bool:
    """Whether a concatenation puts single columns side by side, as positions are made."""
    last = len(operands[0].shape) - 1
    return eqn.params["dimension"] == last and all(slot.shape[last] == 1 for slot in operands)


def _open_call(
    jaxpr: Any,
    operands: Sequence[Slot],
    place: Place,
    program: Program,
) -> list[Slot]:
    body = _compat.open_jaxpr(jaxpr)
    # custom_vjp_call and custom_jvp_call pass only their leading operands to the function itself.
    scope: dict[Any, Slot] = dict(zip(body.invars, operands, strict=False))
    for var, value in zip(body.constvars, _compat.jaxpr_consts(jaxpr), strict=True):
        program.consts.append(_define(var, scope, value))
    _open(body.eqns, scope, place, program)
    return [_read(atom, scope) for atom in body.outvars]
