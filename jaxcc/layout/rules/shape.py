"""Operations that only rearrange an array, or leave it as it is: they act on the side on which they
stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._digits import Digits, count, regroup, uniform, whole_dim
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, layout_rule, shape_rule

Params = Mapping[str, Any]


@shape_rule(
    "copy", "copy_p", "pvary", "stop_gradient", "name", "optimization_barrier", "pcast",
    "reduced_vary_cast", "sharding_constraint", "mesh_cast", "reshard", "preduced",
)  # fmt: skip
def _same(params: Params, dims: Sequence[Digits], out_shape: Sequence[int]) -> Sequence[Digits]:
    return dims


@shape_rule("reshape", "squeeze", "expand_dims")
def _reshape(params: Params, dims: Sequence[Digits], out_shape: Sequence[int]) -> Sequence[Digits]:
    # Of a squeeze, `dimensions` are those that it drops; of a reshape, the order to read them in.
    order: Sequence[int] | None = params.get("dimensions") if "new_sizes" in params else None
    return regroup(dims if order is None else [dims[old] for old in order], out_shape)


@layout_rule("reshape")
def _regrouped(eqn: Equation, x: Relation) -> Relation:
    """A reshape that cuts digits, such as (3, 4) to (4, 3), of what every rank holds whole."""
    (shape,), (whole,) = eqn.per_rank.shapes, eqn.whole.shapes
    out = eqn.per_rank.out_shapes[0]
    complete = all(
        digits in (whole_dim(dim, size), uniform(size))
        for dim, (digits, size) in enumerate(zip(x.dims, whole, strict=True))
    )
    if not complete or x.ranks or shape != whole or out != eqn.whole.out_shapes[0]:
        raise Refused(
            "LAYOUT_RESHAPE",
            f"reshape cuts {eqn.name(0)}, which is {eqn.layout(0)}, where its blocks are not whole",
            because="a block of the result is no block of the whole result",
            fixes=("keep the sliced dimension, or gather it first",),
        )
    return replace(x, dims=tuple(whole_dim(dim, size) for dim, size in enumerate(out)))


@shape_rule("transpose")
def _transpose(
    params: Params, dims: Sequence[Digits], out_shape: Sequence[int]
) -> Sequence[Digits]:
    order: Sequence[int] = params["permutation"]
    return [dims[old] for old in order]


@shape_rule("broadcast_in_dim")
def _broadcast(
    params: Params, dims: Sequence[Digits], out_shape: Sequence[int]
) -> Sequence[Digits]:
    # In JAX 0.12 the parameters of a scalar's broadcast hold no dimensions at all.
    wide = [uniform(size) for size in out_shape]
    for digits, new in zip(dims, params.get("broadcast_dimensions", ()), strict=True):
        if count(digits) == out_shape[new]:
            wide[new] = digits
    return wide
