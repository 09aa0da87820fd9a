"""Sliding windows: reductions over them, and the selections that their gradients are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from jaxcc.layout._layouts import ReduceOp
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, layout_rule
from jaxcc.layout.rules._combine import partial_refused, unit_only
from jaxcc.layout.rules._joint import joint, laid_out, linear_in, ordered_scale
from jaxcc.layout.rules.along import extremum, labels, require_same_function

HALO = ("exchange the borders of the blocks (a halo exchange) with jax.lax.ppermute first",)
"""What to do about a sliced dimension over which a window slides."""

_EXTREMA: Mapping[str, ReduceOp] = {"reduce_window_max": "max", "reduce_window_min": "min"}


def _slid(eqn: Equation) -> Collection[int]:
    """The dimensions along which a window covers more than the element itself."""
    params = eqn.per_rank.params
    size: Sequence[int] = params["window_dimensions"]
    still = [1] * len(size)
    return {
        dim
        for dim, window in enumerate(
            zip(
                size,
                params["window_strides"],
                (tuple(pads) for pads in params["padding"]),
                params.get("base_dilation", still),
                strict=True,
            )
        )
        if window != (1, 1, (0, 0), 1)
    }


def _windowed(eqn: Equation, operands: Sequence[Relation]) -> Relation:
    slid = _slid(eqn)
    reads = [labels(len(x.dims), slid) if x.dims else [] for x in operands]
    base = joint(eqn, operands, reads, HALO)
    return laid_out(eqn, base, labels(len(eqn.per_rank.out_shapes[0]), slid))


@layout_rule("reduce_window_sum")
def _window_sum(eqn: Equation, x: Relation) -> Relation:
    return linear_in(eqn, [x], 0, _windowed(eqn, [x]))


@layout_rule(*_EXTREMA)
def _window_extremum(eqn: Equation, x: Relation) -> Relation:
    return extremum(eqn, x, _windowed(eqn, [x]), _EXTREMA[eqn.op])


@layout_rule("reduce_window")
def _window_reduction(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """By a function of the user's: operands, then as many initial values."""
    require_same_function(eqn, "jaxpr")
    made = unit_only(eqn, operands, _windowed(eqn, operands))
    return [made] * len(eqn.per_rank.out_shapes)


@layout_rule("select_and_scatter_add", "select_and_gather_add")
def _selected(eqn: Equation, moved: Relation, compared: Relation) -> Relation:
    """What goes to, or comes from, the largest element of each window of the second operand."""
    for axis, op in compared.partial.items():
        raise partial_refused(eqn, 1, axis, op, "the largest term of a sum is not the largest sum")
    ordered_scale(eqn, 1, compared)
    return linear_in(eqn, [moved, compared], 0, _windowed(eqn, [moved, compared]))
