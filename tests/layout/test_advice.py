"""What messages advise: whoever follows it has a program that is accepted."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Local, Partial, Replicated, Sliced, check, on

MESH = AbstractMesh((4,), ("tp",))
KEY = jax.ShapeDtypeStruct((2,), jnp.uint32)


def aval(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


X = aval(8, 16)


def message(f, *args, mesh=MESH, ins, outs=None) -> str:
    with pytest.raises(LayoutError) as error:
        check(f, *args, mesh=mesh, in_layouts=ins, out_layouts=outs)
    return str(error.value)


def fixes(text: str) -> list[str]:
    """The fixes without what they cost."""
    lines = [line.removeprefix("  fix: ") for line in text.splitlines() if "  fix: " in line]
    return [re.sub(r" \(one all-reduce.*\)$", "", line) for line in lines]


def test_a_fix_says_what_it_costs() -> None:
    text = message(lambda x: jax.nn.gelu(x.sum(0)), X, ins=(Sliced(0),), outs=Replicated)
    assert "fix: jax.lax.psum(..., 'tp') before integer_pow (one all-reduce of 64 B)" in text


def test_a_fix_that_does_not_mend_the_program_is_not_shown() -> None:
    """A psum before tanh would mend tanh, but then what follows sums the ranks' equal results."""

    def f(x):
        return lax.psum_scatter(jnp.tanh(x.sum(0)), "tp", tiled=True)

    assert fixes(message(f, X, ins=(Sliced(0),), outs=Sliced(0))) == []


def test_a_sum_that_comes_too_late() -> None:
    def f(x):
        return lax.psum(jnp.tanh(x.sum(0)), "tp")

    text = message(f, X, ins=(Sliced(0),), outs=Replicated)
    assert fixes(text) == ["jax.lax.psum(..., 'tp') before tanh, instead of the sum after it"]
    accepted(lambda x: jnp.tanh(lax.psum(x.sum(0), "tp")), X, ins=(Sliced(0),), outs=Replicated)


def deviation(x, finish=lambda mean: mean):
    mean = finish(x.mean(0))
    return jnp.sqrt(finish(((x - mean) ** 2).mean(0)))


def test_two_reductions_that_are_missing() -> None:
    text = message(deviation, X, ins=(Sliced(0),), outs=Replicated)
    cost = "(one all-reduce of 64 B)"
    both = [f"jax.lax.pmean(..., 'tp') before {op} {cost}" for op in ("sub", "sqrt")]
    assert f"fix: {', and '.join(both)}\n" in f"{text}\n"
    accepted(lambda x: deviation(x, pmean), X, ins=(Sliced(0),), outs=Replicated)
    text = message(lambda x: x.std(0), X, ins=(Sliced(0),), outs=Replicated)
    assert f"fix: in a std of your own: {', and '.join(both)}\n" in f"{text}\n"


def test_two_of_three_reductions_are_no_fix() -> None:
    def f(x):
        return lax.psum(jnp.tanh(lax.pmean(deviation(x), "tp")), "tp")

    assert fixes(message(f, X, ins=(Sliced(0),), outs=Replicated)) == []


def accepted(f, *args, mesh=MESH, ins, outs=None) -> None:
    check(f, *args, mesh=mesh, in_layouts=ins, out_layouts=outs)


# psum or pmean: whichever leaves a scale of 1.


def same(x):
    return x


def psum(x):
    return lax.psum(x, "tp")


def pmean(x):
    return lax.pmean(x, "tp")


def norm(finish):
    def f(x):
        square = finish((x * x).mean(1, keepdims=True))
        return x * lax.rsqrt(square + 1e-6)

    return f


def test_rms_norm_over_a_sliced_dimension() -> None:
    text = message(norm(same), X, ins=(Sliced(1),))
    assert fixes(text) == ["jax.lax.pmean(..., 'tp') before rsqrt"]
    accepted(norm(pmean), X, ins=(Sliced(1),))
    text = message(norm(psum), X, ins=(Sliced(1),))
    assert "which is 4 times what a group of one has, and the constant 1e-06, which is" in text
    accepted(norm(pmean), X, ins=(Sliced(1),))


@pytest.mark.parametrize(
    "reduce, word, right, other",
    [(jnp.mean, "pmean", pmean, psum), (jnp.sum, "psum", psum, pmean)],
)
def test_data_parallel_loss(reduce, word, right, other) -> None:
    text = message(lambda x: reduce(x**2), X, ins=(Sliced(0),), outs=Replicated)
    assert fixes(text) == [f"jax.lax.{word}(..., 'tp') before it is returned"]
    accepted(lambda x: right(reduce(x**2)), X, ins=(Sliced(0),), outs=Replicated)
    text = message(lambda x: other(reduce(x**2)), X, ins=(Sliced(0),), outs=Replicated)
    assert f"jax.lax.{word}(..., 'tp')" in text


