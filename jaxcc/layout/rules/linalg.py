"""Matrix factorisations and solvers, and Fourier transforms: functions of the trailing dimensions,
whatever the leading ones are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, layout_rule
from jaxcc.layout.rules._combine import require_unit, require_whole, unit_only
from jaxcc.layout.rules._joint import Labels, batched, joint, laid_out, linear_in

# How many trailing dimensions of each operand make one matrix or vector.
CORES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("cholesky", "eig", "eigh", "geqrf", "hessenberg", "lu", "qr", "schur", "svd"), (2,)
    ),
    "tridiagonal": (2,),
    "lu_pivots_to_permutation": (1,),
    "cholesky_update": (2, 1),
    "geqp3": (2, 1),
    "householder_product": (2, 1),
    "ormqr": (2, 1, 2),
    "symmetric_product": (2, 2),
}


@layout_rule(*CORES)
def _factorised(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    made = batched(eqn, operands, CORES[eqn.op])
    return [unit_only(eqn, operands, base) for base in made]


@layout_rule("triangular_solve", "tridiagonal_solve")
def _solved(eqn: Equation, *operands: Relation) -> Relation:
    """Each column of the last operand (row, if the matrix stands on the right) by itself."""
    *matrix, b = operands
    lead = len(b.dims) - 2
    columns = eqn.per_rank.params.get("left_side", True)
    vectors: Labels = [*range(lead), *((None, lead) if columns else (lead, None))]
    whole = [[*range(lead), *[None] * (len(x.dims) - lead)] for x in matrix]
    base = laid_out(eqn, joint(eqn, operands, [*whole, vectors]), vectors)
    require_whole(eqn, matrix, f"{eqn.op} is not linear in its matrix")
    require_unit(eqn, matrix, f"{eqn.op} is not linear in its matrix")
    return linear_in(eqn, operands, len(matrix), base)


@layout_rule("fft")
def _transformed(eqn: Equation, x: Relation) -> Relation:
    """The lengths follow the operand's, or, of a transform to real numbers, the result's."""
    lengths: Sequence[int] = eqn.per_rank.params["fft_lengths"]
    (base,) = batched(eqn, [x], (len(lengths),))
    return linear_in(eqn, [x], 0, base)
