"""Fused calls inside shard_map, against NumPy in double."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jaxcc.runtime import Groups, Tensor, fused_call, groups_of

DTYPES = {
    "f32": (jnp.float32, 1e-6),
    "i32": (jnp.int32, 0),
    "u32": (jnp.uint32, 0),
    "bf16": (jnp.bfloat16, 2**-8),
    "f16": (jnp.float16, 2**-11),
}
REDUCE = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def make_mesh(*ranks: int, devices: Sequence[int] | None = None) -> Mesh:
    count = int(np.prod(ranks))
    chosen = np.array(jax.devices())[list(devices or range(count))]
    return Mesh(chosen.reshape(ranks), ("x", "y")[: len(ranks)])


def all_reduce(x: jax.Array, groups: Groups, kind: str) -> Any:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    tensors = [Tensor((x,), (result,), 1, x.size)]
    [(y,)] = fused_call(f"all_reduce.{kind}", groups, tensors, op="all_reduce")
    return y


def copies(y: jax.Array) -> list[np.ndarray]:
    """What each device holds."""
    return [np.asarray(shard.data) for shard in y.addressable_shards]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reduce_equals_numpy(dtype: str, ranks: int) -> None:
    mesh = make_mesh(ranks)
    groups = groups_of(mesh, "x")
    random = np.random.default_rng(ranks)
    kind, tolerance = DTYPES[dtype]
    shapes = [(), (1,), (5, 7), (33, 4097)]
    cases = [(op, shape) for op in REDUCE for shape in shapes]
    inputs = [jnp.asarray(random.integers(1, 5, (ranks, *shape)), kind) for _, shape in cases]

    def per_rank(*inputs: jax.Array) -> list[jax.Array]:
        each = zip(cases, inputs, strict=True)
        return [all_reduce(x[0], groups, f"{op}.{dtype}") for (op, _), x in each]

    run = jax.shard_map(per_rank, mesh=mesh, in_specs=P("x"), out_specs=P())
    for (op, _), x, y in zip(cases, inputs, jax.jit(run)(*inputs), strict=True):
        wanted = REDUCE[op](np.asarray(x, np.float64), axis=0)
        np.testing.assert_allclose(np.asarray(y, np.float64), wanted, rtol=tolerance)
        for copy in copies(y):
            assert copy.tobytes() == copies(y)[0].tobytes()


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_empty_arrays_pass_through(ranks: int) -> None:
    # Alone, or made inside: with an empty argument beside others, jaxlib 0.11's compiler crashes on
    # any shard_map, one with psum too.
    mesh = make_mesh(ranks)
    groups = groups_of(mesh, "x")

    def alone(x: jax.Array) -> jax.Array:
        return all_reduce(x[0], groups, "sum.f32")

    run = jax.jit(jax.shard_map(alone, mesh=mesh, in_specs=P("x"), out_specs=P()))
    assert run(np.ones((ranks, 0, 3), np.float32)).shape == (0, 3)

    def beside(x: jax.Array) -> jax.Array:
        arrays = (x[0], x[0][:0], x[0] * 2)
        results = [(jax.ShapeDtypeStruct(a.shape, a.dtype),) for a in arrays]
        tensors = [Tensor((a,), out, 1, a.size) for a, out in zip(arrays, results, strict=True)]
        out = fused_call("all_reduce.sum.f32", groups, tensors, op="sum")
        return jnp.concatenate([y for (y,) in out])

    run = jax.jit(jax.shard_map(beside, mesh=mesh, in_specs=P("x"), out_specs=P()))
    x = np.random.default_rng(0).normal(size=(ranks, 9)).astype(np.float32)
    total = x.astype(np.float64).sum(0)
    np.testing.assert_allclose(run(x), np.concatenate([total, 2 * total]), rtol=1e-5, atol=1e-6)


def test_groups_follow_the_mesh() -> None:
    mesh = make_mesh(2, 2, devices=[3, 1, 0, 2])
    x = np.random.default_rng(0).normal(size=(2, 2, 100)).astype(np.float32)
    for axes, over in [("x", 0), ("y", 1), (("x", "y"), (0, 1)), (("y", "x"), (0, 1))]:
        groups = groups_of(mesh, axes)

        def per_rank(x: jax.Array, groups: Groups = groups) -> jax.Array:
            return all_reduce(x, groups, "sum.f32")

        run = jax.shard_map(
            per_rank, mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"), check_vma=False
        )
        wanted = np.broadcast_to(x.astype(np.float64).sum(over, keepdims=True), x.shape)
        np.testing.assert_allclose(jax.jit(run)(x), wanted, atol=1e-5)


def test_ranks_may_be_some_of_the_devices() -> None:
    mesh = make_mesh(2, devices=[3, 1])
    groups = groups_of(mesh, "x")
    assert groups == Groups((3, 1), 2, ("x",))
    x = np.random.default_rng(0).normal(size=(2, 50_000)).astype(np.float32)

    def per_rank(x: jax.Array) -> jax.Array:
        return all_reduce(x, groups, "sum.f32")[0]

    y = jax.jit(jax.shard_map(per_rank, mesh=mesh, in_specs=P("x"), out_specs=P()))(x)
    np.testing.assert_allclose(y, x.astype(np.float64).sum(0), atol=1e-6)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("loop", ["scan", "fori_loop"])
def test_loops(loop: str, check_vma: bool) -> None:
    mesh = make_mesh(4)
    groups = groups_of(mesh, "x")
    x = np.random.default_rng(1).normal(size=(4, 30_000)).astype(np.float32)

    def step(y: jax.Array, _: Any = None) -> Any:
        return y * 0.5 + all_reduce(y, groups, "sum.f32") * 0.01, None

    def per_rank(x: jax.Array) -> jax.Array:
        if loop == "scan":
            return lax.scan(step, x, length=20)[0]
        return lax.fori_loop(0, 20, lambda _, y: step(y)[0], x)

    run = jax.shard_map(per_rank, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)
    y = x.astype(np.float64)
    for _ in range(20):
        y = y * 0.5 + y.sum(0) * 0.01
    np.testing.assert_allclose(jax.jit(run)(x), y, rtol=1e-4, atol=1e-6)


def momentum_step(
    kernel: str, mesh: Mesh, shapes: Sequence[tuple[int, ...]], check_vma: bool, alias: bool
) -> Callable[..., Any]:
    """Steps a list of tensors; w is replicated, m sliced along the last dimension."""
    groups = groups_of(mesh, "x")

    def per_rank(lr: jax.Array, g: list[Any], w: list[Any], m: list[Any]) -> Any:
        mu = jnp.float32(0.9)
        tensors = [
            Tensor(
                (gi[0], wi, mi),
                (jax.ShapeDtypeStruct(wi.shape, wi.dtype), jax.ShapeDtypeStruct.like(mi)),
                int(np.prod(wi.shape[:-1])),
                wi.shape[-1],
                {1: 0, 2: 1} if alias else {},
                (lr, mu),
            )
            for gi, wi, mi in zip(g, w, m, strict=True)
        ]
        out = fused_call(kernel, groups, tensors, op="momentum")
        return [w for w, _ in out], [m for _, m in out]

    slices = [P(*[None] * (len(shape) - 1), "x") for shape in shapes]
    return jax.jit(
        jax.shard_map(
            per_rank,
            mesh=mesh,
            in_specs=(P(), P("x"), P(), slices),
            out_specs=(P(), slices),
            check_vma=check_vma,
        ),
        donate_argnums=(2, 3) if alias else (),
    )


@pytest.mark.parametrize("alias", [True, False])
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("ranks", [2, 4])
def test_slices_scalars_and_gathered_results(
    momentum: str, ranks: int, check_vma: bool, alias: bool
) -> None:
    mesh = make_mesh(ranks)
    shapes = [(4,), (3, 8), (300_000,), (64, 1, 256)]
    random = np.random.default_rng(ranks)
    step = momentum_step(momentum, mesh, shapes, check_vma, alias)
    w = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    m = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    wanted_w, wanted_m = [x.astype(np.float64) for x in w], [x.astype(np.float64) for x in m]
    for lr in (0.1, 0.01, 0.003):
        g = [random.normal(size=(ranks, *shape)).astype(np.float32) for shape in shapes]
        w, m = step(np.float32(lr), g, w, m)
        wanted_m = [
            0.9 * mi + gi.astype(np.float64).sum(0) for mi, gi in zip(wanted_m, g, strict=True)
        ]
        wanted_w = [wi - lr * mi for wi, mi in zip(wanted_w, wanted_m, strict=True)]
    for got, wanted in zip(w + m, wanted_w + wanted_m, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    for wi in w:
        assert all(copy.tobytes() == copies(wi)[0].tobytes() for copy in copies(wi))


def test_two_hundred_tensors_are_one_call(momentum: str) -> None:
    mesh = make_mesh(2)
    random = np.random.default_rng(5)
    shapes = [(2 * int(n),) for n in random.integers(1, 3000, 200)]
    step = momentum_step(momentum, mesh, shapes, check_vma=True, alias=True)
    g = [random.normal(size=(2, *shape)).astype(np.float32) for shape in shapes]
    w = [random.normal(size=shape).astype(np.float32) for shape in shapes]
    m = [np.zeros(shape, np.float32) for shape in shapes]
    compiled = step.lower(np.float32(0.1), g, w, m).compile()  # pyright: ignore
    assert compiled.as_text().count('custom_call_target="jaxcc_fused"') == 1
    new_w, _ = step(np.float32(0.1), g, w, m)
    for before, grads, after in zip(w, g, new_w, strict=True):
        np.testing.assert_allclose(after, before - 0.1 * grads.astype(np.float64).sum(0), atol=1e-6)


def test_donated_buffers_are_reused(momentum: str) -> None:
    mesh = make_mesh(2)
    step = momentum_step(momentum, mesh, [(1 << 16,)], check_vma=True, alias=True)
    zeros = np.zeros(1 << 16, np.float32)
    w, m = step(np.float32(1), [np.zeros((2, 1 << 16), np.float32)], [zeros], [zeros])
    addresses = [shard.data.unsafe_buffer_pointer() for shard in w[0].addressable_shards]
    new_w, _ = step(np.float32(1), [np.ones((2, 1 << 16), np.float32)], w, m)
    assert w[0].is_deleted()
    assert addresses == [s.data.unsafe_buffer_pointer() for s in new_w[0].addressable_shards]
    np.testing.assert_array_equal(new_w[0], zeros - 2)
