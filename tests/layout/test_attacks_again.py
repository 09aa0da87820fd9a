"""More programs that an attack found: ranks' own values that were gathered, ratios that are only
nearly one, tests by running that saw too little, and one row of a batch on each rank."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from oracles import close, mesh_of

import jaxcc
from jaxcc.layout import LayoutError, Local, Partial, Replicated, Sliced, check

MESH = AbstractMesh((4,), ("tp",))


def of(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def n() -> Any:
    return lax.axis_size("tp")


def rank() -> Any:
    return lax.axis_index("tp")


def gathered(x: Any) -> Any:
    return lax.all_gather(x, "tp")


# Of what each rank had by itself, gathered, every way to get one's own back is one's own.
OWN_AGAIN: dict[str, Callable[[Any], Any]] = {
    "psum_scatter": lambda x: lax.psum_scatter(gathered(x), "tp"),
    "psum_scatter tiled": lambda x: lax.psum_scatter(
        lax.all_gather(x, "tp", tiled=True), "tp", tiled=True
    ),
    "all_to_all": lambda x: lax.all_to_all(gathered(x), "tp", 0, 0).mean(0),
    "dynamic_slice": lambda x: lax.dynamic_slice_in_dim(gathered(x), rank(), 1)[0],
    "dynamic_slice of a block": lambda x: lax.dynamic_slice_in_dim(
        lax.all_gather(x, "tp", tiled=True), rank() * 8, 8
    ),
    "index": lambda x: gathered(x)[rank()],
    "take": lambda x: jnp.take(gathered(x), rank(), axis=0),
    "one-hot": lambda x: jax.nn.one_hot(rank(), n(), dtype=x.dtype) @ gathered(x),
    "mask": lambda x: jnp.where((jnp.arange(n()) == rank())[:, None], gathered(x), 0).sum(0),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", OWN_AGAIN)
def test_a_ranks_own_value_stays_its_own(name: str, check_vma: bool) -> None:
    f = OWN_AGAIN[name]
    how: dict[str, Any] = dict(mesh=MESH, in_layouts=(Local,), check_vma=check_vma)
    with pytest.raises(LayoutError):
        check(f, of(8), **how, out_layouts=Replicated)

    def branches(x: Any) -> Any:
        return lax.cond(f(x)[0] > 0, lambda: lax.psum(x, "tp"), lambda: x * 0)

    with pytest.raises(LayoutError):
        check(branches, of(8), **how, out_layouts=Local)


@pytest.mark.parametrize("name", ["psum_scatter", "psum_scatter tiled", "all_to_all"])
def test_and_is_accepted_as_its_own(name: str) -> None:
    check(OWN_AGAIN[name], of(8), mesh=MESH, in_layouts=(Local,), out_layouts=Local)


ROWS = 2**22


def cancelling(x: Any) -> Any:
    nearly_one = jnp.float32(1 - 1 / x.shape[0])
    return (x * nearly_one - x) * (x.shape[0] * n())


def unbiased_mean(x: Any) -> Any:
    whole = lax.pmean(x.mean(), "tp")
    return (lax.pmean(x.sum() / (x.shape[0] - 1), "tp") - whole) * (x.shape[0] * n())


def drifting(x: Any) -> Any:
    nearly_one = jnp.float32(1 - 1 / x.shape[0])
    return lax.fori_loop(0, ROWS, lambda i, c: c * nearly_one, jnp.float32(1.0))


@pytest.mark.parametrize("f", [cancelling, unbiased_mean, drifting])
def test_refuses_ratios_that_are_nearly_one(f: Callable[..., Any]) -> None:
    with pytest.raises(LayoutError):
        check(f, of(ROWS), mesh=MESH, in_layouts=(Sliced(0),))


def test_refuses_what_a_batched_generator_makes_of_its_first_key() -> None:
    def keys(ids: Any, impl: str) -> Any:
        made = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(0, impl=impl), ids)
        return jax.random.key_data(made)

    how: dict[str, Any] = dict(mesh=MESH, in_layouts=(Sliced(0),))
    with pytest.raises(LayoutError):
        check(lambda ids: keys(ids, "unsafe_rbg"), of(16, dtype=jnp.int32), **how)
    for impl in ("threefry2x32", "rbg"):
        check(lambda ids, impl=impl: keys(ids, impl), of(16, dtype=jnp.int32), **how)


def test_refuses_terms_of_a_sum_in_eight_bits() -> None:
    def product(x: Any, w: Any, dtype: Any) -> Any:
        terms = lax.dot(x, w, preferred_element_type=dtype)
        return lax.psum(terms.astype(jnp.float32), "tp")

    how: dict[str, Any] = dict(mesh=MESH, in_layouts=(Sliced(1), Sliced(0)))
    with pytest.raises(LayoutError, match="float8"):
        check(lambda x, w: product(x, w, jnp.float8_e4m3fn), of(8, 16), of(16, 8), **how)
    check(lambda x, w: product(x, w, jnp.float32), of(8, 16), of(16, 8), **how)


# Tests by running ---------------------------------------------------------------------------------

TESTED: dict[str, Any] = dict(mesh=MESH, structure="rank-dependent")


@pytest.mark.parametrize("size", [1e-9, 1e-5, 1.0, 1e5])
@pytest.mark.parametrize("sums", [0, 2])
def test_running_sees_a_wrong_factor_whatever_the_magnitude(size: float, sums: int) -> None:
    def f(g: Any) -> Any:
        for _ in range(sums):
            g = lax.psum(g, "tp")
        return -size * g

    with pytest.raises(LayoutError) as error:
        check(f, of(8), **TESTED, in_layouts=(Partial(),), out_layouts=Replicated)
    assert error.value.code == "LAYOUT_TESTED"
    right = lambda g: -size * lax.psum(g, "tp")  # noqa: E731
    check(right, of(8), **TESTED, in_layouts=(Partial(),), out_layouts=Replicated)


@pytest.mark.parametrize("shift", [0, 1])
def test_running_reaches_every_block_of_a_table(shift: int) -> None:
    def embed(ids: Any, table: Any) -> Any:
        rows = table.shape[0]
        low = rank() * (rows - shift)
        mine = (ids >= low) & (ids < low + rows)
        found = table[jnp.clip(ids - low, 0, rows - 1)]
        return lax.psum(jnp.where(mine[:, None], found, 0.0), "tp")

    args = of(48, dtype=jnp.int32), of(64, 4)
    how: dict[str, Any] = dict(in_layouts=(Replicated, Sliced(0)), out_layouts=Replicated)
    if shift:
        with pytest.raises(LayoutError):
            check(embed, *args, **TESTED, **how)
    else:
        check(embed, *args, **TESTED, **how)


def test_a_local_argument_hides_no_other_result() -> None:
    def f(x: Any, y: Any, times: int) -> Any:
        for _ in range(times):
            x = lax.psum(x, "tp")
        return x, y, x + lax.psum(y, "tp")

    how: dict[str, Any] = dict(
        in_layouts=(Partial(), Local), out_layouts=(Replicated, Local, Replicated)
    )
    with pytest.raises(LayoutError):
        check(lambda x, y: f(x, y, 2), of(8), of(8), **TESTED, **how)
    check(lambda x, y: f(x, y, 1), of(8), of(8), **TESTED, **how)


# One row of a batch on each rank ------------------------------------------------------------------


def losses(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


@pytest.mark.parametrize("rows", [4, 8])
def test_one_row_on_each_rank(rows: int) -> None:
    def loss(logits: Any, labels: Any) -> Any:
        def mean(x: Any) -> Any:
            return lax.pmean(losses(x, labels).mean(), "tp")

        return jax.value_and_grad(mean)(logits)

    rng = np.random.default_rng(rows)
    logits = rng.standard_normal((rows, 3, 16)).astype(np.float32)
    labels = rng.integers(0, 16, (rows, 3)).astype(np.int32)
    typed = jaxcc.typed(
        mesh=mesh_of(4), in_layouts=(Sliced(0), Sliced(0)), out_layouts=(Replicated, Sliced(0))
    )(loss)
    value, grads = typed(logits, labels)
    wanted, slopes = jax.value_and_grad(lambda x: losses(x, labels).mean())(jnp.asarray(logits))
    close(value, wanted)
    close(grads, slopes)


@pytest.mark.parametrize("dim", [0, 1])
def test_reading_and_writing_along_an_axis_with_one_row_on_each_rank(dim: int) -> None:
    def along(x: Any, at: Any) -> Any:
        read = jnp.take_along_axis(x, at, -1)
        return read, jnp.put_along_axis(x, at, 7.0, -1, inplace=False)

    rng = np.random.default_rng(dim)
    shape = (4, 3, 9) if dim == 0 else (3, 4, 9)
    x = rng.standard_normal(shape).astype(np.float32)
    at = rng.integers(0, 9, (*shape[:2], 2)).astype(np.int32)
    layouts = (Sliced(dim), Sliced(dim))
    typed = jaxcc.typed(mesh=mesh_of(4), in_layouts=layouts, out_layouts=layouts)(along)
    read, written = typed(x, at)
    close(read, np.take_along_axis(x, at, -1))
    np.put_along_axis(x, at, 7.0, -1)
    close(written, x)


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis_name", ["tp", 3, ("tp", 3)])
@pytest.mark.parametrize("layout", [Partial, Sliced, 3, jax.P("tp"), Replicated])
def test_an_assumption_is_a_layout_over_an_axis(layout: Any, axis_name: Any) -> None:
    if layout == Replicated and axis_name == "tp":
        return
    with pytest.raises(LayoutError) as error:
        jaxcc.unsafe_assume(jnp.ones(8), layout, axis_name)
    assert error.value.code == "LAYOUT_ARGUMENT"


@pytest.mark.parametrize(
    "wrong",
    [
        *({"grad": one} for one in (1.5, "x", True, (0, 1.5))),
        *({"mesh": {"tp": one}} for one in (0, -2, None, "x", 2.5)),
    ],
)
def test_arguments_that_are_none(wrong: dict[str, Any]) -> None:
    how: dict[str, Any] = dict(mesh=MESH, in_layouts=(Replicated,)) | wrong
    with pytest.raises(LayoutError) as error:
        check(lambda x: x.sum(), of(8), **how)
    assert error.value.code == "LAYOUT_ARGUMENT"


@pytest.mark.parametrize("structure", ["rank-invariant", "rank-dependent"])
def test_a_pending_key(structure: Any) -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    with pytest.raises(LayoutError, match="keys have no sum"):
        check(
            lambda k: k, key, mesh=MESH, in_layouts=(Partial(),), out_layouts=Partial(),
            structure=structure,
        )  # fmt: skip


def test_what_is_no_function() -> None:
    with pytest.raises(LayoutError, match="takes a per-rank function"):
        check(3, of(8), mesh=MESH, in_layouts=(Replicated,))  # pyright: ignore


def test_a_reduction_of_nothing_on_one_side() -> None:
    def f(x: Any) -> Any:
        return jnp.full(8, x[0])[: n() - 1].sum()

    with pytest.raises(LayoutError):
        check(f, of(8), mesh=MESH, in_layouts=(Replicated,))
