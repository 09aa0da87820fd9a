"""Functions along a dimension that ranks hold in blocks, against the plain ones on whole arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import quick
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import jaxcc
from jaxcc import LayoutError, Partial, Replicated, Sliced, comm, on
from jaxcc.testing import assert_rank_invariant, raises_layout

Rng = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A combinator on blocks, and the plain function that it stands for.

    Attributes:
      f: of per-rank arrays.
      plain: of whole arrays.
      make: random whole arrays, for a number of ranks.
      layouts: of the arguments.
      out: of the result.
      grad: the arguments to differentiate.
      shared: f sums what the ranks hold, so that with check_vma=False each of them counts again
        what is passed back.
    """

    f: Callable[..., Any]
    plain: Callable[..., Any]
    make: Callable[[Rng, int], Sequence[Any]]
    layouts: Sequence[Any]
    out: Any
    grad: tuple[int, ...] = ()
    shared: bool = False


def normal(*shape: int, ranks: int = 0) -> Callable[[Rng, int], Sequence[Any]]:
    """One array; dimension `ranks` is multiplied by the number of ranks."""

    def make(rng: Rng, n: int) -> Sequence[Any]:
        whole = [size * n if at == ranks % len(shape) else size for at, size in enumerate(shape)]
        return [rng.normal(size=whole).astype(np.float32)]

    return make


def logits_and_labels(rng: Rng, n: int) -> Sequence[Any]:
    return [rng.normal(size=(7, 5 * n)).astype(np.float32), rng.integers(0, 5 * n, 7, np.int32)]


def ids_and_table(rng: Rng, n: int) -> Sequence[Any]:
    return [
        rng.integers(-3, 3 * n + 3, (4, 5), np.int32),
        rng.normal(size=(3 * n, 6)).astype(np.float32),
    ]


def sequences(rng: Rng, n: int) -> Sequence[Any]:
    return [rng.normal(size=(2, 3 * n, 3, 4)).astype(np.float32) for _ in range(3)]


def rows(ids: Any, table: Any) -> Any:
    """The rows that there are, and zeros."""
    there = (ids >= 0) & (ids < len(table))
    return jnp.where(there[..., None], jnp.take(table, ids, axis=0, mode="clip"), 0)


def smoothed(logits: Any, labels: Any) -> Any:
    wanted = optax.smooth_labels(jax.nn.one_hot(labels, logits.shape[-1]), 0.1)
    return optax.softmax_cross_entropy(logits, wanted)