def test_neither_psum_nor_pmean() -> None:
    def f(x):
        return x.sum(1) * lax.axis_size("tp") ** 2

    text = message(f, X, ins=(Sliced(1),), outs=Replicated)
    assert "16 times what a group of one has" in text
    assert not any(fix.startswith("jax.lax.p") for fix in fixes(text))


def test_a_max_is_finished_by_pmax() -> None:
    text = message(lambda x: x.max(), X, ins=(Sliced(1),), outs=Replicated)
    assert fixes(text) == ["jax.lax.pmax(..., 'tp') before it is returned"]


def test_each_axis_gets_its_own_reduction() -> None:
    mesh = AbstractMesh((2, 4), ("dp", "tp"))
    ins = (on(dp=Sliced(0), tp=Sliced(1)),)
    text = message(lambda x: x.mean(0).sum(), X, mesh=mesh, ins=ins, outs=Replicated)
    assert fixes(text) == ["jax.lax.pmean(jax.lax.psum(..., 'tp'), 'dp') before it is returned"]

    def f(x):
        return lax.pmean(x.mean(0).sum(), "dp")

    text = message(f, X, mesh=mesh, ins=ins, outs=Replicated)
    assert fixes(text) == ["jax.lax.psum(..., 'tp') before it is returned"]
    accepted(lambda x: psum(f(x)), X, mesh=mesh, ins=ins, outs=Replicated)


def gradient(loss):
    return lambda w, x: jax.grad(lambda w: loss(((x @ w) ** 2).mean()))(w)


def test_gradient_of_a_local_mean() -> None:
    kwargs = {"ins": (Replicated, Sliced(0)), "outs": Replicated}
    text = message(gradient(same), aval(16), X, **kwargs)
    assert "take jax.lax.pmean(loss, 'tp') before differentiating" in text
    assert "remove the psum" not in text
    accepted(gradient(pmean), aval(16), X, **kwargs)

    def varying(w, x):
        return jax.grad(lambda w: ((x @ w) ** 2).mean())(lax.pcast(w, "tp", to="varying"))

    text = message(varying, aval(16), X, **kwargs)
    assert fixes(text) == ["jax.lax.pmean(..., 'tp') before it is returned"]
    accepted(lambda w, x: pmean(varying(w, x)), aval(16), X, **kwargs)


def test_a_pmean_of_sums() -> None:
    text = message(lambda x: lax.pmean(x.sum(1), "tp"), X, ins=(Sliced(1),))
    assert fixes(text) == ["use jax.lax.psum(..., 'tp') for the pmean"]
    text = message(lambda x: psum(x.sum(1)) / lax.axis_size("tp"), X, ins=(Sliced(1),))
    assert fixes(text) == ["leave out the division by jax.lax.axis_size('tp')"]


# What the operands are beside the group of one's.


def test_a_shape_that_depends_on_the_group() -> None:
    def f(x):
        return lax.psum(x.sum(1), "tp") + x.shape[1]

    text = message(f, X, ins=(Sliced(1),))
    assert "4 on n ranks and 16 on one (from a literal or a shape)" in text
    assert fixes(text) == ["use the whole size: multiply 4 by jax.lax.axis_size('tp')"]

    def right(x):
        return lax.psum(x.sum(1), "tp") + x.shape[1] * lax.axis_size("tp")

    accepted(right, X, ins=(Sliced(1),))


def test_a_value_that_a_pending_sum_counts() -> None:
    def f(x):
        return x.mean(1) * lax.axis_size("tp") + lax.psum(x.sum(1), "tp")

    text = message(f, X, ins=(Sliced(1),))
    assert "which is 16 times what a group of one has" in text
    assert "which is equal to what a group of one has and is counted 4 times" in text
    assert "psum stands" not in text and "pmean stands" not in text


def test_ids_and_a_slice_of_a_vocabulary() -> None:
    ids, table = aval(8, dtype=jnp.int32), aval(32, 16)

    def f(ids, table):
        return jnp.where(ids < table.shape[0], 1, 0)

    text = message(f, ids, table, ins=(Replicated, Sliced(0)))
    assert "8 on n ranks and 32 on one" in text
    assert "mine = ids - jax.lax.axis_index(axis) * rows" in text

    def by_division(ids, table):
        own = ids // table.shape[0] == lax.axis_index("tp")
        return lax.psum(jnp.where(own, 1, 0), "tp")

    text = message(by_division, ids, table, ins=(Replicated, Sliced(0)))
    assert "mine = ids - jax.lax.axis_index(axis) * rows" in text

    def right(ids, table, positions):
        mine = ids[:, None] == positions[None]
        return lax.psum(mine.astype(table.dtype) @ table, "tp")

    positions = aval(32, dtype=jnp.int32)
    accepted(right, ids, table, positions, ins=(Replicated, Sliced(0), Sliced(0)))


