"""Convolutions: contractions over the input features that slide over the spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxcc.layout._digits import normal, regroup, whole_dim
from jaxcc.layout._relation import Relation, seen_through
from jaxcc.layout._rules import Equation, Side, layout_rule
from jaxcc.layout.rules._combine import measured, multiplicative, product, result
from jaxcc.layout.rules._joint import joint, laid_out, require_full
from jaxcc.layout.rules.reduce import reduced
from jaxcc.layout.rules.window import HALO

# The joint dimensions. Of the first and the third at most one is larger than 1.
_BATCH_GROUP, _BATCH, _GROUP, _OUT, _IN = range(5)


@dataclass(frozen=True)
class _Grouped:
    """The shapes of one side's operands, split into groups.

    Attributes:
      image: (batch group, batch, group, feature, spatial...).
      kernel: (batch group, group, output, feature, spatial...).
    """

    image: tuple[int, ...]
    kernel: tuple[int, ...]

    @staticmethod
    def of(side: Side) -> _Grouped:
        numbers: Any = side.params["dimension_numbers"]
        lhs, rhs = side.shapes
        lhs_spec: Sequence[int] = numbers.lhs_spec
        rhs_spec: Sequence[int] = numbers.rhs_spec
        batch, feature, *space = (lhs[dim] for dim in lhs_spec)
        out, inner, *window = (rhs[dim] for dim in rhs_spec)
        batches: int = side.params["batch_group_count"]
        groups: int = side.params["feature_group_count"]
        return _Grouped(
            (batches, batch // batches, groups, feature // groups, *space),
            (batches, groups, out // (batches * groups), inner, *window),
        )

    @property
    def joint(self) -> tuple[int, ...]:
        batches, batch, groups, inner, *_ = self.image
        return (batches, batch, groups, self.kernel[2], inner)


def _viewed(x: Relation, order: Sequence[int], whole: Sequence[int], shapes: Any) -> Relation:
    """The operand with its dimensions in the order of its spec, and split into groups."""
    shape, whole_shape = shapes
    view = regroup([whole_dim(dim, whole[dim]) for dim in order], whole_shape)
    dims = regroup([x.dims[dim] for dim in order], shape)
    return seen_through(replace(x, dims=dims), view)


@layout_rule("conv_general_dilated")
def _conv(eqn: Equation, image: Relation, kernel: Relation) -> Relation:
    numbers: Any = eqn.per_rank.params["dimension_numbers"]
    for index, (x, spec) in enumerate(((image, numbers.lhs_spec), (kernel, numbers.rhs_spec))):
        for dim in spec[2:]:
            require_full(eqn, x, dim, index, HALO)
    here, whole = _Grouped.of(eqn.per_rank), _Grouped.of(eqn.whole)
    specs = (numbers.lhs_spec, numbers.rhs_spec)
    shapes = ((here.image, whole.image), (here.kernel, whole.kernel))
    operands = [
        _viewed(x, spec, whole_shape, shape)
        for x, spec, whole_shape, shape in zip(
            (image, kernel), specs, eqn.whole.shapes, shapes, strict=True
        )
    ]
    space = [None] * (len(numbers.lhs_spec) - 2)
    reads = (
        [_BATCH_GROUP, _BATCH, _GROUP, _IN, *space],
        [_BATCH_GROUP, _GROUP, _OUT, _IN, *space],
    )
    split = replace(
        eqn,
        per_rank=replace(eqn.per_rank, shapes=(here.image, here.kernel)),
        whole=replace(eqn.whole, shapes=(whole.image, whole.kernel)),
    )
    base = joint(split, operands, reads)
    scale = product(eqn, measured(eqn, 0, image), measured(eqn, 1, kernel))
    terms = result(base, base.dims, scale, multiplicative(eqn, operands))
    made = reduced(eqn, terms, "sum", (_IN,), (_IN,), whole.joint)
    return _merged(eqn, made, whole)


def _merged(eqn: Equation, made: Relation, whole: _Grouped) -> Relation:
    """From (batch group, batch, group, output) to the result's batch and features."""
    batches, batch, groups, out = whole.joint[:_IN]
    dims = made.dims
    features = normal((*dims[_BATCH_GROUP], *dims[_GROUP], *dims[_OUT]))
    view_of_features = (
        *whole_dim(_BATCH_GROUP, batches),
        *whole_dim(_GROUP, groups),
        *whole_dim(_OUT, out),
    )
    view = [whole_dim(_BATCH, batch), view_of_features]
    pair = seen_through(replace(made, dims=(dims[_BATCH], features)), view)
    spec = eqn.per_rank.params["dimension_numbers"].out_spec
    place = {spec[0]: 0, spec[1]: 1}
    return laid_out(eqn, pair, [place.get(dim) for dim in range(len(spec))])
