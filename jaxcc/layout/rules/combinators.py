"""The combinators of `jaxcc.comm`: functions along a dimension that ranks hold in blocks.

Each computes what a plain function does of the gathered operands; of a result that has the
dimension a rank holds its own block. So its rule is that of the plain function, between a gather
and a slice of digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxcc.layout._digits import Digits, normal, uniform, whole_dim
from jaxcc.layout._relation import Relation, select
from jaxcc.layout._rules import (
    ComputingRule,
    Equation,
    Refused,
    collective_rule,
    computing_rule_of,
    layout_rule,
)
from jaxcc.layout.rules._combine import partial_refused, require_unit, require_whole, result
from jaxcc.layout.rules._joint import Labels, joint, laid_out, linear_in
from jaxcc.layout.rules.collective import scattered


def _between(
    eqn: Equation,
    operands: Sequence[Relation],
    reads: Sequence[int],
    makes: Sequence[int | None],
    plain: ComputingRule,
    op: str,
    params: Mapping[str, Any],
) -> list[Relation]:
    """What `plain`, as operation `op` with `params`, says of the gathered operands, cut into blocks
    again.

    Args:
      eqn: the combinator's equation.
      operands: the relations of its operands.
      reads: the sliced dimension of each operand.
      makes: that of each result, None if every rank has the whole result.
      plain: the rule of the function that it computes.
      op: the name of that function.
      params: its parameters.
    """
    axis = _axis_of(eqn)
    n = eqn.sizes[axis]
    whole = [
        _gathered(eqn, i, x, axis, dim)
        for i, (x, dim) in enumerate(zip(operands, reads, strict=True))
    ]
    made_shapes = [
        shape if dim is None else (*shape[:dim], shape[dim] * n, *shape[dim + 1 :])
        for shape, dim in zip(eqn.per_rank.out_shapes, makes, strict=True)
    ]
    per_rank = replace(
        eqn.per_rank,
        params=params,
        shapes=tuple(x.shape for x in whole),
        out_shapes=tuple(made_shapes),
    )
    gathered = replace(eqn, op=op, per_rank=per_rank, whole=replace(eqn.whole, params=params))
    made = plain(gathered, *whole)
    results = [made] if isinstance(made, Relation) else made
    return [
        x if dim is None else scattered(eqn, x, axis, dim)
        for x, dim in zip(results, makes, strict=True)
    ]


def _axis_of(eqn: Equation) -> str:
    axis: str = eqn.per_rank.params["axis_name"]
    if axis not in eqn.sizes:
        raise Refused("LAYOUT_UNSUPPORTED", f"{eqn.op} over the axis of a vmap has no rule")
    return axis


def _name(eqn: Equation) -> str:
    """What users call the combinator."""
    return eqn.op.removeprefix("jaxcc_").removesuffix("_back")


def _gathered(eqn: Equation, index: int, x: Relation, axis: str, dim: int) -> Relation:
    """The ranks' blocks of `dim` put together; refuses other parts of the whole dimension."""
    n, whole = eqn.sizes[axis], eqn.whole.shapes[index][dim]
    if axis in x.partial:
        op = x.partial[axis]
        why = "the ranks' terms of a reduction are no blocks of a dimension"
        raise partial_refused(replace(eqn, op=f"comm.{_name(eqn)}"), index, axis, op, why)
    blocks: Digits = normal((*x.ranks.get(axis, uniform(n)), *x.dims[dim]))
    if axis in x.local or blocks not in (whole_dim(dim, whole), uniform(whole)):
        raise _not_blocks(eqn, index, x, axis, dim)
    return replace(
        x,
        dims=(*x.dims[:dim], blocks, *x.dims[dim + 1 :]),
        ranks=select(x.ranks, axis, ()),
        const=None,
    )


def _not_blocks(eqn: Equation, index: int, x: Relation, axis: str, dim: int) -> Refused:
    name = _name(eqn)
    fixes = (f"slice dimension {dim} of {eqn.name(index)} over '{axis}'",)
    if x.plain_over(axis):
        plain = _PLAIN.get(name, f"jax.numpy.{name}")
        fixes = (f"write {plain}: every rank along '{axis}' has all of the dimension", *fixes)
    return Refused(
        "LAYOUT_MISMATCH",
        f"comm.{name} over '{axis}' reads blocks of dimension {dim}, but {eqn.name(index)} is "
        f"{eqn.layout(index)}",
        because=f"what the ranks of '{axis}' hold along dimension {dim} counts as one dimension, "
        "put together in their order",
        fixes=fixes,
    )


