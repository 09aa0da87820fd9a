"""Every collective of jaxcc.comm between CPU devices, on both backends, against NumPy."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import collectives
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
from collectives import MOVING, NUMPY, REDUCING, random_array, random_call
from jax.sharding import PartitionSpec as P
from ranks import mesh_of, run

from jaxcc import comm
from jaxcc.layout import JaxccError

BACKENDS = ["xla", "host"]
DTYPES = ["float32", "float16", "bfloat16", "complex64", "bool"]
DTYPES += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)]
WIDE = ["float64", "complex128", "int64", "uint64"]
# XLA's CPU backend adds up 16-bit floats with their own precision.
TOLERANCE = {"float16": 0.02, "bfloat16": 0.1}


def expect(actual: Any, wanted: np.ndarray, dtype: str) -> None:
    """The NumPy result, which has not passed through `dtype`."""
    got = np.asarray(actual)
    assert got.shape == wanted.shape
    if not jnp.issubdtype(got.dtype, jnp.inexact):
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))
        return
    wide = np.complex128 if np.iscomplexobj(wanted) else np.float64
    error = TOLERANCE.get(dtype, 1e-5)
    np.testing.assert_allclose(got.astype(wide), wanted.astype(wide), rtol=error, atol=error)


def widened(x: np.ndarray) -> np.ndarray:
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return x.astype(np.float64)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_moving_equals_numpy(backend: str, ranks: int, check_vma: bool) -> None:
    rng = np.random.default_rng(100 * ranks + check_vma)
    mesh = mesh_of(ranks)
    calls = [
        (name, dtype, *random_call(name, ranks, rng))
        for name in MOVING
        for dtype in rng.choice(DTYPES, 3, replace=False).tolist()
    ]
    xs = [random_array(rng, (ranks, *shape), dtype) for _, dtype, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        return [
            getattr(comm, name)(x, "r", backend=backend, mesh=mesh, **parameters)
            for (name, _, _, parameters), x in zip(calls, xs, strict=True)
        ]

    results = run(body, *xs, mesh=mesh, check_vma=check_vma)
    for (name, _, _, parameters), x, actual in zip(calls, xs, results, strict=True):
        assert actual.dtype == x.dtype
        wanted = NUMPY[name](x, **parameters)
        np.testing.assert_array_equal(np.asarray(actual), wanted, err_msg=f"{name} {parameters}")


def has(op: str, dtype: str) -> bool:
    whole = jnp.dtype(dtype)
    if op in ("and", "or", "xor"):
        return not jnp.issubdtype(whole, jnp.inexact)
    return op not in ("max", "min") or not jnp.issubdtype(whole, jnp.complexfloating)


@pytest.mark.parametrize("name", REDUCING)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_reducing_equals_numpy(backend: str, ranks: int, name: str) -> None:
    rng = np.random.default_rng(10 * ranks + len(name))
    mesh = mesh_of(ranks)
    pairs = [(op, dtype) for op in collectives.REDUCE for dtype in DTYPES if has(op, dtype)]
    # Of what XLA does itself a third is enough.
    pairs = [pairs[i] for i in rng.permutation(len(pairs))[:: 1 if backend == "host" else 3]]
    calls = [(op, dtype, *random_call(name, ranks, rng)) for op, dtype in pairs]
    xs = [random_array(rng, (ranks, *shape), dtype) for _, dtype, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        return [
            getattr(comm, name)(x, "r", op=op, backend=backend, mesh=mesh, **parameters)
            for (op, _, _, parameters), x in zip(calls, xs, strict=True)
        ]

    results = run(body, *xs, mesh=mesh)
    for (op, dtype, _, parameters), x, actual in zip(calls, xs, results, strict=True):
        given = widened(x)
        if dtype == "bool" and op in ("sum", "prod", "mean"):
            given = x.astype(np.int32)
        if op == "mean" and jnp.issubdtype(given.dtype, jnp.integer):
            total = NUMPY[name](given, op="sum", **parameters)
            wanted = total.astype(given.dtype) / ranks
        else:
            wanted = NUMPY[name](given, op=op, **parameters)
        expect(actual, wanted, dtype)


@pytest.mark.parametrize("ranks", [2, 4])
def test_numbers_of_64_bits(ranks: int) -> None:
    rng = np.random.default_rng(ranks)
    mesh = mesh_of(ranks)
    with jax.enable_x64(True):
        calls = [
            (name, dtype, op, *random_call(name, ranks, rng))
            for name in ("all_reduce", "reduce_scatter", "all_to_all", "broadcast")
            for dtype in WIDE
            for op in (list(collectives.REDUCE) if "reduce" in name else [None])
            if op is None or has(op, dtype)
        ]
        calls = [
            (name, dtype, shape, parameters if op is None else {**parameters, "op": op})
            for name, dtype, op, shape, parameters in calls
        ]
        xs = [random_array(rng, (ranks, *shape), dtype) for _, dtype, shape, _ in calls]

        def body(*xs: jax.Array) -> list[jax.Array]:
            return [
                getattr(comm, name)(x, "r", backend="host", mesh=mesh, **parameters)
                for (name, _, _, parameters), x in zip(calls, xs, strict=True)
            ]

        results = run(body, *xs, mesh=mesh)
        for (name, dtype, _, parameters), x, actual in zip(calls, xs, results, strict=True):
            wanted = NUMPY[name](x, **parameters)
            assert parameters.get("op") == "mean" or actual.dtype == jnp.dtype(dtype)
            np.testing.assert_allclose(actual, wanted, rtol=1e-14, atol=1e-14)


def linear_call(name: str, ranks: int, rng: np.random.Generator) -> tuple[tuple[int, ...], dict]:
    """Of a size that a matrix can be made of."""
    while True:
        shape, parameters = random_call(name, ranks, rng)
        if 0 < np.prod(shape) <= 60:
            return shape, parameters


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("under", ["grad", "checkpoint", "vmap"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_are_the_transposed_map(backend: str, under: str, check_vma: bool) -> None:
    rng = np.random.default_rng(31 + check_vma)
    ranks = 3
    mesh = mesh_of(ranks)
    calls = [(name, *linear_call(name, ranks, rng)) for name in NUMPY]
    # With check_vma=True what is the same on all ranks counts once.
    replicated = ("all_reduce", "broadcast") if check_vma else ()
    xs, ws, wanted = [], [], []
    for name, shape, parameters in calls:
        linear = collectives.numpy_of(name, **parameters)
        x = rng.normal(size=(ranks, *shape))
        w = rng.normal(size=linear(x).shape)
        if name in replicated:
            w = np.broadcast_to(w[:1], w.shape)
        slope = np.cos(linear(x)) * w / (ranks if name in replicated else 1)
        xs.append(x.astype(np.float32))
        ws.append(w.astype(np.float32))
        wanted.append(collectives.transposed(linear, slope, x))

    def body(*operands: jax.Array) -> list[jax.Array]:
        def gradient(call: Any, x: jax.Array, w: jax.Array) -> jax.Array:
            name, _, parameters = call
            w = jax.lax.psum(w, "r") / ranks if name in replicated else w

            def loss(x: jax.Array) -> jax.Array:
                y = getattr(comm, name)(x, "r", backend=backend, mesh=mesh, **parameters)
                return jnp.sum(jnp.sin(y) * w)

            return jax.grad(jax.checkpoint(loss) if under == "checkpoint" else loss)(x)

        made = []
        for call, x, w in zip(calls, operands[: len(calls)], operands[len(calls) :], strict=True):
            if under == "vmap":
                lanes = jax.vmap(functools.partial(gradient, call))(
                    *(jnp.stack([a] * 2) for a in (x, w))
                )
                made.append(lanes[1])
            else:
                made.append(gradient(call, x, w))
        return made

    results = run(body, *xs, *ws, mesh=mesh, check_vma=check_vma)
    for (name, _, parameters), actual, expected in zip(calls, results, wanted, strict=True):
        np.testing.assert_allclose(
            actual, expected, rtol=1e-4, atol=1e-5, err_msg=f"{name} {parameters}"
        )


def test_loops_donation_pytrees_and_collectives_of_jax_in_one_program() -> None:
    mesh = mesh_of(4)
    x = np.random.default_rng(6).normal(size=(4, 8, 3)).astype(np.float32)

    def body(v: jax.Array) -> Any:
        def step(carry: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
            mine = comm.reduce_scatter(carry * k, "r", backend="host", mesh=mesh)
            whole = comm.all_gather(mine, "r", backend="host", mesh=mesh)
            return whole - jax.lax.psum(carry, "r"), jax.lax.pmax(mine.sum(), "r")

        looped, tops = jax.lax.scan(step, v, jnp.arange(1.0, 4.0))
        tree = comm.shift({"a": v, "b": [v * 2, 1.5]}, "r", backend="host", mesh=mesh)
        turned = comm.all_to_all(jax.lax.ppermute(v, "r", [(0, 1), (1, 0)]), "r", backend="host")
        return looped, tops, tree, turned

    axes = P("r")
    program = jax.jit(
        jax.shard_map(
            lambda v: jax.tree.map(lambda y: y[None], body(v[0])),
            mesh=mesh,
            in_specs=axes,
            out_specs=axes,
        ),
        donate_argnums=0,
    )
    given = jax.device_put(x, jax.sharding.NamedSharding(mesh, axes))
    looped, tops, tree, turned = program(given)
    carry = x.astype(np.float64)
    for k in range(1, 4):
        mine = collectives.reduce_scatter(carry * k)
        wanted_tops = mine.sum((1, 2)).max()
        np.testing.assert_allclose(tops[:, k - 1], wanted_tops, rtol=1e-3, atol=1e-3)
        carry = collectives.all_gather(mine) - carry.sum(0)
    np.testing.assert_allclose(looped, carry, rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(tree["a"], np.roll(x, 1, 0))
    np.testing.assert_array_equal(tree["b"][0], np.roll(2 * x, 1, 0))
    np.testing.assert_array_equal(tree["b"][1], [1.5] * 4)
    swapped = np.concatenate([x[[1, 0]], np.zeros_like(x[:2])])
    np.testing.assert_array_equal(turned, collectives.all_to_all(swapped))


@pytest.mark.parametrize("backend", BACKENDS)
def test_shift_send_and_barrier(backend: str) -> None:
    mesh = mesh_of(4)
    x = np.random.default_rng(8).normal(size=(4, 5)).astype(np.float32)
    options: dict[str, Any] = {"backend": backend, "mesh": mesh}

    def body(v: jax.Array) -> list[jax.Array]:
        return [
            comm.shift(v, "r", -1, **options),
            comm.shift(v, "r", 2, wrap=False, **options),
            comm.send_recv(v, "r", source=3, target=1, **options),
            comm.barrier(v, "r", **options),
            jax.grad(lambda v: jnp.sum(comm.barrier(jnp.sin(v), "r", **options)))(v),
        ]

    back, far, one, same, slope = run(body, x, mesh=mesh)
    np.testing.assert_array_equal(back, np.roll(x, -1, 0))
    np.testing.assert_array_equal(far, np.concatenate([np.zeros_like(x[:2]), x[:2]]))
    np.testing.assert_array_equal(one, collectives.ppermute(x, [(3, 1)]))
    np.testing.assert_array_equal(same, x)
    np.testing.assert_allclose(slope, np.cos(x), rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_start_and_done_give_what_the_call_gives(backend: str) -> None:
    mesh = mesh_of(2)
    rng = np.random.default_rng(9)
    calls = [(name, *random_call(name, 2, rng)) for name in NUMPY]
    xs = [rng.normal(size=(2, *shape)).astype(np.float32) for _, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        started = [
            getattr(comm, f"{name}_start")(x, "r", backend=backend, mesh=mesh, **parameters)
            for (name, _, parameters), x in zip(calls, xs, strict=True)
        ]
        return [comm.done(one) for one in started]

    for (name, _, parameters), x, actual in zip(calls, xs, run(body, *xs, mesh=mesh), strict=True):
        np.testing.assert_allclose(actual, NUMPY[name](x, **parameters), rtol=1e-5, atol=1e-6)
    assert "between start and done" in str(comm.explain("all_gather", jnp.ones(4), "r", mesh=mesh))
    with pytest.raises(JaxccError) as caught:
        comm.done(jnp.ones(2))  # pyright: ignore[reportArgumentType]
    assert caught.value.code == "BACKEND_ARGUMENT"


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_to_move(backend: str) -> None:
    mesh = mesh_of(2)

    def body(v: jax.Array) -> list[jax.Array]:
        options: dict[str, Any] = {"backend": backend, "mesh": mesh}
        wide = jnp.broadcast_to(v[:, None], (0, 4))
        return [
            comm.all_gather(v, "r", **options),
            comm.all_gather(wide, "r", dim=1, tiled=False, **options),
            comm.reduce_scatter(wide, "r", dim=1, op="max", **options),
            comm.all_to_all(wide, "r", split_dim=1, concat_dim=0, **options),
            comm.broadcast(v, "r", **options),
            comm.scatter(wide, "r", dim=1, **options),
            comm.all_gather_v(v, "r", counts=(0, 0), **options),
        ]

    results = run(body, np.zeros((2, 0), np.float32), mesh=mesh)
    shapes = [(0,), (0, 2, 4), (0, 2), (0, 2), (0,), (0, 2), (0,)]
    assert [y.shape for y in results] == [(2, *shape) for shape in shapes]


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_a_group_over_no_axes_is_one_rank(backend: str) -> None:
    x = np.random.default_rng(7).normal(size=(4, 5, 2)).astype(np.float32)

    def body(v: jax.Array) -> list[jax.Array]:
        return [
            getattr(comm, name)(v, (), backend=backend)
            for name in ("all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")
        ]

    for actual in run(body, x, mesh=mesh_of(4)):
        np.testing.assert_array_equal(actual, x)


@pytest.mark.parametrize("name", list(NUMPY))
def test_under_vmap_it_is_the_collective_of_the_lanes(name: str) -> None:
    rng = np.random.default_rng(len(name))
    shape, parameters = random_call(name, 4, rng)
    x = rng.normal(size=(4, *shape)).astype(np.float32)
    body = jax.vmap(lambda v: getattr(comm, name)(v, "r", **parameters), axis_name="r")
    actual = quick.jit(body)(x)
    np.testing.assert_allclose(actual, NUMPY[name](x, **parameters), rtol=1e-5, atol=1e-6)


def test_large_results_and_independent_calls_on_many_ranks() -> None:
    """XLA runs what is independent in any order: without ours, ranks wait in different calls."""
    program = Path(__file__).with_name("independent_moves.py")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == 3


X = np.ones((2, 6, 4), np.float32)
OPERAND = jax.ShapeDtypeStruct((6, 4), jnp.float32)
MISTAKES = [
    ("broadcast", {"root": 2}, "no rank 2 in a group of 2"),
    ("reduce", {"root": -1}, "from 0 to 1"),
    ("gather", {"root": "first"}, "no rank 'first'"),
    ("scatter", {"root": True}, "no rank True"),
    ("all_gather", {"dim": 2}, "no dimension 2"),
    ("all_gather", {"dim": 3, "tiled": False}, "no dimension 3 in its result"),
    ("all_gather", {"to": "reduced"}, "'varying', 'invarying'"),
    ("reduce_scatter", {"dim": 1, "tiled": False}, "has 4 elements, not 2"),
    ("scatter", {"dim": None}, "no dimension None"),
    ("ppermute", {"perm": [(0, 2)]}, "numbers from 0 to 1"),
    ("ppermute", {"perm": [(0, 1), (0, 0)]}, "rank 0 sends twice"),
    ("ppermute", {"perm": [(0, 1), (1, 1)]}, "rank 1 receives twice"),
    ("ppermute", {"perm": 3}, "pairs"),
    ("all_gather_v", {"counts": (6,)}, "not 2 numbers"),
    ("all_gather_v", {"counts": (5, 4)}, "the counts say 5"),
    ("gather_v", {"counts": (7, -1)}, "not 2 numbers"),
    ("reduce_scatter_v", {"counts": (3, 4)}, "the counts say 7"),
    ("scatter_v", {"counts": 6}, "not 2 numbers"),
    ("all_to_all_v", {"counts": (6, 0)}, "not 2 numbers"),
    ("all_to_all_v", {"counts": ((6, 0),)}, "2 rows of 2"),
    ("ppermute", {"perm": [(0.0, 1.0)]}, "not pairs of ranks"),
    ("ppermute", {"perm": [(0, 1)] * 1000}, "..."),
    ("shift", {"by": 1.5}, "1.5, not a number of ranks"),
    ("shift", {"by": True}, "True, not a number of ranks"),
]


@pytest.mark.parametrize(("name", "parameters", "part"), MISTAKES)
def test_mistakes_are_named(name: str, parameters: dict[str, Any], part: str) -> None:
    with pytest.raises(JaxccError) as caught:
        run(lambda v: getattr(comm, name)(v, "r", **parameters), X, mesh=mesh_of(2))
    assert caught.value.code == "LAYOUT_ARGUMENT"
    assert name in str(caught.value) and part in str(caught.value)


@pytest.mark.parametrize("name", ["reduce_scatter", "scatter", "all_to_all"])
def test_a_dimension_that_ranks_do_not_divide(name: str) -> None:
    with pytest.raises(JaxccError) as caught:
        run(lambda v: getattr(comm, name)(v, "r"), np.ones((4, 6)), mesh=mesh_of(4))
    assert "has 6 elements, not a multiple of 4" in str(caught.value)
    assert f"{name}_v" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "parameters", "x", "part"),
    [
        ("reduce", {"op": "median"}, X, "'and', 'or', 'xor'"),
        ("reduce_scatter", {"op": "and"}, X, "only integers and booleans"),
        ("all_reduce", {"op": "max"}, X.astype(np.complex64), "no order"),
    ],
)
def test_an_op_that_a_dtype_has_not(
    name: str, parameters: dict[str, Any], x: np.ndarray, part: str
) -> None:
    with pytest.raises(JaxccError) as caught:
        run(lambda v: getattr(comm, name)(v, "r", **parameters), x, mesh=mesh_of(2))
    assert caught.value.code == "LAYOUT_REDUCE_OP" and part in str(caught.value)


def test_what_a_backend_does_not_have() -> None:
    mesh = mesh_of(2)
    choice = comm.explain("all_gather", OPERAND, "r", mesh=mesh, dim=1)
    assert choice.call.collective == "all_gather"
    with pytest.raises(JaxccError) as caught:
        comm.explain("broadcast", OPERAND, "r", mesh=mesh, backend="mpi")
    assert caught.value.code == "BACKEND_COLLECTIVE"
    short = jax.ShapeDtypeStruct((4,), jnp.float8_e5m2)
    with pytest.raises(JaxccError) as caught:
        comm.explain("all_reduce", short, "r", mesh=mesh, backend="host")
    assert caught.value.code == "BACKEND_DTYPE" and "sum of float8_e5m2" in str(caught.value)
    with pytest.raises(JaxccError) as caught:
        comm.explain("all_gather", OPERAND, "r", mesh=mesh, axis=1)
    assert caught.value.code == "BACKEND_ARGUMENT" and "axis" in str(caught.value)


@pytest.mark.parametrize("op", ["max", "prod", "min"])
def test_what_is_not_linear_has_no_gradient_on_host(op: str) -> None:
    mesh = mesh_of(2)

    def body(v: jax.Array) -> jax.Array:
        return comm.reduce_scatter(v, "r", op=op, backend="host", mesh=mesh).sum()

    with pytest.raises(JaxccError) as caught:
        run(jax.grad(body), X, mesh=mesh)
    assert caught.value.code == "BACKEND_NO_GRADIENT"
