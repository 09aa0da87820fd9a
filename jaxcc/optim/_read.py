"""Reads the jaxpr of an optimizer's update as values: what is done to elements, to numbers, and
which reductions lie between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc import _compat
from jaxcc.optim import _values as kinds
from jaxcc.optim._unsupported import unsupported
from jaxcc.optim._values import Run, Value, parameters_text
from jaxcc.schedule import POINTWISE

_RESHAPES = frozenset({"reshape", "squeeze", "broadcast_in_dim", "expand_dims"})

REDUCTIONS = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_and": "and",
    "reduce_or": "or",
}


class Reader:
    """Builds values, equal ones once; `made` has them in an order in which they can be computed."""

    def __init__(self) -> None:
        self.made: list[Value] = []
        self._known: dict[Any, Value] = {}
        self._runs: dict[Any, Run] = {}

    def source(self, kind: str, aval: Any, *, leaf: int | None = None, index: int = 0) -> Value:
        """An input: the mean gradient, a parameter, a slot of the state, or what ranks share."""
        sliced = kind in (kinds.MEAN, kinds.SLOT)
        v = Value(kind, tuple(aval.shape), aval.dtype, leaf=leaf, index=index)
        v.mean, v.sliced = kind == kinds.MEAN, sliced
        return self._add((kind, leaf, index), v)

    def read(self, jaxpr: Any, inputs: Sequence[Value], line: Any = None) -> list[Value]:
        """The results of a jaxpr for these inputs."""
        opened = _compat.open_jaxpr(jaxpr)
        env: dict[Any, Value] = dict(zip(opened.invars, inputs, strict=True))
        for var, const in zip(opened.constvars, _compat.jaxpr_consts(jaxpr), strict=True):
            env[var] = self._constant(const)
        for eqn in opened.eqns:
            given = [self._atom(atom, env) for atom in eqn.invars]
            results = self._eqn(eqn, given, _compat.source_line(eqn) or line)
            env.update(zip(eqn.outvars, results, strict=True))
        return [self._atom(atom, env) for atom in opened.outvars]

    def trace(self, f: Callable[..., Any], inputs: Sequence[Value]) -> Value:
        """The value of `f(*inputs)`, for what the trace itself does not hold."""
        avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in inputs]
        with _compat.outside_all_traces():
            jaxpr = jax.make_jaxpr(f)(*avals)
        (result,) = self.read(jaxpr, inputs)
        return result

    def number(self, v: Value) -> Value:
        """A value with one element as a number that all ranks hold."""
        if v.leaf is not None:
            return self.reduce("or" if v.dtype == bool else "sum", v)
        if v.shape == ():
            return v
        if v.kind == kinds.FILL:
            return v.inputs[0]
        return self.outside(lambda x: [jnp.reshape(x, ())], (v,), [((), v.dtype)], "number")[0]

    def outside(
        self,
        function: Callable[..., Sequence[Any]],
        inputs: Sequence[Value],
        types: Sequence[tuple[tuple[int, ...], Any]],
        key: Any,
    ) -> list[Value]:
        """What XLA computes on every rank alike; equal for equal keys and inputs."""
        ids = tuple(map(id, inputs))
        run = self._runs.setdefault((key, ids), Run(function))
        phase = max((x.phase for x in inputs), default=0)
        return [
            self._add(
                (run, k),
                Value(kinds.OUTSIDE, shape, dtype, phase, None, tuple(inputs), index=k, data=run),
            )
            for k, (shape, dtype) in enumerate(types)
        ]

    def reduce(self, kind: str, v: Value) -> Value:
        """The number that a leaf value, or a repeated number, is reduced to."""
        if v.kind == kinds.FILL:
            size = v.size
            repeated = {"sum": lambda x: [x * size], "prod": lambda x: [x**size]}
            once = repeated.get(kind, lambda x: [x])
            return self.outside(once, v.inputs, [((), v.dtype)], ("repeat", kind, size))[0]
        if (choice := self._choice(v)) is not None:
            which, cases = choice
            parts = [self.reduce(kind, case) for case in cases]
            pick: Any = lambda w, *xs: [lax.select_n(w, *xs)]  # noqa: E731
            return self.outside(pick, (which, *parts), [((), v.dtype)], "pick")[0]
        made = Value(kinds.REDUCE, (), v.dtype, v.phase + 1, None, (v,), data=kind)
        return self._add((kinds.REDUCE, kind, id(v)), made)

    def _choice(self, v: Value) -> tuple[Value, list[Value]] | None:
        """A number and the values that it chooses between, if `v` is one of them, or a function of
        one alone: the reduction then need not wait for the number.
        """
        if v.kind != kinds.POINTWISE:
            return None
        which, *cases = v.inputs
        if _compat.op_name(v.eqn) == "select_n" and which.leaf is None:
            if which.is_number or which.kind == kinds.FILL:
                return self.number(which), [self._filled(x, v) for x in cases]
            return None
        read = {x for x in v.inputs if x.leaf is not None}
        if len(read) != 1 or (inner := self._choice(*read)) is None:
            return None
        which, cases = inner
        (x,) = read
        swapped = [[case if one is x else one for one in v.inputs] for case in cases]
        return which, [self._filled(self._pointwise(v.eqn, s, None, v.shape), v) for s in swapped]

    def _filled(self, x: Value, like: Value) -> Value:
        return x if x.leaf is not None or x.kind == kinds.FILL else self._fill(x, like.shape)

    def _add(self, key: Any, v: Value) -> Value:
        if key not in self._known:
            v.mean = v.mean or any(x.mean for x in v.inputs if x.leaf is not None)
            v.sliced = v.sliced or any(x.sliced for x in v.inputs if x.leaf is not None)
            self._known[key] = v
            self.made.append(v)
        return self._known[key]

    def _atom(self, atom: Any, env: dict[Any, Value]) -> Value:
        if not isinstance(atom, _compat.Literal):
            return env[atom]
        aval: Any = atom.aval
        key = (kinds.LITERAL, str(aval.dtype), repr(atom.val))
        v = Value(kinds.LITERAL, (), aval.dtype, data=_compat.literal_value(atom))
        return self._add(key, v)

    def _constant(self, const: Any) -> Value:
        return self.outside(lambda: [const], (), [(jnp.shape(const), const.dtype)], id(const))[0]

    def _fill(self, x: Value, shape: tuple[int, ...]) -> Value:
        number = self.number(x)
        made = Value(kinds.FILL, shape, x.dtype, number.phase, None, (number,))
        return self._add((kinds.FILL, id(number), shape), made)

    def _eqn(self, eqn: Any, given: list[Value], line: Any) -> list[Value]:
        name = _compat.op_name(eqn)
        out: Any = eqn.outvars[0].aval if eqn.outvars else None
        if name in _compat.IDENTITIES or (name == "integer_pow" and eqn.params["y"] == 1):
            return given
        if (call := _compat.called(eqn)) is not None:
            inner, numbers = call
            return self.read(inner, [given[i] for i in numbers], line)
        if all(x.leaf is None for x in given):
            return self._shared(eqn, given, name, out)
        if name == "cond":
            return self._cond(eqn, given, line)
        if name in _RESHAPES and given[0].size == out.size:
            return given[:1]  # the flat order stays
        if name in POINTWISE:
            return [self._pointwise(eqn, given, line, tuple(out.shape))]
        if name in REDUCTIONS and _is_full(eqn):
            number = self.reduce(REDUCTIONS[name], given[0])
            return [self._reshaped(number, tuple(out.shape))]
        if name == "dot_general" and _is_inner_product(eqn):
            product = self.trace(lambda a, b: a.astype(out.dtype) * b.astype(out.dtype), given)
            return [self._reshaped(self.reduce("sum", product), tuple(out.shape))]
        if all(x.size == 1 for x in given if x.leaf is not None):
            numbers = [x if x.leaf is None else self.number(x) for x in given]
            shaped = [
                self._reshaped(x, tuple(atom.aval.shape)) if x.size == 1 else x
                for x, atom in zip(numbers, eqn.invars, strict=True)
            ]
            return self._shared(eqn, shaped, name, out)
        raise unsupported(
            f"{name} does not treat every element of a parameter by itself",
            line,
            because="a rank holds only a slice of each state array, and of the flat gradient",
        )

    def _reshaped(self, v: Value, shape: tuple[int, ...]) -> Value:
        if v.shape == shape:
            return v
        key = ("reshape", shape)
        return self.outside(lambda x: [jnp.reshape(x, shape)], (v,), [(shape, v.dtype)], key)[0]

    def _shared(self, eqn: Any, given: list[Value], name: str, out: Any) -> list[Value]:
        """An equation on what all ranks hold alike."""
        if name == "broadcast_in_dim" and given[0].size == 1 != out.size:
            return [self._fill(given[0], tuple(out.shape))]
        filled = [x for x in given if x.kind == kinds.FILL]
        if filled and name in _RESHAPES and filled[0].size == out.size:
            return [self._fill(filled[0], tuple(out.shape))]
        if filled and name in POINTWISE and all(x.size == 1 or x in filled for x in given):
            return [self._pointwise(eqn, given, None, tuple(out.shape))]
        types = [(tuple(v.aval.shape), v.aval.dtype) for v in eqn.outvars]
        return self.outside(lambda *xs: _bound(eqn, xs), given, types, id(eqn))

    def _cond(self, eqn: Any, given: list[Value], line: Any) -> list[Value]:
        """Every branch, and of their results the chosen: elements know no other way."""
        which, *rest = given
        branches = [self.read(branch, rest, line) for branch in eqn.params["branches"]]
        if len(branches) == 1:
            return branches[0]
        results: list[Value] = []
        for cases in zip(*branches, strict=True):
            index: Any = lambda w: lax.clamp(0, w, len(branches) - 1).astype(jnp.int32)  # noqa: E731
            if len(branches) == 2:
                index = lambda w: w != 0  # noqa: E731
            chosen = self.trace(index, [self.number(which)])
            like = next((x for x in cases if x.leaf is not None), cases[0])
            aval = jax.ShapeDtypeStruct(like.shape, like.dtype)
            with _compat.outside_all_traces():
                jaxpr = jax.make_jaxpr(lax.select_n)(
                    jax.ShapeDtypeStruct((), chosen.dtype), *[aval] * len(cases)
                )
            results += self.read(jaxpr, [chosen, *cases], line)
        return results

    def _pointwise(
        self, eqn: Any, given: Sequence[Value], line: Any, shape: tuple[int, ...]
    ) -> Value:
        given = self._numbers_apart(list(given), line)
        dtype = eqn.outvars[0].aval.dtype
        name = _compat.op_name(eqn)
        leaves = [x for x in given if x.leaf is not None]
        if not leaves:
            numbers = [self.number(x) if x.size == 1 or x.kind == kinds.FILL else x for x in given]
            key = ("scalar", parameters_text(eqn))
            run: Any = lambda *xs: _bound(eqn, xs)  # noqa: E731
            (made,) = self.outside(run, numbers, [((), dtype)], key)
            return made if shape == () else self._fill(made, shape)
        if name == "div" and given[1].leaf is None and given[1].dtype in (jnp.float32, jnp.float64):
            inverse = self.trace(lambda x: 1 / x, [self.number(given[1])])
            return self.trace(lambda a, b: a * b, [given[0], inverse])
        phase = max(x.phase for x in given)
        made = Value(kinds.POINTWISE, shape, dtype, phase, leaves[0].leaf, tuple(given), eqn)
        return self._add((parameters_text(eqn), tuple(map(id, given))), made)

    def _numbers_apart(self, given: list[Value], line: Any) -> list[Value]:
        """Operands that one parameter's elements can be computed from. Single elements that meet
        another parameter, or a number that waits for ranks, become numbers themselves.
        """
        leaves = {x.leaf for x in given if x.leaf is not None}
        phase = max(x.phase for x in given)
        single = [x for x in given if x.leaf is not None and x.size == 1]
        if single and (len(leaves) > 1 or any(x.phase < phase for x in single)):
            given = [self.number(x) if x in single else x for x in given]
            leaves = {x.leaf for x in given if x.leaf is not None}
        if len(leaves) > 1:
            raise unsupported(
                "elements of two parameters are combined",
                line,
                because="each parameter is updated by itself; only numbers go from one to another",
            )
        return [self.number(x) if x.leaf is None and x.size == 1 and x.shape else x for x in given]


def _bound(eqn: Any, given: Sequence[Any]) -> list[Any]:
    return _compat.bind(eqn, *_compat.unify_varying([jnp.asarray(x) for x in given]))


def _is_full(eqn: Any) -> bool:
    shape, axes = eqn.invars[0].aval.shape, eqn.params["axes"]
    return all(size == 1 or dim in axes for dim, size in enumerate(shape))


def _is_inner_product(eqn: Any) -> bool:
    (left, right), batch = eqn.params["dimension_numbers"]
    shapes = [atom.aval.shape for atom in eqn.invars]
    whole = len(left) == len(shapes[0]) and shapes[0] == shapes[1]
    return whole and tuple(left) == tuple(right) and not any(batch)
