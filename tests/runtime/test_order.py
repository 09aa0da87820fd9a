"""Collectives that do not depend on each other come in one order, whatever they lie inside."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.interpreters import mlir
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxcc import comm
from jaxcc.layout import BackendError

AUTO = AxisType.Auto
OURS = ["jaxcc_fused", "jaxcc_move", "jaxcc_nothing"]


@pytest.mark.parametrize(("ranks", "seed"), [(2, 0), (2, 1), (3, 2), (4, 3), (8, 4)])
def test_independent_collectives_come_in_one_order(ranks: int, seed: int) -> None:
    script = Path(__file__).with_name("independent_collectives.py")
    environment = os.environ | {"JAXCC_TIMEOUT_S": "60"}
    done = subprocess.run(
        [sys.executable, str(script), str(ranks), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr


def test_a_collective_where_no_order_can_be_kept_is_refused() -> None:
    run = jax.extend.core.jaxpr_as_fun
    box = jax.extend.core.Primitive("box")
    box.def_abstract_eval(lambda x, *, jaxpr: jaxpr.out_avals[0])
    mlir.register_lowering(
        box, mlir.lower_fun(lambda x, *, jaxpr: run(jaxpr)(x)[0], multiple_results=False)
    )
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def body(x: jax.Array, backend: str) -> jax.Array:
        inside = jax.make_jaxpr(lambda x: comm.all_reduce(x, "x", backend=backend, mesh=mesh))(x)
        return box.bind(x, jaxpr=inside)

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
    def whole(x: jax.Array) -> jax.Array:
        return comm.all_reduce(x, "x", backend="host", mesh=mesh)

    def program(backend: str) -> Any:
        f = functools.partial(body, backend=backend)
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False))

    x = np.arange(4.0, dtype=np.float32)
    with pytest.raises(BackendError, match="inside box") as caught:
        program("host")(x)
    assert caught.value.code == "BACKEND_ORDER"
    np.testing.assert_array_equal(program("xla")(x), [2, 4])
    beside = jax.jit(lambda x: (program("xla")(x), whole(x)))
    np.testing.assert_array_equal(beside(x), [[2, 4], [2, 4]])


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_shard_map_inside_another_is_in_the_same_order(check_vma: bool) -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), devices=jax.devices()[:4], axis_types=(AUTO, AUTO))

    def program(backend: str) -> Any:
        def total(x: jax.Array, axis: str) -> jax.Array:
            return comm.all_reduce(jnp.sin(x), axis, backend=backend, mesh=mesh)

        @functools.partial(jax.shard_map, in_specs=P("b"), out_specs=P(), axis_names={"b"})
        def inner(x: jax.Array) -> jax.Array:
            return total(x, "b")

        def outer(x: jax.Array) -> jax.Array:
            y = inner(x)
            looped = lax.fori_loop(0, 2, lambda _, z: z + inner(jnp.tile(z, 2)), y)
            return jnp.concatenate([looped, y]) + total(x, "a")

        spec = P("a")
        f = jax.shard_map(
            outer, in_specs=spec, out_specs=spec, axis_names={"a"}, check_vma=check_vma
        )
        return jax.jit(f)

    x = np.random.default_rng(5).normal(size=8).astype(np.float32)
    with jax.set_mesh(mesh):
        np.testing.assert_allclose(program("host")(x), program("xla")(x), rtol=1e-6)


def test_exported_programs_and_foreign_primitives_have_their_places() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    on_ranks = functools.partial(
        jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    foreign = jax.extend.core.Primitive("foreign")
    foreign.def_abstract_eval(lambda x, *, axes: x)
    mlir.register_lowering(foreign, lambda _, x, *, axes: [x])

    def program(backend: str) -> Any:
        def total(x: jax.Array) -> jax.Array:
            late = lax.fori_loop(0, 4 * lax.axis_index("x"), lambda _, y: jnp.tanh(y), x)
            return comm.all_reduce(x + 0 * late, "x", backend=backend, mesh=mesh)

        checks = [export.DisabledSafetyCheck.custom_call(name) for name in OURS]
        type_ = jax.ShapeDtypeStruct((1024, 256), jnp.float32)
        made = export.export(jax.jit(on_ranks(total)), disabled_checks=checks)(type_)

        def whole(x: jax.Array) -> list[jax.Array]:
            own = on_ranks(lambda x: foreign.bind(total(x), axes=None))
            return [own(x), made.call(2 * x), made.call(3 * x), own(4 * x)]

        return jax.jit(whole)

    x = np.random.default_rng(9).normal(size=(1024, 256)).astype(np.float32)
    over = jax.sharding.NamedSharding(mesh, P("x"))
    for _ in range(3):
        got, wanted = (program(backend)(jax.device_put(x, over)) for backend in ("host", "xla"))
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["keys", "condition in lanes"])
def test_what_has_no_place_in_the_order_is_refused(kind: str) -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

    def body(x: jax.Array) -> jax.Array:
        y = comm.all_reduce(x, "x", backend="host", mesh=mesh)
        if kind == "keys":
            key = lax.ppermute(jax.random.key(3), "x", [(0, 1), (1, 0)])
            return y + jax.random.uniform(key)
        small = lambda c: lax.pmax(c, "x") < 3  # noqa: E731
        more = lambda c: c + comm.all_reduce(1.0, "x", backend="host", mesh=mesh)  # noqa: E731
        return y + jax.vmap(lambda c: lax.while_loop(small, more, c))(x)

    f = jax.shard_map(body, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    with pytest.raises(BackendError, match="fix: use backend='xla'") as caught:
        jax.jit(f)(np.arange(4.0, dtype=np.float32))
    assert caught.value.code == "BACKEND_ORDER"


@pytest.mark.parametrize("check_vma", [True, False])
def test_without_jit_each_equation_is_a_program(check_vma: bool) -> None:
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("d", "x"))
    x = jnp.asarray(np.random.default_rng(11).normal(size=(4, 6)), jnp.float32)

    def gradient(backend: str) -> jax.Array:
        def loss(x: jax.Array) -> jax.Array:
            total = comm.all_reduce(jnp.sin(x), "x", backend=backend, mesh=mesh)
            return comm.all_gather(jnp.sum(total**2)[None], "d", backend=backend, mesh=mesh)

        def body(x: jax.Array) -> jax.Array:
            return jax.grad(lambda x: jnp.sum(loss(x)))(x)

        spec = P(("d", "x"))
        return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=check_vma)(x)

    np.testing.assert_allclose(gradient("host"), gradient("xla"), rtol=1e-5)
