"""Values of a traced optimizer: elements of one parameter, and what all ranks share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from jaxcc import _compat

MEAN, PARAM, SLOT, GIVEN, LITERAL = "mean", "param", "slot", "given", "literal"
POINTWISE, FILL, REDUCE, OUTSIDE = "pointwise", "fill", "reduce", "outside"

SOURCES = frozenset({MEAN, PARAM, SLOT})


@dataclass(eq=False)
class Value:
    """One value of the traced update.

    Attributes:
      kind: one of the words above.
      shape, dtype: as traced, at whole shapes.
      phase: the reductions over ranks, one after another, that it waits for.
      leaf: the parameter of whose elements it has one each; None if all ranks hold it alike.
      inputs: what it is computed from.
      eqn: the equation of a pointwise value.
      index: number of a slot or given value, or of a result of `run`.
      data: the number of a literal, the name of a reduction, the function of an outside value.
      mean: whether it depends on the gradients.
      sliced: whether it depends on what no rank holds whole.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: Any
    phase: int = 0
    leaf: int | None = None
    inputs: tuple[Value, ...] = ()
    eqn: Any = None
    index: int = 0
    data: Any = None
    mean: bool = False
    sliced: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_number(self) -> bool:
        return self.leaf is None and self.shape == ()


@dataclass(frozen=True, eq=False)
class Run:
    """A computation that XLA does on every rank alike: from arrays to the list of its results."""

    function: Callable[..., Sequence[Any]]


def parameters_text(eqn: Any) -> str:
    """The equation's primitive and parameters, equal for equations that compute alike."""
    params = sorted((name, str(value)) for name, value in eqn.params.items())
    return f"{_compat.op_name(eqn)}{params}"


def evaluate(
    targets: Sequence[Value], known: Mapping[Value, Any], shape: tuple[int, ...]
) -> list[Any]:
    """The targets as arrays of `shape`, the flat form of all values of a parameter's elements.

    Args:
      known: arrays of `shape` for what the targets are computed from, and numbers.
    """
    found = dict(known)

    def array(v: Value) -> Any:
        if v not in found:
            found[v] = _apply(v, array, shape)
        return found[v]

    return [_spread(v, array(v), shape) for v in targets]


def _apply(v: Value, array: Callable[[Value], Any], shape: tuple[int, ...]) -> Any:
    if v.kind == LITERAL:
        return v.data
    if v.kind == FILL:
        return _spread(v, array(v.inputs[0]), shape)
    assert v.kind == POINTWISE, v.kind
    operands = [
        # A number stands alone only where it did in the trace.
        _spread(x, array(x), shape) if atom.aval.shape or not v.shape else array(x)
        for x, atom in zip(v.inputs, v.eqn.invars, strict=True)
    ]
    return _compat.bind(v.eqn, *_compat.unify_varying(operands))[0]


def _spread(v: Value, x: Any, shape: tuple[int, ...]) -> Any:
    if jax.numpy.shape(x) == shape:
        return x
    return lax.broadcast_in_dim(jax.numpy.asarray(x, v.dtype), shape, ())