_PLAIN: Mapping[str, str] = {
    "cummax": "jax.lax.cummax",
    "cummin": "jax.lax.cummin",
    "top_k": "jax.lax.top_k",
    "ring_attention": "jax.nn.dot_product_attention",
}


def _known(op: str) -> ComputingRule:
    rule = computing_rule_of(op)
    assert rule is not None
    return rule


@layout_rule("jaxcc_cumsum", "jaxcc_cumprod", "jaxcc_cummax", "jaxcc_cummin")
def _cumulative(eqn: Equation, x: Relation) -> Sequence[Relation]:
    op, dim = eqn.op.removeprefix("jaxcc_"), len(x.dims) + int(eqn.per_rank.params["dim"])
    return _between(eqn, [x], [dim], [dim], _known(op), op, {"axis": dim})


@layout_rule("jaxcc_argmax", "jaxcc_argmin")
def _position(eqn: Equation, x: Relation) -> Sequence[Relation]:
    op, dim = eqn.op.removeprefix("jaxcc_"), len(x.dims) + int(eqn.per_rank.params["dim"])
    return _between(eqn, [x], [dim], [None], _known(op), op, {"axes": (dim,)})


@layout_rule("jaxcc_top_k")
def _top_k(eqn: Equation, x: Relation) -> Sequence[Relation]:
    last = len(x.dims) - 1
    return _between(eqn, [x], [last], [None, None], _known("top_k"), "top_k", {"axis": last})


@layout_rule("jaxcc_ring_attention")
def _ring_attention(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """The attention and the logarithms of its sums, for queries, keys and values."""
    return _attention(eqn, operands, _attended)


@layout_rule("jaxcc_ring_attention_back")
def _ring_attention_back(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """The gradients of queries, keys and values, from these, the results and a cotangent."""
    return _attention(eqn, operands, _attended_back)


def _attention(
    eqn: Equation, operands: Sequence[Relation], plain: ComputingRule
) -> Sequence[Relation]:
    # The sequence comes after the dimensions of the batch.
    at = len(operands[0].dims) - 3
    makes = [at] * len(eqn.per_rank.out_shapes)
    return _between(eqn, operands, [at] * len(operands), makes, plain, f"comm.{_name(eqn)}", {})


def _heads(shapes: Sequence[Sequence[int]]) -> list[Labels]:
    """What the dimensions of arrays (batch, sequence, heads, perhaps size) are: every head of every
    part of the batch is by itself."""
    batch = len(shapes[0]) - 3
    return [[*range(batch), None, batch, None][: len(shape)] for shape in shapes]


def _attended(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """Softmax attention is linear in the values, the last operand, alone."""
    base = _linear_in_last(eqn, operands)
    out, logs = _heads(eqn.per_rank.out_shapes)
    sums = joint(eqn, operands[:2], _heads(eqn.per_rank.shapes[:2]))
    return [
        linear_in(eqn, operands, 2, laid_out(eqn, base, out, 0)),
        _unscaled(laid_out(eqn, sums, logs, 1)),
    ]


def _unscaled(base: Relation) -> Relation:
    return result(base, base.dims, 1.0, {})


def _attended_back(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """The gradients are linear in the cotangent, the last operand, alone."""
    base = _linear_in_last(eqn, operands)
    return [
        linear_in(eqn, operands, len(operands) - 1, laid_out(eqn, base, labels, index))
        for index, labels in enumerate(_heads(eqn.per_rank.out_shapes))
    ]


def _linear_in_last(eqn: Equation, operands: Sequence[Relation]) -> Relation:
    why = f"{eqn.op} is linear in its last operand alone"
    require_whole(eqn, operands[:-1], why)
    require_unit(eqn, operands[:-1], why)
    return joint(eqn, operands, _heads(eqn.per_rank.shapes))


@collective_rule("jaxcc_ring")
def _ring(eqn: Equation, x: Relation) -> Relation:
    """What goes round; what is made of it depends on the order."""
    axis = _axis_of(eqn)
    if eqn.sizes[axis] == 1:
        return x
    raise Refused(
        "LAYOUT_RANK_DEPENDENT",
        f"comm.ring over '{axis}' folds the blocks in another order on every rank",
        because="only some functions give the same for every order, and for the whole at once",
        fixes=(
            "for attention, jaxcc.comm.ring_attention",
            'check(..., structure="rank-dependent"), which runs the program instead of proving it',
        ),
    )
