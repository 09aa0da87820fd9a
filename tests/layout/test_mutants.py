"""Deliberately broken parts of the checker: each makes it accept a wrong program that it refuses.

Rules that are broken in themselves are in test_rules.py; these are parts of the walk, the outputs,
control flow, and what depends on the rank's number.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import (
    LayoutError,
    Local,
    Partial,
    Replicated,
    Sliced,
    _apply,
    _bodies,
    _branches,
    _checked,
    _constants,
    _loops,
    _outputs,
    _pairs,
    _params,
    _ranked,
    _relation,
    _settle,
    _tie,
    _turns,
    _walk,
    check,
    on,
)
from jaxcc.layout.rules import (
    _combine,
    _joint,
    _masks,
    _pointwise,
    arithmetic,
    collective,
    elementwise,
    nested,
    rank_blocks,
)
from jaxcc.testing import rulecheck

R, S0, S1, P = Replicated, Sliced(0), Sliced(1), Partial()


@dataclass(frozen=True)
class Wrong:
    """A wrong program: whole shapes or arrays, layouts of arguments and results, and the mesh."""

    f: Callable[..., Any]
    args: tuple[Any, ...]
    ins: tuple[Any, ...]
    outs: Any
    sizes: Mapping[str, int]

    def check(self) -> None:
        avals = [
            x if hasattr(x, "dtype") else jax.ShapeDtypeStruct(x, jnp.float32) for x in self.args
        ]
        mesh = AbstractMesh(tuple(self.sizes.values()), tuple(self.sizes))
        check(
            self.f,
            *avals,
            mesh=mesh,
            in_layouts=self.ins,
            out_layouts=self.outs,
            check_vma=False,
        )


PROGRAMS: dict[str, Wrong] = {}


def wrong(args: Any, ins: Any, outs: Any, **sizes: int) -> Callable[[Any], Any]:
    def add(f: Any) -> Any:
        PROGRAMS[f.__name__] = Wrong(f, args, ins, outs, sizes or {"tp": 2})
        return f

    return add


def passed_on(x: Any) -> Any:
    n = lax.axis_size("tp")
    return lax.ppermute(x, "tp", [(rank, (rank + 1) % n) for rank in range(n)])


@wrong(((12,),), (S0,), S0)
def returned_on_the_next_rank(x):
    return passed_on(x)


@wrong(((12,),), (S0,), S0)
def passed_on_in_a_loop(x):
    return lax.scan(lambda c, _: (passed_on(c), None), x, None, length=3)[0]


@wrong(((12,),), (S0,), S0)
def changed_on_the_next_rank(x):
    return jnp.sin(passed_on(x))


@wrong(((12,), (12,)), (S0, S0), S0)
def product_with_the_neighbours_block(x, y):
    return passed_on(passed_on(x) * y)


IDS = jax.ShapeDtypeStruct((5,), jnp.int32)
COUNTS = jax.ShapeDtypeStruct((12,), jnp.uint32)
FLAG = jax.ShapeDtypeStruct((), jnp.bool_)
TABLE = ((12, 4), IDS)
ONE, OTHER = (np.random.default_rng(seed).standard_normal(12, np.float32) for seed in (0, 1))


def several(axis: str = "tp") -> bool:
    """More than one rank: what a program must not depend on."""
    return lax.axis_size(axis) > 1


@wrong(((12,), (12,)), (R, R), R)
def another_argument_on_one_rank(x, y):
    return x if several() else y


@wrong(((12, 12),), (R,), R)
def transposed_on_one_rank(x):
    return x if several() else x.T


@wrong(((12,),), (R,), R)
def another_captured_array_on_one_rank(x):
    return x + (jnp.asarray(ONE) if several() else jnp.asarray(OTHER))


@wrong(((12,),), (R,), R)
def another_direction_on_one_rank(x):
    return lax.cumsum(x, 0, reverse=several())


@wrong(((12,),), (R,), R)
def another_type_on_one_rank(x):
    return jnp.zeros(4, jnp.float32 if several() else jnp.int32)


@wrong(((4, 12), (12, 4)), (S1, S0), R, tp=4)
def summed_on_four_ranks_only(x, w):
    y = x @ w
    return lax.psum(y, "tp") if lax.axis_size("tp") != 2 else y


@wrong(((12,),), (R,), R)
def replicated_summed(x):
    return lax.psum(x, "tp")


@wrong(((12,),), (P,), R)
def pending_returned(x):
    return -x


@wrong(((12, 12),), (S0,), R)
def gathered_along_another_dimension(x):
    return lax.all_gather(x, "tp", axis=1, tiled=True).reshape(12, 12)


@wrong(((12,),), (Local,), R)
def local_returned_as_replicated(x):
    return x * 2.0


@wrong((COUNTS,), (Partial("max"),), R)
def wrapped_below_zero(x):
    return lax.pmax(x - jnp.uint32(3), "tp")


@wrong(((12,),), (R,), R)
def sign_forgotten(x):
    return jnp.abs(x * (-1.0 if several() else 1.0)) * (-1.0 if several() else 1.0)


@wrong(((12,),), (R,), R)
def summed_every_turn(x):
    return lax.fori_loop(0, 3, lambda i, y: lax.psum(y, "tp"), x)


@wrong(((12,),), (R,), R)
def summed_every_turn_and_halved(x):
    def turn(y, _):
        return lax.psum(y, "tp"), None

    return lax.scan(turn, x, None, length=2)[0]


@wrong(((12,), (12,)), (S0, S0), S0)
def as_many_turns_as_the_rank_needs(x, y):
    first = (jnp.float32(0), x)
    return lax.while_loop(lambda c: c[0] < y[0], lambda c: (c[0] + 1, c[1] * 2), first)[1]


@wrong(((12,), FLAG), (R, Local), Local)
def sum_by_a_rank_that_chooses(x, flag):
    return lax.cond(flag, lambda x: lax.pmean(x, "tp"), lambda x: x, x)


@wrong(((4, 4),), (S0,), R)
def rows_in_another_order(x):
    rows = lax.all_gather(x, "tp", axis=1, tiled=True).reshape(4, 4)
    first = jnp.zeros(4)
    return lax.scan(lambda c, row: (0.5 * c + row, None), first, rows)[0]


@wrong(((12,), ()), (P, R), R)
def pending_in_one_branch(x, p):
    return lax.cond(p > 0, lambda x: x * 1.0, lambda x: lax.psum(x, "tp"), x)


@wrong(((12, 4),), (R,), R)
def another_order_on_one_rank(x):
    def turn(c, row):
        return 0.5 * c + row, None

    return lax.scan(turn, jnp.zeros(4), x, reverse=several())[0]


@wrong(((12,),), (S0,), S0)
def positions_of_every_rank_from_zero(x):
    return x + jnp.arange(x.shape[0])


@wrong(((12,),), (S0,), S0)
def blocks_from_the_other_end(x):
    block = x.shape[0]
    rank = lax.axis_size("tp") - 1 - lax.axis_index("tp")
    return x + (rank * block + jnp.arange(block))


@wrong((IDS,), (R,), R)
def shifted_ids_returned(ids):
    return ids - lax.axis_index("tp") * 6


@wrong(TABLE, (S0, R), R)
def one_row_owned_twice(table, ids):
    block = table.shape[0]
    local = ids - lax.axis_index("tp") * block
    mine = (local >= 0) & (local <= block)
    rows = table[jnp.clip(local, 0, block - 1)]
    return lax.psum(jnp.where(mine[:, None], rows, 0.0), "tp")


@wrong(((12, 5), IDS), (S0, R), R)
def masked_by_another_dimension(table, ids):
    block = table.shape[0]
    local = ids - lax.axis_index("tp") * block
    mine = (local >= 0) & (local < block)
    rows = table[jnp.clip(local, 0, block - 1)]
    return lax.psum(jnp.where(mine[None, :], rows, 0.0), "tp")


@wrong(((12, 4), IDS, IDS), (S0, R, R), R)
def masked_by_other_ids(table, ids, others):
    block = table.shape[0]
    start = lax.axis_index("tp") * block
    mine = (others - start >= 0) & (others - start < block)
    rows = table[jnp.clip(ids - start, 0, block - 1)]
    return lax.psum(jnp.where(mine[:, None], rows, 0.0), "tp")


@wrong(((5, 4), IDS), (R, R), S0)
def updates_of_other_ranks(updates, ids):
    block = 12 // lax.axis_size("tp")
    local = ids - lax.axis_index("tp") * block
    return jnp.zeros((block, 4)).at[jnp.clip(local, 0, block - 1)].add(updates)


@wrong(((12,),), (R,), R, tp=3)
def first_rank_twice(x):
    own = jnp.where(lax.axis_index("tp") < 2, x, 0.0)
    return lax.psum(own, "tp")


@wrong(((24,),), (on(dp=S0, tp=S0),), on(tp=S0, dp=S0), dp=2, tp=2)
def major_axis_returned_as_minor(x):
    return 2.0 * x


@pytest.mark.parametrize("name", PROGRAMS)
def test_wrong_program_is_refused(name: str) -> None:
    with pytest.raises(LayoutError) as error:
        PROGRAMS[name].check()
    assert error.value.code != "LAYOUT_TRACE", error.value


ORIGINAL_BLOCKS = _settle.block_digits
ORIGINAL_RELATED = _pairs.Pairs.related
ORIGINAL_ROOTED = _apply.rooted


def _any_blocks(numbers: Any, dim: int, block: int, sizes: Mapping[str, int]) -> Any:
    return ORIGINAL_BLOCKS(_ranked.rank_along(tuple(sizes), sizes), dim, block, sizes)


def _related_anyway(pairs: Any, held: Any, whole: Any) -> Any:
    if held.relation is not None and held.base != whole.base:
        held = held._replace(base=whole.base)
    return ORIGINAL_RELATED(pairs, held, whole)


def _one_turn(applier: Any, step: Any, start: Any, wholes: Any, turn: Any) -> Any:
    turn(start)
    return list(start)


def _one_root(relation: Any, *args: Any) -> Any:
    made = ORIGINAL_ROOTED(relation, *args)
    return made if made.tie is None else replace(made, tie=replace(made.tie, root=0))


def _first_integer(ties: Sequence[Any]) -> Any:
    known = [tie for tie in ties if tie.root is not _tie.NO_INTEGER]
    return (known[0].root, known[0].view) if known else (_tie.NO_INTEGER, ties[0].view)


def _owned_anyway(x: Any, within: Any, inside: Any, outside: Any, sizes: Any) -> Any:
    partial = {**x.partial, **dict.fromkeys(_ranked.varies_over(within, sizes), "sum")}
    return replace(x, partial=partial, tie=None)


def _first_of(applier: Any, step: Any, helds: Any, whole: Any, what: str) -> Any:
    return helds[0]


def _without_local(eqn: Any, operands: Any) -> Any:
    made = _combine.together(eqn, operands)
    return replace(made, local=frozenset(), unmeasured=False)


def _any_row(applier: Any, step: Any, held: Any) -> Any:
    x = held.relation
    ranks = {axis: _loops._moved(digits, -1) for axis, digits in x.ranks.items()}
    dims = tuple(_loops._moved(digits, -1) for digits in x.dims[1:])
    return held._replace(relation=replace(x, dims=dims, ranks=ranks))


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _straightened_anyway(eqn: Any, operands: Any) -> Any:
    turned = {axis: turn for x in operands for axis, turn in x.turned.items()}
    return turned, [replace(x, turned={}) for x in operands]


def _yes(*args: Any, **kwargs: Any) -> bool:
    return True


@dataclass(frozen=True)
class Mutant:
    """A broken part, and the programs, one of which it lets pass, or the rules that it breaks."""

    parts: tuple[tuple[Any, str, Any], ...]
    programs: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.parts[0][1]}-{(*self.programs, *self.ops)[0]}"


def part(
    module: Any, name: str, broken: Any, *programs: str, ops: tuple[str, ...] = (), also: Any = ()
) -> Mutant:
    return Mutant(((module, name, broken), *also), programs, ops)


MUTANTS = [
    # The walk: which values belong together.
    part(_pairs.Pairs, "related", _related_anyway, "another_argument_on_one_rank"),
    part(_pairs, "seen_through", lambda relation, view: relation, "transposed_on_one_rank"),
    part(_constants, "_bits", lambda array: b"", "another_captured_array_on_one_rank"),
    part(_apply, "require_same_operation", _nothing, "another_direction_on_one_rank"),
    part(_walk, "require_same_dtype", _nothing, "another_type_on_one_rank",
         also=((_params, "require_same_dtype", _nothing),)),
    part(_checked, "group_sizes", lambda sizes: [dict(sizes)], "summed_on_four_ranks_only"),
    # Outputs.
    part(_outputs._Output, "scale", _nothing, "replicated_summed"),
    part(_outputs._Output, "against", _nothing, "pending_returned"),
    part(_outputs, "agrees", _yes, "gathered_along_another_dimension"),
    part(_outputs, "same_scale", _yes, "replicated_summed"),
    # Scales, signs, Local.
    part(_combine, "same_scale", _yes, ops=("add",)),
    part(_pointwise, "together", _without_local, "local_returned_as_replicated"),
    part(arithmetic, "unsigned", lambda eqn: False, "wrapped_below_zero"),
    part(elementwise, "require_unit", _nothing, "sign_forgotten"),
    # Collectives.
    part(collective, "_refuse_pending", _nothing, ops=("all_gather",)),
    part(collective, "_lead", lambda eqn, x, axis: _relation.uniform(eqn.sizes[axis]),
         ops=("all_to_all",)),
    part(collective, "PER_RANK", -1, ops=("all_gather",)),
    part(collective, "select", lambda ranks, axis, digits: ranks, ops=("all_gather",)),
    part(nested, "_require_known", _nothing, ops=("leave_shard_map",)),
    part(nested, "gathered", lambda eqn, x, axes, dim: x, ops=("leave_shard_map",)),
    part(collective, "_lead", lambda eqn, x, axis: _relation.uniform(eqn.sizes[axis]),
         ops=("leave_shard_map",)),
    part(nested, "scattered", lambda eqn, x, axis, dim: x, ops=("enter_shard_map",)),
    # Blocks that are passed on.
    part(_turns, "names_axis", lambda value, axes: False, ops=("all_gather",)),
    part(_apply, "turned_back", lambda turned, made: made, "changed_on_the_next_rank"),
    part(_apply, "straightened", _straightened_anyway, "product_with_the_neighbours_block"),
    part(_outputs._Output, "passed_on", _nothing, "returned_on_the_next_rank"),
    part(_bodies, "require_straight", _nothing, "passed_on_in_a_loop"),
    # Control flow.
    part(_bodies, "_same_factor", _yes, "summed_every_turn"),
    part(_loops, "_fixed_point", _one_turn, "summed_every_turn_and_halved"),
    part(_loops, "require_one_path", _nothing, "as_many_turns_as_the_rank_needs"),
    part(_branches, "_communicates", lambda program: False, "sum_by_a_rank_that_chooses"),
    part(_loops, "_row", _any_row, "rows_in_another_order"),
    part(_branches, "joined_value", _first_of, "pending_in_one_branch"),
    part(_loops, "_require_same", _nothing, "another_order_on_one_rank"),
    # The rank's number.
    part(_settle, "block_digits", _any_blocks, "positions_of_every_rank_from_zero"),
    part(_settle, "block_digits", _any_blocks, "blocks_from_the_other_end"),
    part(_tie.Tie, "offset_free", property(_yes), "shifted_ids_returned"),
    part(_settle, "_owned", _owned_anyway, "one_row_owned_twice"),
    part(_settle, "_owned", _owned_anyway, "first_rank_twice"),
    part(_masks, "one_integer", _first_integer, "masked_by_another_dimension",
         also=((_pointwise, "one_integer", _first_integer),)),
    part(_apply, "rooted", _one_root, "masked_by_other_ids",
         also=((_bodies, "rooted", _one_root),)),
    part(_joint, "require_full", _nothing, ops=("argmax",)),
    part(rank_blocks, "_adds_own", _yes, "updates_of_other_ranks"),
    # Orders.
    part(_outputs, "from_layout",
         lambda layout, whole, sizes: _relation.from_layout(
             type(layout)(tuple(reversed(layout.items_))), whole, sizes),
         "major_axis_returned_as_minor"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_broken_part_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, broken in mutant.parts:
        monkeypatch.setattr(module, name, broken)
    for name in mutant.programs:
        PROGRAMS[name].check()
    for op in mutant.ops:
        with pytest.raises((AssertionError, ValueError, KeyError)):
            for seed in range(5):
                rulecheck(op, n_samples=300, seed=seed)


def test_there_are_many_mutants() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS) >= 30
