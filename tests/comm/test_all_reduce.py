"""All-reduce between the four CPU devices of one process, on the xla and host backends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from ranks import mesh_of, run

from jaxcc import comm
from jaxcc.layout import BackendError, JaxccError

NUMPY = {"sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min}
SHAPES = [(), (0,), (3, 0), (7,), (33, 5)]
HOST_DTYPES = ["float32", "float16", "bfloat16", "int32", "uint32", "bool"]
BACKENDS = ["xla", "host"]


def operand(rng: np.random.Generator, ranks: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    whole = (ranks, *shape)
    if dtype == "bool":
        return rng.integers(0, 2, whole).astype(bool)
    if "int" in dtype:
        return rng.integers(0, 9, whole).astype(dtype)
    return rng.normal(size=whole).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_equals_numpy_on_every_rank(backend: str, ranks: int, check_vma: bool) -> None:
    rng = np.random.default_rng(10 * ranks + check_vma)
    mesh = mesh_of(ranks)
    cases = [
        (op, operand(rng, ranks, shape, dtype))
        for op in NUMPY
        for dtype in HOST_DTYPES
        for shape in SHAPES
    ]

    def body(*xs: jax.Array) -> list[jax.Array]:
        return [
            comm.all_reduce(x, "r", op=op, backend=backend, mesh=mesh)
            for (op, _), x in zip(cases, xs, strict=True)
        ]

    results = run(body, *(x for _, x in cases), mesh=mesh, check_vma=check_vma)
    for (op, x), actual in zip(cases, results, strict=True):
        counted = x.dtype == bool and op not in ("max", "min")
        dtype = jnp.dtype(np.int32) if counted else x.dtype
        if op == "mean" and not jnp.issubdtype(dtype, jnp.floating):
            dtype = jnp.dtype(np.float32)
        assert actual.dtype == dtype
        wanted = np.broadcast_to(NUMPY[op](x.astype(np.float64), axis=0), actual.shape)
        # XLA adds half types up in their own precision.
        eps = float(jnp.finfo(dtype).eps) if jnp.issubdtype(dtype, jnp.floating) else 0.0
        np.testing.assert_allclose(
            np.asarray(actual).astype(np.float64), wanted, rtol=4 * eps, atol=4 * eps
        )


@pytest.mark.parametrize("axes", ["r", "s", ("r", "s")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_along_axes_of_a_larger_mesh(backend: str, axes: str | tuple[str, ...]) -> None:
    mesh = mesh_of(2, 2)
    x = np.random.default_rng(3).normal(size=(2, 2, 5)).astype(np.float32)
    actual = run(
        lambda v: comm.all_reduce(v, axes, backend=backend, mesh=mesh), x.reshape(4, 5), mesh=mesh
    )
    dims = tuple("rs".index(axis) for axis in axes)
    wanted = np.broadcast_to(x.astype(np.float64).sum(dims, keepdims=True), x.shape)
    np.testing.assert_allclose(actual.reshape(x.shape), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap, jax.checkpoint])
@pytest.mark.parametrize(("op", "in_jax"), [("sum", jax.lax.psum), ("mean", jax.lax.pmean)])
def test_gradient_is_that_of_jax(
    op: str, in_jax: Callable, transform: Callable, check_vma: bool
) -> None:
    mesh = mesh_of(4)
    x = np.random.default_rng(4).normal(size=(4, 6, 3)).astype(np.float32)

    def loss(reduce: Callable, v: jax.Array) -> jax.Array:
        return reduce(jnp.sum(jnp.sin(reduce(v**2))) * jnp.sum(v))

    def ours(v: jax.Array) -> jax.Array:
        return comm.all_reduce(v, "r", op=op, backend="host", mesh=mesh)

    def both(v: jax.Array) -> list[jax.Array]:
        reduces = (ours, lambda y: in_jax(y, "r"))
        return [transform(jax.grad(lambda v, r=r: loss(r, v)))(v) for r in reduces]

    actual, wanted = run(both, x, mesh=mesh, check_vma=check_vma)
    np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=1e-5)
    assert np.abs(wanted).max() > 0.1


def test_gradient_of_the_whole_program_is_that_on_one_rank() -> None:
    mesh = mesh_of(4)
    x = np.random.default_rng(5).normal(size=(8, 3)).astype(np.float32)

    def loss(v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cos(comm.all_reduce(v.sum(0), "r", backend="host", mesh=mesh)))

    sliced = jax.shard_map(loss, mesh=mesh, in_specs=P("r"), out_specs=P())
    wanted = np.broadcast_to(-np.sin(x.astype(np.float64).sum(0)), x.shape)
    np.testing.assert_allclose(jax.jit(jax.grad(sliced))(x), wanted, rtol=1e-5, atol=1e-6)


def test_control_flow_pytrees_and_eager_calls() -> None:
    mesh = mesh_of(2)
    x = np.random.default_rng(6).normal(size=(2, 9)).astype(np.float32)

    def body(v: jax.Array) -> Any:
        def step(carry: jax.Array, k: jax.Array) -> tuple[jax.Array, None]:
            return carry + comm.all_reduce(v * k, "r", backend="host", mesh=mesh), None

        tree = comm.all_reduce({"a": v, "b": [v * 2, 1.5]}, "r", backend="host", mesh=mesh)
        looped, _ = jax.lax.scan(step, jnp.zeros_like(tree["a"]), jnp.arange(3.0))
        return looped, tree

    looped, tree = run(body, x, mesh=mesh)
    total = np.broadcast_to(x.astype(np.float64).sum(0), x.shape)
    np.testing.assert_allclose(looped, 3 * total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tree["a"], total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(tree["b"][0], 2 * total, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(tree["b"][1], [3.0, 3.0])
    eager = jax.shard_map(
        lambda v: comm.all_reduce(v, "r", backend="host", mesh=mesh),
        mesh=mesh,
        in_specs=P("r"),
        out_specs=P(),
    )(x)
    np.testing.assert_allclose(eager[0], total[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_empty_operand_keeps_the_type_of_the_sum(backend: str) -> None:
    mesh = mesh_of(2, 2)

    def body(v: jax.Array) -> tuple[jax.Array, jax.Array]:
        ours = comm.all_reduce(v, "r", backend=backend, mesh=mesh)
        return jax.lax.psum(ours, "s"), jax.grad(lambda v: comm.all_reduce(v, "r").sum())(v)

    program = jax.shard_map(body, mesh=mesh, in_specs=P(("r", "s")), out_specs=(P(), P(("r", "s"))))
    total, gradient = jax.jit(program)(np.zeros((4, 0), np.float32))
    assert total.shape == (1, 0) and gradient.shape == (4, 0)


def test_a_replicated_operand_counts_once_for_each_rank() -> None:
    mesh = mesh_of(4)

    def body(v: jax.Array) -> jax.Array:
        return comm.all_reduce(v, "r", backend="host", mesh=mesh)

    program = jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P())
    np.testing.assert_array_equal(jax.jit(program)(jnp.arange(3.0)), [0.0, 4.0, 8.0])


def test_independent_calls_keep_their_order() -> None:
    """XLA runs what is independent in any order: without ours, ranks wait in different calls."""
    program = Path(__file__).with_name("independent_calls.py")
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == 2


@pytest.mark.parametrize("name", ["xla", "host", "mpi", "auto"])
def test_without_devices_it_is_the_lax_collective(name: str) -> None:
    def body(v: jax.Array) -> jax.Array:
        return comm.all_reduce(v, "r", backend=name)

    x = jnp.arange(3.0)
    np.testing.assert_array_equal(jax.vmap(body, axis_name="r")(x), jnp.full(3, x.sum()))
    mesh = AbstractMesh((64,), ("r",))
    traced = jax.make_jaxpr(jax.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P()))(x)
    assert "psum" in str(traced) and "ffi_call" not in str(traced)


def raised(**options: Any) -> JaxccError:
    """The error of an all-reduce over axis "r" of 2 of the 4 devices, with these options."""
    arguments = {"axis_name": "r", "x": jnp.ones(4), **options}
    with pytest.raises(JaxccError) as caught:
        run(lambda _: comm.all_reduce(**arguments), np.ones((2, 1)), mesh=mesh_of(2))
    return caught.value


@pytest.mark.parametrize(
    ("code", "parts", "options"),
    [
        ("LAYOUT_REDUCE_OP", ["'median'", "'sum', 'max', 'min', 'prod', 'mean'"], {"op": "median"}),
        ("LAYOUT_REDUCE_OP", ["complex64"], {"op": "max", "x": jnp.ones(2, jnp.complex64)}),
        ("LAYOUT_REDUCE_OP", ["key<fry>"], {"x": jax.random.key(0)}),
        ("LAYOUT_REDUCE_OP", ["str", "numbers"], {"x": "text"}),
        ("LAYOUT_AXIS", ["'q'", "'r'"], {"axis_name": "q"}),
        ("LAYOUT_AXIS", ["None"], {"axis_name": None}),
        ("LAYOUT_AXIS", ["('r', 'r')", "different"], {"axis_name": ("r", "r")}),
        ("BACKEND_UNKNOWN", ["'nccl'", "'auto', 'xla', 'host', 'mpi'"], {"backend": "nccl"}),
        ("BACKEND_UNKNOWN", ["['host']"], {"backend": ["host"]}),
        ("TABLE_FORMAT", ["'table.json'", "Table.load"], {"table": "table.json"}),
        ("BACKEND_MESH", ["'r'", "pass mesh="], {"backend": "host"}),
        ("BACKEND_MPI_DEVICES", ["this one has 4"], {"backend": "mpi"}),
    ],
)
def test_mistakes_are_named(code: str, parts: list[str], options: dict[str, Any]) -> None:
    error = raised(**options)
    assert error.code == code
    for part in parts:
        assert part in str(error)


@pytest.mark.parametrize(
    ("code", "part", "arguments"),
    [
        ("BACKEND_ARGUMENT", "no collective 'psum'", ("psum", jnp.ones(4), "r")),
        ("BACKEND_ARGUMENT", "dict", ("all_reduce", {"a": jnp.ones(4)}, "r")),
        ("LAYOUT_AXIS", "'q', but the mesh axes here are: 'r'", ("all_reduce", jnp.ones(4), "q")),
    ],
)
def test_what_cannot_run_is_not_explained(code: str, part: str, arguments: tuple) -> None:
    with pytest.raises(JaxccError) as caught:
        comm.explain(*arguments, mesh=mesh_of(2))
    assert caught.value.code == code
    assert part in str(caught.value)


@pytest.mark.parametrize("backend", [*BACKENDS, "auto"])
def test_a_group_over_no_axes_is_one_rank(backend: str) -> None:
    x = np.random.default_rng(7).normal(size=(4, 5)).astype(np.float32)
    actual = run(lambda v: comm.all_reduce(v, (), backend=backend), x, mesh=mesh_of(4))
    np.testing.assert_array_equal(actual, x)


def test_dtype_without_a_kernel() -> None:
    x = jnp.ones(2, jnp.float8_e5m2)
    error = raised(backend="host", mesh=mesh_of(2), x=x)
    assert error.code == "BACKEND_DTYPE" and "float8_e5m2" in str(error)
    total = run(
        lambda _: comm.all_reduce(x, "r", mesh=mesh_of(2)), np.ones((2, 1)), mesh=mesh_of(2)
    )
    np.testing.assert_array_equal(total.astype(np.float32), np.full((2, 2), 2.0))


def test_a_mesh_of_other_devices_is_refused() -> None:
    other = AbstractMesh((2,), ("r",))
    assert raised(backend="host", mesh=other).code == "BACKEND_NOT_LOCAL"


def test_maxima_have_no_gradient_on_host() -> None:
    mesh = mesh_of(2)

    def body(v: jax.Array) -> jax.Array:
        return comm.all_reduce(v.sum(), "r", op="max", backend="host", mesh=mesh)

    with pytest.raises(BackendError) as caught:
        run(jax.grad(body), np.ones((2, 3), np.float32), mesh=mesh)
    assert caught.value.code == "BACKEND_NO_GRADIENT"
    assert "all_reduce(max)" in str(caught.value)


def test_mpi_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4jax", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    error = raised(backend="mpi")
    assert error.code == "BACKEND_MPI_MISSING"
    assert "pip install" in str(error)