S0, S1, R = Sliced(0), Sliced(1), Replicated
CASES = {
    "logsumexp": Case(
        lambda x: comm.logsumexp(x, "tp"), lambda x: jax.nn.logsumexp(x, -1),
        normal(4, 3, ranks=-1), [S1], R, (0,), shared=True,
    ),
    "logsumexp keepdims": Case(
        lambda x: comm.logsumexp(x, "tp", axis=0, keepdims=True),
        lambda x: jax.nn.logsumexp(x, 0, keepdims=True), normal(3, 4), [S0], R, (0,), shared=True,
    ),
    "softmax": Case(
        lambda x: comm.softmax(x, "tp"), jax.nn.softmax, normal(4, 3, ranks=-1), [S1], S1, (0,)
    ),
    "log_softmax": Case(
        lambda x: comm.log_softmax(x, "tp", axis=0), lambda x: jax.nn.log_softmax(x, 0),
        normal(3, 4), [S0], S0, (0,),
    ),
    "cross_entropy": Case(
        lambda x, y: comm.cross_entropy(x, y, "tp"),
        optax.softmax_cross_entropy_with_integer_labels, logits_and_labels, [S1, R], R, (0,),
        shared=True,
    ),
    "cross_entropy smoothed": Case(
        lambda x, y: comm.cross_entropy(x, y, "tp", label_smoothing=0.1), smoothed,
        logits_and_labels, [S1, R], R, (0,), shared=True,
    ),
    "embed": Case(
        lambda i, t: comm.embed(i, t, "tp"), rows, ids_and_table, [R, S0], R, (1,), shared=True
    ),
    "argmax": Case(
        lambda x: comm.argmax(x, "tp"), lambda x: jnp.argmax(x, -1), normal(4, 3, ranks=-1),
        [S1], R,
    ),
    "argmin": Case(
        lambda x: comm.argmin(x, "tp", axis=0), lambda x: jnp.argmin(x, 0), normal(3, 4), [S0], R
    ),
    "top_k": Case(
        lambda x: comm.top_k(x, 5, "tp"), lambda x: lax.top_k(x, 5), normal(4, 5, ranks=-1),
        [S1], (R, R),
    ),
    "top_k values": Case(
        lambda x: comm.top_k(x, 5, "tp")[0], lambda x: lax.top_k(x, 5)[0],
        normal(4, 5, ranks=-1), [S1], R, (0,), shared=True,
    ),
    "cumsum": Case(
        lambda x: comm.cumsum(x, "tp"), lambda x: jnp.cumsum(x, 0), normal(3, 4), [S0], S0, (0,)
    ),
    "cumsum reverse": Case(
        lambda x: comm.cumsum(x, "tp", axis=-1, reverse=True),
        lambda x: lax.cumsum(x, 1, reverse=True), normal(4, 3, ranks=-1), [S1], S1, (0,),
    ),
    "cumprod": Case(
        lambda x: comm.cumprod(x, "tp"), lambda x: jnp.cumprod(x, 0), normal(3, 4), [S0], S0
    ),
    "cummax": Case(
        lambda x: comm.cummax(x, "tp"), lambda x: lax.cummax(x, 0), normal(3, 4), [S0], S0
    ),
    "cummin reverse": Case(
        lambda x: comm.cummin(x, "tp", reverse=True), lambda x: lax.cummin(x, 0, reverse=True),
        normal(3, 4), [S0], S0,
    ),
    "ring_attention": Case(
        lambda q, k, v: comm.ring_attention(q, k, v, "tp"), jax.nn.dot_product_attention,
        sequences, [S1] * 3, S1, (0, 1, 2),
    ),
    "ring_attention causal": Case(
        lambda q, k, v: comm.ring_attention(q, k, v, "tp", causal=True, scale=0.3),
        lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        sequences, [S1] * 3, S1, (0, 1, 2),
    ),
}  # fmt: skip
PRIMITIVES = [
    "argmax", "argmin", "top_k", "cumsum", "cumprod", "cummax", "cummin reverse",
    "ring_attention causal",
]  # fmt: skip
DIFFERENTIABLE = [name for name, case in CASES.items() if case.grad]


def spec(layout: Any) -> P:
    return P(*[None] * layout.dim, "tp") if isinstance(layout, Sliced) else P()


