"""Runs a flattened trace in NumPy for all ranks at once: an array's leading dimensions are the mesh
axes.

Floats are computed in f64 whatever their type, so that two ways to add up differ by less than any
mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from fuzzing.call import Array, Call, Unsupported
from fuzzing.operations import POINTWISE, RULES

from jaxcc import _compat
from jaxcc.layout._flatten import Program, Slot

_CALLS = frozenset(
    {"jit", "eval_jaxpr", "remat", "custom_jvp_call", "custom_vjp_call", "custom_lin"}
)
_TRIPS = 200


def held_as(dtype: Any) -> np.dtype[Any]:
    """The NumPy type that stands for a JAX one."""
    kind = np.dtype(dtype)
    return np.dtype(np.float64) if kind.kind in "fV" else kind


class Interpreter:
    """Interprets equations over `sizes`; what comes of an operation in `doubted` is doubtful."""

    def __init__(self, sizes: Mapping[str, int], doubted: Collection[str] = ()) -> None:
        self.sizes = dict(sizes)
        self.doubted = doubted
        self._doubt = False

    def run(self, program: Program, inputs: Sequence[Array]) -> tuple[dict[Slot, Array], set[Slot]]:
        """The value of every slot, and those that are NaN, overflowed, or rounded to either side of
        a jump, with all that comes from them."""
        values: dict[Slot, Array] = dict(zip(program.inputs, inputs, strict=True))
        doubtful: set[Slot] = set()
        for slot in program.consts:
            values[slot] = self._constant(slot.value)
        for step in program.steps:
            operands = [self._read(slot, values) for slot in step.operands]
            self._doubt = step.op in self.doubted or any(s in doubtful for s in step.operands)
            results = self._equation(
                step.op, step.params, operands, [(s.shape, s.dtype) for s in step.results]
            )
            values.update(zip(step.results, results, strict=True))
            if self._doubt:
                doubtful.update(step.results)
        for slot in program.outputs:
            values[slot] = self._read(slot, values)
        return values, doubtful

    def _read(self, slot: Slot, values: Mapping[Slot, Array]) -> Array:
        return values[slot] if slot in values else self._constant(slot.value)

    def _constant(self, value: Any) -> Array:
        array = np.asarray(value)
        array = array.astype(held_as(array.dtype))
        return np.broadcast_to(array, (*self.sizes.values(), *array.shape))

    def _equation(
        self, op: str, params: Mapping[str, Any], operands: Sequence[Array], types: Sequence[Any]
    ) -> list[Array]:
        if op in _CALLS:
            key = next(k for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params)
            return self._jaxpr(params[key], operands)
        if op in _CONTROL:
            return _CONTROL[op](self, params, operands)
        lead = tuple(self.sizes.values())
        with np.errstate(all="ignore"):
            if op in POINTWISE:
                function = POINTWISE[op]
                ones = (1,) * len(types[0][0])
                operands = [x.reshape(lead + ones) if x.ndim == len(lead) else x for x in operands]
                made = [np.asarray(function(*operands))]
            elif op in RULES:
                call = Call(params, self.sizes, len(lead), [t[0] for t in types])
                out = RULES[op](call, *operands)
                made = list(out) if isinstance(out, list) else [out]
            else:
                raise Unsupported(op)
        made = [
            np.broadcast_to(x, (*lead, *shape)).astype(held_as(dtype), copy=False)
            for x, (shape, dtype) in zip(made, types, strict=True)
        ]
        if not self._doubt:
            self._doubt = _jumps(op, operands, made) or _breaks(operands, made)
        return made

    def _jaxpr(self, jaxpr: Any, operands: Sequence[Array]) -> list[Array]:
        body = _compat.open_jaxpr(jaxpr)
        # custom_jvp_call and custom_vjp_call pass more than the function's own operands.
        scope: dict[Any, Array] = dict(zip(body.invars, operands, strict=False))
        for var, value in zip(body.constvars, _compat.jaxpr_consts(jaxpr), strict=True):
            scope[var] = self._constant(value)

        def read(atom: Any) -> Array:
            if isinstance(atom, _compat.Literal):
                literal: Any = atom
                return self._constant(np.asarray(literal.val, literal.aval.dtype))
            return scope[atom]

        for eqn in body.eqns:
            types = [(v.aval.shape, v.aval.dtype) for v in eqn.outvars]
            results = self._equation(
                _compat.op_name(eqn), eqn.params, [read(atom) for atom in eqn.invars], types
            )
            scope.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in body.outvars]

    # Control flow ---------------------------------------------------------------------------------

    def _scan(self, params: Mapping[str, Any], operands: Sequence[Array]) -> list[Array]:
        lead, length = len(self.sizes), int(params["length"])
        consts, carry, xs = _scan_parts(params, operands)
        ys: list[list[Array]] = []
        order = reversed(range(length)) if params["reverse"] else range(length)
        for k in order:
            made = self._jaxpr(params["jaxpr"], [*consts, *carry, *(x.take(k, lead) for x in xs)])
            carry = made[: len(carry)]
            ys.append(made[len(carry) :])
        if params["reverse"]:
            ys.reverse()
        if not ys:
            raise Unsupported("scan without steps")
        return [*carry, *(np.stack(column, lead) for column in zip(*ys, strict=True))]

    def _while(self, params: Mapping[str, Any], operands: Sequence[Array]) -> list[Array]:
        a, b = int(params["cond_nconsts"]), int(params["body_nconsts"])
        cond_consts, body_consts, carry = operands[:a], operands[a : a + b], list(operands[a + b :])
        for _ in range(_TRIPS):
            (going,) = self._jaxpr(params["cond_jaxpr"], [*cond_consts, *carry])
            if not going.any():
                return carry
            made = self._jaxpr(params["body_jaxpr"], [*body_consts, *carry])
            carry = [self._where(going, new, old) for new, old in zip(made, carry, strict=True)]
        raise Unsupported("a loop that does not end")

    def _cond(self, params: Mapping[str, Any], operands: Sequence[Array]) -> list[Array]:
        which, *rest = operands
        branches = params["branches"]
        which = np.clip(which.astype(int), 0, len(branches) - 1)
        if (which == which.flat[0]).all():
            return self._jaxpr(branches[int(which.flat[0])], rest)
        made = [self._jaxpr(branch, rest) for branch in branches]
        out = list(made[0])
        for k, results in enumerate(made[1:], 1):
            out = [self._where(which == k, new, old) for new, old in zip(results, out, strict=True)]
        return out

    def _where(self, which: Array, new: Array, old: Array) -> Array:
        return np.where(which.reshape(which.shape + (1,) * (new.ndim - which.ndim)), new, old)


_CONTROL: Mapping[str, Callable[..., list[Array]]] = {
    "scan": Interpreter._scan,
    "while": Interpreter._while,
    "cond": Interpreter._cond,
}


def _scan_parts(
    params: Mapping[str, Any], operands: Sequence[Array]
) -> tuple[list[Array], list[Array], list[Array]]:
    """Constants, carry and scanned operands, however the JAX version says which are which."""
    if "num_consts" in params:
        a, b = int(params["num_consts"]), int(params["num_carry"])
    else:
        a, b = (len(group.vals) for group in params["ft_in"].unpack()[:2])
    return list(operands[:a]), list(operands[a : a + b]), list(operands[a + b :])


def _breaks(operands: Sequence[Array], made: Sequence[Array]) -> bool:
    """A NaN, or an infinity that no operand has: the promise is about inputs that give neither."""
    infinite = False
    for x in made:
        if x.dtype.kind in "fc" and not np.isfinite(x).all():
            if np.isnan(x).any():
                return True
            infinite = True
    return infinite and all(np.isfinite(x).all() for x in operands if x.dtype.kind in "fc")


_COMPARES = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_STEPS = frozenset({"floor", "ceil"})


def _jumps(op: str, operands: Sequence[Array], made: Sequence[Array]) -> bool:
    """Whether rounding alone could have decided a result: near a jump, but not on it."""
    if not operands or operands[0].dtype.kind not in "fc":
        return False
    x = operands[0]
    if op in _COMPARES:
        gap = np.abs(x - operands[1])
    elif op in _STEPS or (op == "convert_element_type" and made[0].dtype.kind in "iu"):
        gap = np.abs(x - np.round(x))
    elif op == "round":
        gap = np.abs(x - np.floor(x) - 0.5)
    elif op == "rem":
        ratio = x / operands[1]
        gap = np.abs(ratio - np.round(ratio))
    elif op in ("sign", "convert_element_type") and made[0].dtype.kind in "fb":
        gap = np.abs(x) if op == "sign" or made[0].dtype.kind == "b" else np.ones(1)
    elif op in ("argmax", "argmin", "top_k", "sort"):
        ordered = np.sort(x, axis=None)
        gap = np.diff(ordered) if ordered.size > 1 else np.ones(1)
    else:
        return False
    with np.errstate(invalid="ignore"):
        return bool(((gap > 0) & (gap < 1e-6 * (1 + np.abs(x).max(initial=0)))).any())