# Random numbers and ranks.


def dropped(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)


def dropped_by_rank(x, key):
    return dropped(x, jax.random.fold_in(key, lax.axis_index("tp")))


def dropped_by_own_key(x, keys):
    return dropped(x, keys[0])


@pytest.mark.parametrize(
    "f, key, layout",
    [
        (dropped, KEY, Replicated),
        (dropped, KEY, Local),
        (dropped_by_rank, KEY, Replicated),
        (dropped_by_own_key, aval(4, 2, dtype=jnp.uint32), Sliced(0)),
    ],
)
def test_random_numbers_of_a_rank(f, key, layout) -> None:
    text = message(f, X, key, ins=(Sliced(1), layout))
    assert "global indices" in text and "register" not in text
    draw, make = fixes(text)
    assert "jaxcc.random" in draw and "pass it as an argument with the layout" in make
    mask = aval(8, 16, dtype=jnp.bool_)
    accepted(lambda x, mask: jnp.where(mask, x, 0), X, mask, ins=(Sliced(1), Sliced(1)))


def test_offsets_of_a_rank() -> None:
    def f(x):
        rows = lax.axis_index("tp") * x.shape[0] + jnp.arange(x.shape[0])
        return x * rows[:, None]

    accepted(f, X, ins=(Sliced(0),))

    def g(x):
        return x * jnp.arange(x.shape[0])[:, None]

    text = message(g, X, ins=(Sliced(0),))
    assert "jax.lax.axis_index('tp') * 2 + jax.numpy.arange(2)" in text
    rows = aval(8)
    accepted(lambda x, rows: x * rows[:, None], X, rows, ins=(Sliced(0), Sliced(0)))


# Results.


def test_a_sliced_result_that_is_declared_whole() -> None:
    text = message(jnp.tanh, X, ins=(Sliced(1),), outs=Replicated)
    assert "result 0 is Sliced(1)@tp, and its layout says Replicated" in text
    assert "steps of" not in text
    assert fixes(text) == [
        "declare result 0 Sliced(1) in out_layouts",
        "jax.lax.all_gather(..., 'tp', axis=1, tiled=True) before it is returned",
    ]
    accepted(jnp.tanh, X, ins=(Sliced(1),), outs=Sliced(1))

    def gathered(x):
        return lax.all_gather(x, "tp", axis=1, tiled=True)

    accepted(gathered, X, ins=(Sliced(1),), outs=Replicated)


def test_a_result_that_is_sliced_along_another_dimension() -> None:
    text = message(jnp.tanh, X, ins=(Sliced(1),), outs=Sliced(0))
    assert "jax.lax.all_to_all(..., 'tp', split_axis=0, concat_axis=1, tiled=True)" in text

    def moved(x):
        return lax.all_to_all(x, "tp", split_axis=0, concat_axis=1, tiled=True)

    accepted(moved, X, ins=(Sliced(1),), outs=Sliced(0))


def test_a_whole_result_that_is_declared_sliced() -> None:
    text = message(jnp.tanh, X, ins=(Replicated,), outs=Sliced(0))
    assert "result 0 is Replicated, and its layout says Sliced(0)@tp" in text
    assert fixes(text) == ["declare result 0 Replicated in out_layouts"]


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("axis, tiled", [(0, True), (1, True), (0, False), (1, False), (2, False)])
def test_a_wrong_gather(dim: int, axis: int, tiled: bool) -> None:
    if tiled and axis == dim:
        return

    def f(x):
        return lax.all_gather(x, "tp", axis=axis, tiled=tiled)

    for outs in (Replicated, None):
        text = message(f, X, ins=(Sliced(dim),), outs=outs)
        assert fixes(text) == [f"jax.lax.all_gather(..., axis={dim}, tiled=True)"]
        assert "steps of" not in text
        where = f"dimension {axis}" if tiled else f"a new dimension {axis}"
        assert f"the ranks' blocks of dimension {dim} lie along {where}" in text


def test_a_pending_result_keeps_its_layout_in_the_advice() -> None:
    text = message(lambda x: x.mean(1), X, ins=(Sliced(1),), outs=Partial())
    # A pmean would make it Replicated.
    assert fixes(text) == ["divide it by jax.lax.axis_size('tp')"]
    accepted(lambda x: x.mean(1) / lax.axis_size("tp"), X, ins=(Sliced(1),), outs=Partial())