def on_devices(
    f: Callable[..., Any], arrays: Sequence[Any], layouts: Any, out: Any, n: int, check_vma: bool
) -> Any:
    mesh = jax.make_mesh((n,), ("tp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])
    return quick.jit(
        jax.shard_map(
            f,
            mesh=mesh,
            in_specs=tuple(map(spec, layouts)),
            out_specs=jax.tree.map(spec, out),
            check_vma=check_vma,
        )
    )(*arrays)


def close(got: Any, wanted: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        assert a.dtype == b.dtype
        a, b = (np.asarray(one).astype(np.float64) for one in (a, b))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("n, check_vma", [(2, False), (4, True)])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_plain_function(name: str, n: int, check_vma: bool) -> None:
    case, rng = CASES[name], np.random.default_rng(n)
    arrays = case.make(rng, n)
    got = on_devices(case.f, arrays, case.layouts, case.out, n, check_vma)
    close(got, quick.jit(case.plain)(*arrays))


@pytest.mark.parametrize("name", CASES)
def test_is_proved_and_the_same_on_three_ranks(name: str) -> None:
    """Three ranks, emulated; `assert_rank_invariant` looks at every rank's copy."""
    case = CASES[name]
    arrays = case.make(np.random.default_rng(3), 3)
    given: dict[str, Any] = {
        "mesh": AbstractMesh((3,), ("tp",)),
        "in_layouts": tuple(case.layouts),
        "out_layouts": case.out,
    }
    for check_vma in (True, False):
        assert jaxcc.check(case.f, *arrays, check_vma=check_vma, **given).proved
    assert_rank_invariant(case.f, *arrays, **given)


def gradients(case: Case, of: Callable[..., Any], reduce: Callable[[Any], Any]) -> Any:
    def total(*arrays: Any) -> Any:
        made = of(*arrays)
        # Every element of the result weighs differently in the loss.
        return reduce((made * jnp.cos(made)).sum())

    return jax.grad(total, case.grad)


@pytest.mark.parametrize("n, check_vma", [(2, False), (4, True)])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_equal_those_of_the_plain_function(name: str, n: int, check_vma: bool) -> None:
    case, rng = CASES[name], np.random.default_rng(n)
    arrays = case.make(rng, n)
    layouts = [case.layouts[at] for at in case.grad]

    def reduce(x: Any) -> Any:
        return x if case.out == R or not check_vma else lax.psum(x, "tp")

    got = on_devices(
        gradients(case, case.f, reduce), arrays, case.layouts, tuple(layouts), n, check_vma
    )
    wanted = quick.jit(gradients(case, case.plain, lambda x: x))(*arrays)
    # Without check_vma the derivative of psum is psum, as everywhere in JAX.
    counted = n if case.shared and not check_vma else 1
    close(jax.tree.map(lambda x: x / counted, got), wanted, rtol=1e-4)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_are_proved(name: str) -> None:
    case = CASES[name]
    arrays = case.make(np.random.default_rng(0), 4)
    given: dict[str, Any] = {
        "mesh": AbstractMesh((4,), ("tp",)),
        "in_layouts": tuple(case.layouts),
        "out_layouts": case.out,
        "grad": case.grad,
    }
    assert jaxcc.check(case.f, *arrays, **given).proved
    if case.shared:
        with raises_layout("LAYOUT_SCALE"):
            jaxcc.check(case.f, *arrays, check_vma=False, **given)
    else:
        assert jaxcc.check(case.f, *arrays, check_vma=False, **given).proved


@pytest.mark.parametrize("name", ["cumsum reverse", "top_k values", "ring_attention causal"])
def test_proved_gradients_are_those_on_three_ranks(name: str) -> None:
    case = CASES[name]
    arrays = case.make(np.random.default_rng(1), 3)

    def reduce(x: Any) -> Any:
        return x if case.out == R else lax.psum(x, "tp")

    assert_rank_invariant(
        gradients(case, case.f, reduce), *arrays, mesh=AbstractMesh((3,), ("tp",)),
        in_layouts=tuple(case.layouts), out_layouts=tuple(case.layouts[at] for at in case.grad),
        rtol=1e-4,
    )  # fmt: skip


ALONG: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = {
    "cumsum": (lambda x: comm.cumsum(x, "tp"), lambda x: jnp.cumsum(x, 0), S0),
    "cumprod": (lambda x: comm.cumprod(x, "tp"), lambda x: jnp.cumprod(x, 0), S0),
    "cummax": (lambda x: comm.cummax(x, "tp"), lambda x: lax.cummax(x, 0), S0),
    "cummin": (lambda x: comm.cummin(x, "tp"), lambda x: lax.cummin(x, 0), S0),
    "argmax": (lambda x: comm.argmax(x, "tp", axis=0), lambda x: jnp.argmax(x, 0), R),
    "argmin": (lambda x: comm.argmin(x, "tp", axis=0), lambda x: jnp.argmin(x, 0), R),
    "top_k": (lambda x: comm.top_k(x.T, 6, "tp"), lambda x: lax.top_k(x.T, 6), (R, R)),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "uint32", "int8"])
@pytest.mark.parametrize("name", ALONG)
def test_dtypes_and_ties(name: str, dtype: str) -> None:
    """Few different numbers, so that most elements tie; all sums and products are exact."""
    f, plain, out = ALONG[name]
    x = np.random.default_rng(5).integers(0, 3, (12, 5)).astype(jnp.dtype(dtype))
    close(on_devices(f, [x], [S0], out, 4, True), quick.jit(plain)(x), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "cross_entropy", "ring_attention"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_add_up_in_float32(name: str, dtype: str) -> None:
    case = CASES[name]
    arrays = [
        x.astype(jnp.dtype(dtype)) if x.dtype == np.float32 else x
        for x in case.make(np.random.default_rng(2), 4)
    ]
    got = on_devices(case.f, arrays, case.layouts, case.out, 4, True)
    wide = [x.astype(np.float32) if x.dtype.itemsize < 4 else x for x in arrays]
    wanted = quick.jit(case.plain)(*wide)
    assert got.dtype == jnp.dtype(dtype)
    np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", ["argmax", "argmin", "cummax", "cummin", "top_k"])
def test_infinities_and_nans_are_where_the_plain_function_has_them(name: str) -> None:
    f, plain, out = ALONG[name]
    x = np.random.default_rng(8).normal(size=(8, 6)).astype(np.float32)
    x[:, 0], x[3, 1], x[5, 1], x[2:, 2], x[:, 3] = -np.inf, np.inf, np.inf, -np.inf, np.inf
    if name in ("argmax", "argmin"):
        x[6, 4] = x[2, 4] = np.nan
    close(on_devices(f, [x], [S0], out, 4, True), quick.jit(plain)(x))


def test_rows_of_infinities() -> None:
    x = np.full((3, 8), -np.inf, np.float32)
    x[1, 5], x[2] = 2.0, np.arange(8.0)
    got = on_devices(lambda x: comm.logsumexp(x, "tp"), [x], [S1], R, 4, True)
    close(got, jax.nn.logsumexp(x, -1))
    x[0, 2] = 1.0
    got = on_devices(lambda x: comm.softmax(x, "tp"), [x], [S1], S1, 4, True)
    close(got, jax.nn.softmax(x))


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[1e4, 1e4 - 1, 0.0, -1e4]], np.float32)
    got = on_devices(lambda x: comm.logsumexp(x, "tp"), [x], [S1], R, 4, True)
    close(got, jax.nn.logsumexp(x, -1))


def test_empty_arrays() -> None:
    for shape in [(0, 3), (4, 0)]:
        x = np.zeros(shape, np.float32)
        for check_vma in (True, False):
            got = on_devices(lambda x: comm.cumsum(x, "tp"), [x], [S0], S0, 4, check_vma)
            assert got.shape == shape
    x = np.zeros((0, 4), np.float32)
    assert on_devices(lambda x: comm.argmax(x, "tp"), [x], [S1], R, 2, True).shape == (0,)
    with raises_layout("LAYOUT_ARGUMENT"):
        on_devices(lambda x: comm.argmax(x, "tp", axis=0), [x], [S0], R, 2, True)


@pytest.mark.parametrize("name", [*PRIMITIVES, "cross_entropy", "embed"])
def test_vmap_scan_and_jit(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(6)
    sets = [case.make(rng, 4) for _ in range(3)]
    stacks = [np.stack(arrays) for arrays in zip(*sets, strict=True)]
    layouts = [Sliced(one.dim + 1) if isinstance(one, Sliced) else one for one in case.layouts]
    out = jax.tree.map(
        lambda one: Sliced(one.dim + 1) if isinstance(one, Sliced) else one, case.out
    )
    plain = quick.jit(case.plain)
    results = [plain(*arrays) for arrays in sets]
    wanted = jax.tree.map(lambda *one: np.stack(one), *results)

    def scanned(*arrays: Any) -> Any:
        return lax.scan(lambda _, xs: (None, jax.jit(case.f)(*xs)), None, arrays)[1]

    for f in (jax.vmap(case.f), scanned):
        close(on_devices(f, stacks, layouts, out, 4, True), wanted)


def test_vmap_of_some_operands() -> None:
    q, k, v = sequences(np.random.default_rng(4), 2)
    several = np.stack([q, 2 * q], -1)

    def f(q: Any, k: Any, v: Any) -> Any:
        one = jax.vmap(lambda q: comm.ring_attention(q, k, v, "tp"), in_axes=-1)
        return one(q)

    got = on_devices(f, [several, k, v], [S1] * 3, Sliced(2), 2, True)
    wanted = [jax.nn.dot_product_attention(x, k, v) for x in (q, 2 * q)]
    close(got, jnp.stack(wanted))


@pytest.mark.parametrize("name", PRIMITIVES)
def test_ranks_as_lanes_of_vmap(name: str) -> None:
    """`vmap` with an axis name is a group too."""
    case = CASES[name]
    arrays = case.make(np.random.default_rng(9), 3)
    parts = [
        jnp.stack(jnp.split(x, 3, one.dim)) if isinstance(one, Sliced) else jnp.stack([x] * 3)
        for x, one in zip(arrays, case.layouts, strict=True)
    ]
    results = quick.jit(jax.vmap(case.f, axis_name="tp"))(*parts)

    def joined(x: Any, one: Any) -> Any:
        return jnp.concatenate(list(x), one.dim) if isinstance(one, Sliced) else x[-1]

    close(jax.tree.map(joined, results, case.out), quick.jit(case.plain)(*arrays))


def test_derivative_in_forward_mode_is_linear_in_the_tangent() -> None:
    x, t = np.random.default_rng(7).normal(size=(2, 8, 3)).astype(np.float32)
    for name in ("cumsum", "top_k"):
        f, plain, out = ALONG[name]

        def moved(x: Any, t: Any, f: Any = f) -> Any:
            return jax.tree.leaves(jax.jvp(f, (x,), (t,))[1])[0]

        out = out[0] if isinstance(out, tuple) else out
        got = on_devices(moved, [x, t], [S0, S0], out, 4, True)
        close(got, jax.tree.leaves(jax.jvp(plain, (jnp.asarray(x),), (jnp.asarray(t),))[1])[0])


def test_several_axes_pass_through() -> None:
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    x = jax.ShapeDtypeStruct((4, 8, 6, 5), jnp.float32)
    both = on(dp=Sliced(0), tp=Sliced(1))
    heads = on(dp=Sliced(2), tp=Sliced(1))
    for layout in (both, heads):
        report = jaxcc.check(
            lambda q, k, v: comm.ring_attention(q, k, v, "tp"), x, x, x,
            mesh=mesh, in_layouts=(layout,) * 3, out_layouts=layout, grad=(0, 1, 2),
        )  # fmt: skip
        assert report.proved
    pending = on(dp=Partial(), tp=Sliced(1))
    report = jaxcc.check(
        lambda x: comm.cumsum(x, "tp", axis=1), x, mesh=mesh, in_layouts=(pending,)
    )
    assert report.out_layouts[0] == pending
    split = on(dp=Sliced(1), tp=Sliced(1))
    with raises_layout("LAYOUT_MISMATCH"):
        jaxcc.check(lambda x: comm.cumsum(x, "tp", axis=1), x, mesh=mesh, in_layouts=(split,))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("layout", [R, Partial(), "other"])
def test_wrong_layouts_are_refused(name: str, layout: Any) -> None:
    case = CASES[name]
    wrong = [
        one if one == R else (Sliced(1 - one.dim) if layout == "other" else layout)
        for one in case.layouts
    ]
    arrays = [
        jax.ShapeDtypeStruct(tuple(4 * size for size in x.shape), x.dtype)
        for x in case.make(np.random.default_rng(0), 1)
    ]
    with pytest.raises(LayoutError) as error:
        jaxcc.check(case.f, *arrays, mesh=AbstractMesh((4,), ("tp",)), in_layouts=tuple(wrong))
    assert error.value.code in {
        "LAYOUT_MISMATCH", "LAYOUT_PARTIAL_NONLINEAR", "LAYOUT_SCALE", "LAYOUT_SUM_OF_SLICES",
        "LAYOUT_RANK_INDEX",
        "LAYOUT_ARGUMENT",
    }  # fmt: skip


def test_a_replicated_operand_is_told_the_plain_function() -> None:
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    for f, plain in [
        (lambda x: comm.cumsum(x, "tp"), "jax.numpy.cumsum"),
        (lambda x: comm.top_k(x, 2, "tp"), "jax.lax.top_k"),
    ]:
        with pytest.raises(LayoutError, match=f"write {plain}") as error:
            jaxcc.check(f, x, mesh=AbstractMesh((4,), ("tp",)), in_layouts=(R,))
        assert error.value.code == "LAYOUT_MISMATCH"


def merged(state: Any, block: Any, rank: Any) -> Any:
    """The sum, the maximum and the number of blocks' elements."""
    total, top, count = state
    return total + block.sum(), jnp.maximum(top, block.max()), count + block.size


def statistics(x: Any) -> Any:
    return comm.ring(merged, (jnp.zeros(()), jnp.full((), -jnp.inf), 0), x, "tp")[:2]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_ring_visits_every_block_once(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(8, 3)).astype(np.float32)

    def order(x: Any) -> Any:
        def body(seen: Any, block: Any, rank: Any) -> Any:
            return (*seen[:-1], seen[-1].at[rank].add(block.sum()))

        return comm.ring(body, (jnp.zeros(n),), x, "tp")[0][None]

    got = on_devices(order, [x], [S0], S0, n, True)
    np.testing.assert_allclose(got, [x.reshape(n, -1).sum(1)] * n, rtol=1e-5, atol=1e-5)


def test_ring_is_tested_and_not_proved() -> None:
    x = jax.ShapeDtypeStruct((8, 3), jnp.float32)
    given: dict[str, Any] = {
        "mesh": AbstractMesh((4,), ("tp",)), "in_layouts": (S0,), "out_layouts": (R, R),
    }  # fmt: skip
    with raises_layout("LAYOUT_RANK_DEPENDENT"):
        jaxcc.check(statistics, x, **given)
    assert not jaxcc.check(statistics, x, structure="rank-dependent", **given).proved

    def of_the_last_block(x: Any) -> Any:
        return comm.ring(lambda last, block, rank: block.sum(), jnp.zeros(()), x, "tp")

    with raises_layout("LAYOUT_TESTED"):
        given["out_layouts"] = R
        jaxcc.check(of_the_last_block, x, structure="rank-dependent", **given)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_schedule_runs_them_as_they_are(name: str) -> None:
    case = CASES[name]
    mesh = jax.make_mesh((4,), ("tp",), axis_types=(AxisType.Auto,))
    arrays = case.make(np.random.default_rng(11), 4)
    f = jaxcc.typed(mesh=mesh, in_layouts=tuple(case.layouts), out_layouts=case.out)(case.f)
    wanted = quick.jit(case.plain)(*arrays)
    close(f(*arrays), wanted)
    close(f.schedule(*arrays).compile()(*arrays), wanted)


MISUSES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no such axis": (lambda x: comm.cumsum(x, "rows"), "LAYOUT_AXIS"),
    "two axes": (lambda x: comm.softmax(x, cast(Any, ("tp", "dp"))), "LAYOUT_AXIS"),
    "no such dimension": (lambda x: comm.cumsum(x, "tp", axis=2), "LAYOUT_ARGUMENT"),
    "a dimension that is no number": (
        lambda x: comm.argmax(x, "tp", axis=cast(Any, None)),
        "LAYOUT_ARGUMENT",
    ),
    "too many": (lambda x: comm.top_k(x, 99, "tp"), "LAYOUT_ARGUMENT"),
    "how many": (lambda x: comm.top_k(x, cast(Any, 1.5), "tp"), "LAYOUT_ARGUMENT"),
    "floating ids": (lambda x: comm.embed(x, x, "tp"), "LAYOUT_ARGUMENT"),
    "labels of other rows": (
        lambda x: comm.cross_entropy(x, jnp.arange(3), "tp"),
        "LAYOUT_ARGUMENT",
    ),
    "no heads": (lambda x: comm.ring_attention(x, x, x, "tp"), "LAYOUT_ARGUMENT"),
    "no order": (lambda x: comm.cummax(x > 0, "tp"), "LAYOUT_REDUCE_OP"),
    "no array": (lambda x: comm.cumsum("text", "tp"), "BACKEND_ARGUMENT"),
    "a gradient of cumprod": (
        jax.grad(lambda x: comm.cumprod(x, "tp").sum()),
        "LAYOUT_UNSUPPORTED",
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_misuse_is_explained(what: str) -> None:
    f, code = MISUSES[what]
    with pytest.raises(jaxcc.JaxccError) as error:
        on_devices(f, [np.ones((8, 4), np.float32)], [S0], S0, 4, True)
    assert error.value.code == code


def test_outside_of_a_mesh() -> None:
    with raises_layout("LAYOUT_AXIS"):
        comm.cumsum(np.ones(3), "tp")
