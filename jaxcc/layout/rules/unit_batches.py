"""Batch dimensions of one element, which JAX leaves out of the positions: `take_along_axis` reads
along a dimension of size 1 in full, and along a longer one row by row.

A rank with one row of a sliced batch so has another form of gather and scatter than a group of one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxcc.layout._params import differs
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation
from jaxcc.layout.rules.columns import names_of


def with_unit_batches(eqn: Equation, indices: Relation) -> tuple[Equation, Relation]:
    """The equation and its positions, operand 1, where each rank's part has the batch dimensions
    that a group of one has.

    Raises:
      Refused: LAYOUT_STRUCTURE if the two sides differ in more than that.
    """
    mine, whole = (side.params["dimension_numbers"] for side in (eqn.per_rank, eqn.whole))
    if mine == whole:
        return eqn, indices
    name = names_of(whole)
    paired = zip(whole.operand_batching_dims, getattr(whole, name["batch"]), strict=True)
    new: dict[int, int] = {dim: at for dim, at in paired if dim not in mine.operand_batching_dims}
    shape, dims = list(eqn.per_rank.shapes[1]), list(indices.dims)
    for at in sorted(new.values()):
        shape.insert(at, 1)
        dims.insert(at, ())
    units = all(eqn.per_rank.shapes[0][dim] == 1 for dim in new)
    if not units or len(shape) != len(eqn.whole.shapes[1]) or not _alike(mine, whole, name, new):
        raise differs(f"{eqn.op} has {mine} on n ranks and {whole} on one")
    shapes = (eqn.per_rank.shapes[0], tuple(shape), *eqn.per_rank.shapes[2:])
    params = {**eqn.per_rank.params, "dimension_numbers": whole}
    side = replace(eqn.per_rank, params=params, shapes=shapes)
    return replace(eqn, per_rank=side), replace(indices, dims=tuple(dims))


def _alike(mine: Any, whole: Any, name: dict[str, str], new: dict[int, int]) -> bool:
    """Whether all is the same but for `new` batch dimensions in the place of windows."""
    apart = {*getattr(mine, name["dropped"]), *mine.operand_batching_dims}
    windows = getattr(mine, name["windows"])
    ndim = len(apart) + len(windows)
    walked = [dim for dim in range(ndim) if dim not in apart]
    kept = tuple(at for dim, at in zip(walked, windows, strict=True) if dim not in new)
    return (
        kept == tuple(getattr(whole, name["windows"]))
        and getattr(mine, name["map"]) == getattr(whole, name["map"])
        and getattr(mine, name["dropped"]) == getattr(whole, name["dropped"])
    )
