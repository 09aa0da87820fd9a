"""A random program as data, and as a JAX function."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from fuzzing.steps import STEPS
from fuzzing.types import Type, from_json, to_json
from jax import lax

from jaxcc import _compat


@dataclass(frozen=True)
class Step:
    """One step: its kind, the numbers of the values that it reads, and its parameters."""

    kind: str
    reads: tuple[int, ...]
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Body:
    """A function: values 0, 1, ... are its arguments, each step makes the next value."""

    arity: int
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Recipe:
    """A program, its arguments, and the layouts that its writer believes its results to have."""

    axes: tuple[str, ...]
    inputs: tuple[Type, ...]
    body: Body
    outputs: tuple[Type, ...] = field(compare=False)
    check_vma: bool = True


def dumps(recipe: Recipe) -> str:
    """A recipe as one line of JSON."""
    return json.dumps(
        {
            "axes": recipe.axes,
            "inputs": [to_json(t) for t in recipe.inputs],
            "body": _plain(recipe.body),
            "outputs": [to_json(t) for t in recipe.outputs],
            "check_vma": recipe.check_vma,
        }
    )


def loads(text: str) -> Recipe:
    """The recipe of a line that `dumps` made."""
    data = json.loads(text)
    return Recipe(
        tuple(data["axes"]),
        tuple(from_json(t) for t in data["inputs"]),
        _body(data["body"]),
        tuple(from_json(t) for t in data["outputs"]),
        data["check_vma"],
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Body):
        steps = [[s.kind, list(s.reads), _plain(s.params)] for s in value.steps]
        return {"arity": value.arity, "steps": steps, "outputs": list(value.outputs)}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _body(data: Any) -> Body:
    steps = tuple(
        Step(kind, tuple(reads), _parsed(params)) for kind, reads, params in data["steps"]
    )
    return Body(data["arity"], steps, tuple(data["outputs"]))


def _parsed(value: Any) -> Any:
    if isinstance(value, dict):
        return _body(value)
    return tuple(_parsed(v) for v in value) if isinstance(value, list) else value


def build(recipe: Recipe, *, check_vma: bool | None = None) -> Callable[..., list[Any]]:
    """The per-rank function of a recipe."""
    vma = recipe.check_vma if check_vma is None else check_vma
    runner = _Runner(recipe.axes if vma else ())

    def program(*args: Any) -> list[Any]:
        return runner.run(recipe.body, args)

    return program


def show(recipe: Recipe) -> str:
    """A recipe as text."""
    lines = [f"axes {', '.join(recipe.axes)}  check_vma={recipe.check_vma}"]
    for k, t in enumerate(recipe.inputs):
        lines.append(f"v{k} = argument {t.dtype}{list(t.shape)} {t.layout().describe()}")
    lines += _lines(recipe.body, "")
    return "\n".join(lines)


def _lines(body: Body, indent: str) -> list[str]:
    out: list[str] = []
    for k, step in enumerate(body.steps, body.arity):
        plain = [p for p in step.params if not isinstance(p, Body)]
        shown = ", ".join([*(f"v{r}" for r in step.reads), *map(repr, plain)])
        out.append(f"{indent}v{k} = {step.kind}({shown})")
        for inner in step.params:
            if isinstance(inner, Body):
                out += _lines(inner, indent + "    ")
    return [*out, f"{indent}return {', '.join(f'v{k}' for k in body.outputs)}"]


class _Runner:
    def __init__(self, axes: Sequence[str]) -> None:
        self.axes = tuple(axes)

    def run(self, body: Body, args: Sequence[Any]) -> list[Any]:
        values = list(args)
        for step in body.steps:
            operands = [values[k] for k in step.reads]
            if step.kind in _WITH_BODY:
                values.append(_WITH_BODY[step.kind](self, operands, *step.params))
            else:
                values.append(STEPS[step.kind](*operands, *step.params))
        return [values[k] for k in body.outputs]

    def one(self, body: Body, *args: Any) -> Any:
        return self.run(body, args)[0]

    def vary(self, x: Any) -> Any:
        """Cast so that JAX takes it to vary over every axis, as the carries of loops have to."""
        return _compat.unify_varying([x], self.axes)[0] if self.axes else x

    # Control flow and transformations -------------------------------------------------------------

    def scan(self, operands: Sequence[Any], body: Body, length: int) -> Any:
        first, *rest = map(self.vary, operands)

        def step(carry: Any, _: Any) -> Any:
            return self.vary(self.one(body, carry, *rest)), None

        return lax.scan(step, first, None, length=length)[0]

    def scan_over(self, operands: Sequence[Any], body: Body, give: str, reverse: bool) -> Any:
        """Operand 0 is carried, the rows of operand 1 are scanned over."""
        first, rows, *rest = map(self.vary, operands)

        def step(carry: Any, row: Any) -> Any:
            new = self.vary(self.one(body, carry, row, *rest))
            return new, new

        carry, stacked = lax.scan(step, first, rows, reverse=reverse)
        return carry if give == "carry" else stacked

    def fori(self, operands: Sequence[Any], body: Body, times: int) -> Any:
        first, *rest = map(self.vary, operands)
        return lax.fori_loop(0, times, lambda i, x: self.vary(self.one(body, x, *rest)), first)

    def while_(self, operands: Sequence[Any], body: Body, times: int, limit: float) -> Any:
        """Stops after some steps, or when the sum of the absolute values passes a limit."""
        first, *rest = map(self.vary, operands)

        def going(state: Any) -> Any:
            counted = state[0] < times
            return counted if limit <= 0 else counted & (jnp.abs(state[1]).sum() < limit)

        def step(state: Any) -> Any:
            return state[0] + 1, self.vary(self.one(body, state[1], *rest))

        return lax.while_loop(going, step, (jnp.int32(0), first))[1]

    def cond(self, operands: Sequence[Any], yes: Body, no: Body) -> Any:
        """Operand 0, a scalar, is the predicate."""
        predicate, *rest = operands
        branches = [lambda *args, body=body: self.vary(self.one(body, *args)) for body in (yes, no)]
        return lax.cond(predicate > 0, *branches, *map(self.vary, rest))

    def switch(self, operands: Sequence[Any], *bodies: Body) -> Any:
        """Operand 0, an integer scalar, is the index."""
        index, *rest = operands
        branches = [lambda *args, body=body: self.vary(self.one(body, *args)) for body in bodies]
        return lax.switch(index, branches, *map(self.vary, rest))

    def jit(self, operands: Sequence[Any], body: Body) -> Any:
        return jax.jit(functools.partial(self.one, body))(*operands)

    def remat(self, operands: Sequence[Any], body: Body) -> Any:
        return jax.checkpoint(functools.partial(self.one, body))(*operands)

    def vmap(self, operands: Sequence[Any], body: Body) -> Any:
        """Over the leading dimension of operand 0."""
        first, *rest = operands
        return jax.vmap(lambda x: self.one(body, x, *rest))(first)

    def grad(self, operands: Sequence[Any], body: Body, vary: bool) -> Any:
        """The gradient, for operand 0, of the sum of what the body gives."""
        first, *rest = operands

        def loss(x: Any) -> Any:
            return self.one(body, x, *rest).astype(jnp.float32).sum()

        return jax.grad(loss)(self.vary(first) if vary else first)

    def jvp(self, operands: Sequence[Any], body: Body) -> Any:
        """The derivative along operand 1, at operand 0."""
        first, second, *rest = map(self.vary, operands)
        return jax.jvp(lambda x: self.one(body, x, *rest), (first,), (second,))[1]

    def custom_vjp(self, operands: Sequence[Any], body: Body, factor: float) -> Any:
        """The body, with a gradient of its own that nothing here asks for."""

        @jax.custom_vjp
        def function(*args: Any) -> Any:
            return self.one(body, *args)

        def forward(*args: Any) -> Any:
            return self.one(body, *args), args

        def backward(args: Any, g: Any) -> Any:
            return tuple(jnp.zeros_like(x) * factor for x in args)

        function.defvjp(forward, backward)
        return function(*operands)


_WITH_BODY: dict[str, Callable[..., Any]] = {
    "scan": _Runner.scan,
    "scan_over": _Runner.scan_over,
    "fori": _Runner.fori,
    "while": _Runner.while_,
    "cond": _Runner.cond,
    "switch": _Runner.switch,
    "jit": _Runner.jit,
    "remat": _Runner.remat,
    "vmap": _Runner.vmap,
    "grad": _Runner.grad,
    "jvp": _Runner.jvp,
    "custom_vjp": _Runner.custom_vjp,
}
