"""Layouts of real arrays: `jaxcc.put`, `jaxcc.layout_of`, and arrays that a function captures."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, on
from jaxcc.testing import raises_layout

KINDS = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
RANDOM = np.random.default_rng()


def normal(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def grid(kind: AxisType) -> jax.sharding.Mesh:
    return jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(kind,) * 2)


@KINDS
@pytest.mark.parametrize(
    "layout, blocks",
    [
        (Replicated, lambda x, dp, tp: x),
        (on(dp=Sliced(0)), lambda x, dp, tp: np.split(x, 2)[dp]),
        (on(tp=Sliced(-1)), lambda x, dp, tp: np.split(x, 2, 1)[tp]),
        (on(dp=Sliced(1), tp=Sliced(0)), lambda x, dp, tp: np.split(np.split(x, 2)[tp], 2, 1)[dp]),
        (on(dp=Sliced(0), tp=Sliced(0)), lambda x, dp, tp: np.split(x, 4)[2 * dp + tp]),
        (on(tp=Sliced(0), dp=Sliced(0)), lambda x, dp, tp: np.split(x, 4)[2 * tp + dp]),
    ],
)
def test_every_device_holds_its_block(kind: AxisType, layout: Any, blocks: Any) -> None:
    mesh, x = grid(kind), normal(8, 4)
    placed = jaxcc.put(x, layout, mesh)
    for shard in placed.addressable_shards:
        ((dp, tp),) = np.argwhere(mesh.devices == shard.device)
        np.testing.assert_array_equal(shard.data, blocks(x, dp, tp))
    read = jaxcc.layout_of(placed)
    assert set(read) == {"dp", "tp"}
    np.testing.assert_array_equal(jaxcc.put(x, read, mesh), x)
    assert jaxcc.put(x, read, mesh).sharding == placed.sharding
    if layout != Replicated and layout != on(tp=Sliced(-1)):
        assert read == layout


def test_the_order_of_two_axes_counts_on_one_dimension_only() -> None:
    assert on(dp=Sliced(0), tp=Sliced(1)) == on(tp=Sliced(1), dp=Sliced(0), pp=Replicated)
    assert on(dp=Sliced(0), tp=Sliced(0)) != on(tp=Sliced(0), dp=Sliced(0))
    assert on(dp=Local, tp=Local) != on(tp=Local, dp=Local)
    assert len({on(a=Replicated), on()}) == 1


def test_a_tree_with_a_prefix_of_layouts() -> None:
    mesh = mesh_of(2)
    tree = {"w": normal(4, 2), "rest": (normal(2), jnp.int32(3))}
    placed = jaxcc.put(tree, {"w": Sliced(0), "rest": Replicated}, mesh)
    layouts = jax.tree.map(lambda x: jaxcc.layout_of(x)["tp"], placed)
    assert layouts == {"w": Sliced(0), "rest": (Replicated, Replicated)}
    jax.tree.map(np.testing.assert_array_equal, placed, tree)
    assert jaxcc.put({"nothing": None}, Replicated, mesh) == {"nothing": None}


@KINDS
def test_what_typed_functions_take_and_give(kind: AxisType) -> None:
    mesh = grid(kind)

    @jaxcc.typed(
        mesh=mesh,
        in_layouts=(on(dp=Local, tp=Sliced(0)), on(tp=Partial())),
        out_layouts=(on(dp=Local), on(tp=Sliced(0))),
    )
    def step(x: Any, g: Any) -> Any:
        return lax.psum(x.sum(), "tp"), lax.psum_scatter(g, "tp", tiled=True)

    x, g = normal(2, 4), normal(2, 6)
    placed = jaxcc.put((x, g), (on(dp=Local, tp=Sliced(0)), on(tp=Partial())), mesh)
    assert placed[0].sharding.spec == P(("dp",), ("tp",))
    sums, scattered = step(*placed)
    close(sums, x.astype(np.float64).sum(1))
    close(scattered, g.astype(np.float64).sum(0))
    assert jaxcc.layout_of(scattered) == on(tp=Sliced(0))
    # A leading dimension of ranks' values cannot be told from any other.
    assert jaxcc.layout_of(sums) == on(dp=Sliced(0))


@KINDS
def test_an_array_that_lies_otherwise_is_moved(kind: AxisType) -> None:
    mesh = grid(kind)
    layouts = on(dp=Sliced(0), tp=Sliced(1))
    f = jaxcc.typed(mesh=mesh, in_layouts=(layouts,))(jnp.sin)
    x = normal(4, 4)
    for other in (Replicated, on(tp=Sliced(0)), on(tp=Sliced(0), dp=Sliced(0))):
        y = f(jaxcc.put(x, other, mesh))
        close(y, np.sin(x.astype(np.float64)))
        assert jaxcc.layout_of(y) == layouts


@KINDS
def test_put_under_jit(kind: AxisType) -> None:
    mesh, x = grid(kind), normal(4, 4)
    layout = on(tp=Sliced(1), dp=Sliced(1))
    y = jax.jit(lambda x: jaxcc.put(x * 2, layout, mesh))(jaxcc.put(x, Replicated, mesh))
    assert jaxcc.layout_of(y) == layout
    close(y, 2 * x.astype(np.float64))


def test_layout_of_a_traced_array() -> None:
    seen: list[Any] = []

    def look(x: Any) -> Any:
        seen.append(jaxcc.layout_of(x))
        return x

    layout = on(tp=Sliced(0), dp=Sliced(1))
    jax.jit(look)(jaxcc.put(normal(4, 4), layout, grid(AxisType.Explicit)))
    assert seen == [layout]
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        jax.jit(look)(jaxcc.put(normal(4, 4), layout, grid(AxisType.Auto)))
    assert "being traced" in findings[0].what


@pytest.mark.parametrize(
    "x, layout, code, said",
    [
        (np.ones(3), Sliced(0), "LAYOUT_INDIVISIBLE", "dimension 0 of the array is 3"),
        (np.ones(4), Sliced(1), "LAYOUT_ARGUMENT", "no dimension 1"),
        (np.float32(4), Sliced(0), "LAYOUT_ARGUMENT", "no dimension 0"),
        (np.ones((3, 2)), Local, "LAYOUT_ARGUMENT", "starts with dimensions (2,)"),
        (np.ones(()), Partial("max"), "LAYOUT_ARGUMENT", "Partial(max)@tp, so its global array"),
        ({"a": "text"}, Replicated, "LAYOUT_ARGUMENT", "the array['a'] is 'text', not an array"),
        (np.ones(4), on(rows=Sliced(0)), "LAYOUT_ARGUMENT", "'rows', but the mesh has tp"),
        ((np.ones(4),), (Replicated, Replicated), "LAYOUT_ARGUMENT", "a tuple of 2"),
        (np.ones(4), "rows", "LAYOUT_ARGUMENT", "layout has to be a layout, not 'rows'"),
    ],
)
def test_what_cannot_be_put(x: Any, layout: Any, code: str, said: str) -> None:
    with raises_layout(code) as findings:
        jaxcc.put(x, layout, mesh_of(2))
    assert said in findings[0].what


def test_meshes_that_hold_no_array() -> None:
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        jaxcc.put(np.ones(4), Replicated, "tp")
    assert "mesh is 'tp'" in findings[0].what and "make_mesh" in findings[0].fixes[0]
    with pytest.raises(jaxcc.BackendError, match="BACKEND_NO_DEVICES"):
        jaxcc.put(np.ones(4), Replicated, AbstractMesh((2,), ("tp",)))


@pytest.mark.parametrize(
    "array, said",
    [
        (lambda: 3, "takes one jax.Array, not 3"),
        (lambda: np.ones(2), "takes one jax.Array"),
        (lambda: {"a": jnp.ones(2)}, "takes one jax.Array"),
        (lambda: jnp.ones(2), "on no mesh"),
        (
            lambda: jax.device_put(np.ones(2), jax.sharding.SingleDeviceSharding(jax.devices()[0])),
            "on no mesh",
        ),
    ],
)
def test_what_has_no_layout(array: Any, said: str) -> None:
    with raises_layout("LAYOUT_ARGUMENT") as findings:
        jaxcc.layout_of(array())
    assert said in findings[0].what and "put" in " ".join(findings[0].fixes)


WAYS = {
    "in the function": lambda w: lambda x: x * w,
    "in a jitted one": lambda w: jax.jit(lambda x: x * w),
    "in a loop": lambda w: lambda x: lax.scan(lambda c, _: (c * w, None), x, None, length=1)[0],
}


@KINDS
@pytest.mark.parametrize("way", WAYS)
def test_a_captured_sharded_array(kind: AxisType, way: str) -> None:
    mesh, x, w = grid(kind), normal(4), normal(4)
    captured = jaxcc.put(w, on(tp=Sliced(0)), mesh)
    f = jaxcc.typed(mesh=mesh, in_layouts=(Replicated,))(WAYS[way](captured))
    for call in (f, f.check, f.reference, f.schedule):
        with raises_layout("LAYOUT_CAPTURED") as findings:
            call(x)
        assert findings[0].line is not None and findings[0].line.file == __file__
        assert "argument" in findings[0].fixes[0]
    passed = jaxcc.typed(mesh=mesh, in_layouts=(on(tp=Sliced(0)),) * 2)(lambda x, w: x * w)
    close(passed(x, captured), x.astype(np.float64) * w)


@KINDS
@pytest.mark.parametrize("way", WAYS)
def test_captured_arrays_that_every_rank_holds(kind: AxisType, way: str) -> None:
    mesh, x, w = grid(kind), normal(4), normal(4)
    held = [w, jnp.asarray(w)]
    if kind == AxisType.Auto:  # JAX itself refuses others to be captured.
        held += [jaxcc.put(w, Replicated, mesh), jax.device_put(w, NamedSharding(mesh, P()))]
    for captured in held:
        f = jaxcc.typed(mesh=mesh, in_layouts=(Replicated,))(WAYS[way](captured))
        for call in (f, f.reference):
            close(call(x), x.astype(np.float64) * w)
