"""Operations that only rearrange an array, or leave it as it is: they act on the side on which they stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxcc.layout._digits import Digits, count, regroup, uniform
from jaxcc.layout._rules import shape_rule

Params = Mapping[str, Any]


@shape_rule(
    "copy", "copy_p", "pvary", "stop_gradient", "name", "optimization_barrier", "pcast",
    "reduced_vary_cast", "sharding_constraint", "mesh_cast",
)  # fmt: skip
def _same(params: Params, dims: Sequence[Digits], out_shape: Sequence[int]) -> Sequence[Digits]:
    return dims


@shape_rule("reshape", "squeeze", "expand_dims")
def _reshape(params: Params, dims: Sequence[Digits], out_shape: Sequence[int]) -> Sequence[Digits]:
    return regroup(dims, out_shape)


@shape_rule("transpose")
def _transpose(
    params: Params, dims: Sequence[Digits], out_shape: Sequence[int]
) -> Sequence[Digits]:
    return [dims[old] for old in params["permutation"]]


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
