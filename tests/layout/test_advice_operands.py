"""Rules that number operands in their own way: a message names the right one, and a fix that mends
it is shown."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Local, Replicated, Sliced, check

MESH = AbstractMesh((4,), ("tp",))
AVALS = {
    "rows": jax.ShapeDtypeStruct((8, 4), jnp.float32),
    "ids": jax.ShapeDtypeStruct((8, 4), jnp.int32),
    "mask": jax.ShapeDtypeStruct((4,), jnp.bool_),
    "bias": jax.ShapeDtypeStruct((4,), jnp.float32),
    "matrix": jax.ShapeDtypeStruct((4, 4), jnp.float32),
    "own": jax.ShapeDtypeStruct((), jnp.int32),
}
LAYOUTS = {"rows": Sliced(0), "ids": Sliced(0), "own": Local}


def psum(x):
    return lax.psum(x, "tp")


def identity(x):
    return x


def counted(op):
    """A bias that meets a pending sum as one case of a choice or update."""

    def f(mend, rows, mask, bias):
        return psum(op(mask, rows.sum(0), mend(bias)))

    return f


def of_axis_size(x):
    return x / lax.axis_size("tp")


def chosen_by_integer(mask, s, b):
    return lax.select_n(mask.astype(jnp.int32), s, s, b)


def set_rows(mask, s, b):
    return s.at[jnp.asarray([0, 1])].set(b[:2])


def added_rows(mask, s, b):
    return s.at[jnp.asarray([0, 1])].add(b[:2])


def window(mask, s, b):
    return lax.dynamic_update_slice(s, b[:2], (mask[0].astype(jnp.int32),))


CASES = [
    counted(lambda mask, s, b: jnp.where(mask, s, b)),
    counted(lambda mask, s, b: jnp.where(mask, b, s)),
    counted(chosen_by_integer),
    counted(set_rows),
    counted(added_rows),
    counted(window),
]


def refusal(f, mend, *names) -> list[str]:
    """The message, if the program is refused."""
    try:
        check(
            lambda *args: f(mend, *args),
            *(AVALS[name] for name in names),
            mesh=MESH,
            in_layouts=tuple(LAYOUTS.get(name, Replicated) for name in names),
            out_layouts=Replicated,
            check_vma=False,
        )
    except LayoutError as error:
        return str(error).splitlines()
    return []


@pytest.mark.parametrize("f", CASES)
def test_what_a_pending_sum_counts(f) -> None:
    lines = refusal(f, identity, "rows", "mask", "bias")
    assert lines[0].startswith("[LAYOUT_COUNTED]")
    assert any(line.endswith(" / jax.lax.axis_size('tp')") for line in lines if "fix: " in line)
    assert refusal(f, of_axis_size, "rows", "mask", "bias") == []


def indices(mend, ids, matrix):
    return matrix[jnp.asarray([0, 1]), mend(ids.sum(0)[:2])]


def second_column(mend, ids, matrix):
    return matrix[jnp.asarray([3, 2, 1, 0]), mend(ids.sum(0))]


def start(mend, ids, bias):
    return lax.dynamic_slice(bias, (mend(ids.sum()),), (2,))


def start_of_update(mend, ids, bias):
    return lax.dynamic_update_slice(bias, bias[:2], (mend(ids.sum()),))


def positions_of_update(mend, ids, bias):
    return bias.at[mend(ids.sum(0))].add(bias)


def second_of_several(mend, rows, bias):
    """One pmax of two values: the second is a pending sum."""
    return lax.pmax((bias, mend(rows.sum(0))), "tp")[1]


def sort_key(mend, rows, bias):
    return lax.sort((mend(rows.sum(0)), bias), num_keys=1)[0]


def predicate(mend, rows, bias):
    return jnp.where(mend(rows.sum(0)), bias, 0)


PENDING_OPERANDS = [
    (indices, ("ids", "matrix")),
    (second_column, ("ids", "matrix")),
    (start, ("ids", "bias")),
    (start_of_update, ("ids", "bias")),
    (positions_of_update, ("ids", "bias")),
    (second_of_several, ("rows", "bias")),
    (sort_key, ("rows", "bias")),
    (predicate, ("rows", "bias")),
]


@pytest.mark.parametrize("f, names", PENDING_OPERANDS)
def test_a_pending_operand(f, names) -> None:
    lines = refusal(f, identity, *names)
    assert lines[0].startswith("[LAYOUT_PARTIAL_NONLINEAR]")
    assert any("  fix: jax.lax.psum(..., 'tp') before " in line for line in lines), lines
    assert refusal(f, psum, *names) == []


def branches(count):
    """The last branch of `count`, between which each rank chooses, returns what each counts."""

    def f(mend, rows, own):
        makes = [*[identity] * (count - 1), lambda s: mend(jnp.ones(4))]
        return psum(lax.switch(own, makes, rows.sum(0)))

    return f


@pytest.mark.parametrize("count", [2, 3, 5])
def test_branches_that_each_rank_chooses_between(count: int) -> None:
    lines = refusal(branches(count), identity, "rows", "own")
    assert lines[0].startswith("[LAYOUT_COUNTED] the constant 1 is counted 4 times")
    assert "  fix (not tried): add the constant 1 / jax.lax.axis_size('tp')" in lines
    assert not any("operand 0" in line for line in lines), "a branch's result is no operand of cond"
