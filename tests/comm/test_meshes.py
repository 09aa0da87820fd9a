"""Every collective of jaxcc.comm in groups that are a part of the mesh, against NumPy."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from collectives import NUMPY, random_call
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from ranks import mesh_of, run

from jaxcc import comm
from jaxcc.layout import JaxccError

BACKENDS = ["xla", "host"]
Array = np.ndarray


def by_groups(name: str, x: Array, axes: Sequence[str], **parameters: Any) -> Array:
    """The collective of each group along `axes` of ranks that lie in dimensions "r" and "s"."""
    along = ["rs".index(axis) for axis in axes]
    first = np.moveaxis(x, along, range(len(along)))
    ranks = int(np.prod(first.shape[: len(along)]))
    groups = first.reshape(ranks, -1, *x.shape[2:])
    made = np.stack([NUMPY[name](group, **parameters) for group in np.moveaxis(groups, 1, 0)], 1)
    return np.moveaxis(made.reshape(*first.shape[:2], *made.shape[2:]), range(len(along)), along)


@pytest.mark.parametrize("axes", ["r", "s", ("r", "s"), ("s", "r")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_groups_along_axes_of_a_larger_mesh(backend: str, axes: Any) -> None:
    mesh = mesh_of(2, 2)
    rng = np.random.default_rng(3 * len(axes) + (axes[0] == "s"))
    calls = [(name, *random_call(name, 2 ** len(axes), rng)) for name in NUMPY]
    xs = [rng.normal(size=(2, 2, *shape)).astype(np.float32) for _, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        return [
            getattr(comm, name)(x, axes, backend=backend, mesh=mesh, **parameters)
            for (name, _, parameters), x in zip(calls, xs, strict=True)
        ]

    results = run(body, *(x.reshape(4, *x.shape[2:]) for x in xs), mesh=mesh)
    for (name, _, parameters), x, actual in zip(calls, xs, results, strict=True):
        wanted = by_groups(name, x.astype(np.float64), axes, **parameters)
        np.testing.assert_allclose(
            np.asarray(actual).reshape(wanted.shape),
            wanted,
            rtol=1e-5,
            atol=1e-6,
            err_msg=f"{name} {parameters}",
        )


# JAX's own psum_scatter refuses a mesh of Explicit axes here.
@pytest.mark.parametrize(
    ("backend", "kind"),
    [("xla", AxisType.Auto), ("host", AxisType.Auto), ("host", AxisType.Explicit)],
)
@pytest.mark.parametrize("check_vma", [True, False])
def test_where_shard_map_takes_some_axes_only(
    backend: str, check_vma: bool, kind: AxisType
) -> None:
    mesh = jax.make_mesh((2, 2), ("r", "s"), axis_types=(kind,) * 2)
    rng = np.random.default_rng(11 + check_vma)
    calls = [(name, *random_call(name, 2, rng)) for name in NUMPY]
    xs = [rng.normal(size=(2, *shape)).astype(np.float32) for _, shape, _ in calls]

    def body(*xs: jax.Array) -> list[jax.Array]:
        return [
            getattr(comm, name)(x[0], "r", backend=backend, mesh=mesh, **parameters)[None]
            for (name, _, parameters), x in zip(calls, xs, strict=True)
        ]

    with jax.set_mesh(mesh):
        results = jax.jit(
            jax.shard_map(
                body, in_specs=P("r"), out_specs=P("r"), axis_names={"r"}, check_vma=check_vma
            )
        )(*(jax.device_put(x, P("r")) for x in xs))
    for (name, _, parameters), x, actual in zip(calls, xs, results, strict=True):
        wanted = NUMPY[name](x.astype(np.float64), **parameters)
        np.testing.assert_allclose(
            actual, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{name} {parameters}"
        )


@pytest.mark.parametrize("name", ["all_gather", "all_to_all", "scatter"])
def test_nothing_where_shard_map_takes_some_axes_only(name: str) -> None:
    mesh = mesh_of(2, 2)

    def body(x: jax.Array) -> jax.Array:
        return getattr(comm, name)(x, "r", backend="host", mesh=mesh)

    traced = jax.shard_map(body, mesh=mesh, in_specs=P("r"), out_specs=P("r"), axis_names={"r"})
    assert jax.eval_shape(traced, jax.ShapeDtypeStruct((8, 0), np.float32)).shape[1] == 0


def test_outside_of_shard_map_a_mesh_that_is_set_has_no_axes() -> None:
    mesh = mesh_of(2)
    x = jax.ShapeDtypeStruct((4,), np.float32)
    with jax.set_mesh(mesh):
        assert comm.explain("all_gather", x, "r", mesh=mesh).call.ranks == 2
        for call in (lambda: comm.explain("all_gather", x, "r"), lambda: comm.barrier(1, "r")):
            with pytest.raises(JaxccError, match="mesh axes here are: none") as caught:
                call()
            assert caught.value.code == "LAYOUT_AXIS"


@pytest.mark.parametrize("axis", ["r", "s"])
def test_the_mesh_that_is_set_tells_the_devices(axis: str) -> None:
    devices = np.array(jax.devices())[[3, 1, 0, 2]].reshape(2, 2)
    mesh = jax.sharding.Mesh(devices, ("r", "s"), axis_types=(AxisType.Auto,) * 2)
    x = np.random.default_rng(17).normal(size=(2, 2, 5)).astype(np.float32)
    spec = P("r", "s")

    @jax.jit
    @functools.partial(jax.shard_map, in_specs=spec, out_specs=spec, check_vma=False)
    def total(x: jax.Array) -> jax.Array:
        return comm.all_reduce(x, axis, backend="host")

    with jax.set_mesh(mesh):
        wanted = np.broadcast_to(x.sum("rs".index(axis), keepdims=True), x.shape)
        np.testing.assert_allclose(total(x), wanted, rtol=1e-6)
