"""Runs a program, or traces it: one JAX call per operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jaxcc import _compat
from jaxcc.program._extreme import extreme
from jaxcc.program._ir import Constant, Op, Operand, Program
from jaxcc.program._own_slice import own_slice
from jaxcc.program._rooted import from_root, on_root

VALUE_LABEL = "__jaxcc_value:"
"""Prefix of the labels that `run(..., label=True)` puts on values."""

Runner = Callable[[Op, list[Any]], list[Any]]


def run(
    program: Program,
    inputs: Sequence[Any],
    *,
    fused: Runner | None = None,
    label: bool = False,
    check_vma: bool = True,
) -> list[Any]:
    """The program's outputs for per-rank `inputs`, one per leaf.

    Args:
      program: what to run, inside `shard_map` over its axes.
      inputs: one per-rank array per leaf.
      fused: runs a `fused` operation that is a kernel; None runs the operations of its body
        one by one, as it is done for others.
      label: labels every value, for `layouts_of`; the trace can then be checked but not run.
      check_vma: the flag of the enclosing `shard_map`.
    """
    values: dict[str, Any] = dict(zip(program.inputs, inputs, strict=True))
    for op in program.ops:
        _run_op(op, values, fused=fused, label=label, check_vma=check_vma)
    return [_read(x, values) for x in program.outputs]


def _run_op(
    op: Op,
    values: dict[str, Any],
    *,
    fused: Runner | None = None,
    label: bool = False,
    check_vma: bool = True,
) -> None:
    """Runs one operation on `values` and adds its outputs to them."""
    if op.body and (fused is None or not op.has_kernel):
        inner = dict(values)
        for part in op.body:
            _run_op(part, inner, label=label, check_vma=check_vma)
        values.update((out, inner[out]) for out in op.outputs)
        return
    given = [_read(x, values) for x in op.inputs]
    if op.body and fused is not None:
        results = fused(op, given)
    else:
        with _compat.at_line_of(op.eqn):
            results = apply_op(op, given, label=label, check_vma=check_vma)
    if label:
        results = [
            checkpoint_name(x, VALUE_LABEL + name)
            for x, name in zip(results, op.outputs, strict=True)
        ]
    values.update(zip(op.outputs, results, strict=True))


def _read(x: Operand, values: Mapping[str, Any]) -> Any:
    return x.value if isinstance(x, Constant) else values[x]


def apply_op(op: Op, given: list[Any], *, label: bool = False, check_vma: bool = True) -> list[Any]:
    """The results of one operation on the values of its operands."""
    if "cut" in op.params:
        return [_counted(op, given)]
    if op.kind == "join":
        dim = op.params["dim"]
        return [lax.concatenate(_compat.unify_varying(given) if check_vma else given, dim)]
    if op.kind in _KINDS and op.params:
        return [_KINDS[op.kind](op, given[0], label, check_vma)]
    if op.kind == "all_gather" and op.eqn.params.get("axis_index_groups") is None:
        params = op.eqn.params
        dim, tiled = params["all_gather_dimension"], params["tiled"]
        return [_gather(given[0], _compat.axis_names(op.eqn), dim, tiled, check_vma)]
    if check_vma and op.has_inner_jaxprs:
        given = _compat.as_varying_as(given, [atom.aval for atom in op.eqn.invars])
    elif check_vma:
        # Tracing leaves out the casts that collectives want of what all ranks hold alike.
        axes = _compat.axis_names(op.eqn) if "axis_name" in op.eqn.params else ()
        given = _compat.unify_varying(given, axes)
    return _compat.bind(op.eqn, *given)


def _all_reduce(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    kind, axes = op.params["op"], op.params["axes"]
    if kind in ("maximum", "minimum") and not label:
        return extreme(kind, x, axes)
    short = {"maximum": "max", "minimum": "min"}.get(kind, kind)
    return {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[short](x, axes)


def _reduce_scatter(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    (axis,) = op.params["axes"]
    (x,) = _compat.unify_varying([x], (axis,)) if check_vma else (x,)
    return lax.psum_scatter(x, axis, scatter_dimension=op.params["dim"], tiled=True)


def _all_gather(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    return _gather(x, op.params["axes"], op.params["dim"], True, check_vma)


def _gather(x: Any, axes: tuple[str, ...], dim: int, tiled: bool, check_vma: bool) -> Any:
    if not check_vma:
        return lax.all_gather(x, axes, axis=dim, tiled=tiled)
    # What is gathered is equal on all ranks; only this form tells JAX so.
    (x,) = _compat.unify_varying([x], axes)
    return lax.all_gather(x, axes, axis=dim, tiled=tiled, to="invarying")


def _own_slice(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    (axis,) = op.params["axes"]
    return own_slice(x, axis, op.params["dim"], checked=label)


def _reduce(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    """The whole on the root; in a checked trace on every rank."""
    (axis,) = op.params["axes"]
    whole = _all_reduce(op, x, label, check_vma)
    return whole if label else on_root(whole, axis, op.params["root"])


def _broadcast(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    (axis,) = op.params["axes"]
    return x if label else from_root(x, axis, op.params["root"])


def _chunk(op: Op, x: Any, label: bool, check_vma: bool) -> Any:
    dim = op.params["dim"]
    return lax.slice_in_dim(x, op.params["start"], op.params["stop"], axis=dim)


def _counted(op: Op, given: list[Any]) -> Any:
    """A part of what is made of each element's place in the whole array."""
    dim, start = op.params["cut"]
    (whole,) = _compat.bind(op.eqn, *given)
    return lax.slice_in_dim(whole, start, start + op.types[0].shape[dim], axis=dim)


_KINDS: Mapping[str, Callable[[Op, Any, bool, bool], Any]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "own_slice": _own_slice,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "chunk": _chunk,
}
