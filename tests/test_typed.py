"""jaxcc.typed as users call it: layouts at the boundary, pytrees, annotations, transformations,
mistakes.
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, on


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


@jaxcc.typed(mesh=mesh_of(4))
def annotated(
    x: Annotated[Float[Array, "b d"], Sliced(1)], w: Annotated[Float[Array, "d h"], Sliced(0)]
) -> Annotated[Float[Array, "b h"], Replicated]:
    return lax.psum(x @ w, "tp")


def test_layouts_from_annotations_bind_names_across_arguments() -> None:
    x, w = normal(3, 8), normal(8, 5)
    close(annotated(x, w), x.astype(np.float64) @ w)
    close(annotated(w=w, x=x), x.astype(np.float64) @ w)
    with pytest.raises(jaxcc.LayoutError, match="(?s)LAYOUT_SHAPE.*'d'"):
        annotated(x, normal(12, 5))


def test_pytrees_of_arguments_and_results() -> None:
    layouts = ({"w": Sliced(0), "b": Replicated}, Sliced(1))

    @jaxcc.typed(mesh=mesh_of(2), in_layouts=layouts)
    def layer(p: Any, x: Any) -> Any:
        y = lax.psum(x @ p["w"], "tp") + p["b"]
        return {"y": y, "norms": (jnp.sum(y * y), y[0])}

    p, x = {"w": normal(6, 4), "b": normal(4)}, normal(3, 6)
    y = x.astype(np.float64) @ p["w"] + p["b"]
    for out in (layer(p, x), layer.reference(p, x)):
        close(out["y"], y)
        close(out["norms"][0], (y * y).sum())
        close(out["norms"][1], y[0])


@pytest.mark.parametrize("op", ["sum", "max", "min"])
def test_partial_and_local_cross_the_boundary_with_a_leading_dimension(op: Any) -> None:
    reduce = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin}[op]
    mesh = mesh_of(4)
    x = normal(4, 3, 2)
    expected = getattr(np, op)(x.astype(np.float64), axis=0)
    whole = jaxcc.typed(mesh=mesh, in_layouts=(Partial(op),))(lambda y: reduce(y, "tp"))
    close(whole(x), expected)
    close(whole.reference(x), expected)
    mine = jaxcc.typed(mesh=mesh, in_layouts=(Local,), out_layouts=(Local, Replicated))(
        lambda y: (jnp.sin(y), reduce(y, "tp"))
    )
    for out in (mine(x), mine.reference(x)):
        close(out[0], np.sin(x.astype(np.float64)))
        close(out[1], expected)
    with pytest.raises(jaxcc.LayoutError, match="(?s)LAYOUT_ARGUMENT.*one entry per rank"):
        whole(x[:3])


def test_under_and_over_jit_grad_and_vmap() -> None:
    @jaxcc.typed(mesh=mesh_of(2), in_layouts=(Sliced(1), Sliced(0)), out_layouts=Replicated)
    def product(x: Any, w: Any) -> Any:
        return jnp.tanh(lax.psum(x @ w, "tp"))

    x, w = normal(3, 4), normal(4, 5)
    expected = np.tanh(x.astype(np.float64) @ w)
    close(jax.jit(lambda x, w: product(x * 1, w))(x, w), expected)
    batch = np.stack([x, 2 * x])
    close(jax.vmap(product, in_axes=(0, None))(batch, w), np.tanh(batch.astype(np.float64) @ w))
    grads = jax.grad(lambda x, w: product(x, w).sum(), argnums=(0, 1))(x, w)
    slope = 1 - expected**2
    close(grads[0], slope @ w.astype(np.float64).T)
    close(grads[1], x.astype(np.float64).T @ slope)


def test_the_users_own_derivative_rule_is_kept() -> None:
    @jax.custom_vjp
    def odd(x: Any) -> Any:
        return x * 2

    odd.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 10,))
    f = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Sliced(0),))(odd)
    x = normal(4)
    close(jax.grad(lambda x: f(x).sum())(x), np.full(4, 10.0))


@pytest.mark.parametrize("layouts", [(Sliced(1), Sliced(0)), (Local, Replicated)])
def test_under_set_mesh(layouts: Any) -> None:
    @jaxcc.typed(in_layouts=layouts, out_layouts=Replicated)
    def product(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "tp")

    x, w = normal(*((3, 4) if layouts[0] != Local else (2, 3, 4))), normal(4, 5)
    expected = (x.astype(np.float64) @ w).reshape(-1, 3, 5).sum(0)
    with jax.set_mesh(jax.make_mesh((2,), ("tp",), devices=jax.devices()[:2])):
        for a, b in ((x, w), (jnp.asarray(x), jnp.asarray(w))):
            close(product(a, b), expected)
            close(product.reference(a, b), expected)
            close(product(a, b) - product.reference(a, b), np.zeros((3, 5)))
            run = product.schedule(*(product_avals(layouts, a, b))).compile()
            close(run(a, b), expected)
        close(jax.grad(lambda w: product(x, w).sum())(jnp.asarray(w)).sum(), 5 * x.sum())


def product_avals(layouts: Any, a: Any, b: Any) -> list[Any]:
    """Whole shapes: a Local argument's without its dimension for the ranks."""
    return [jax.ShapeDtypeStruct(a.shape[1:] if layouts[0] == Local else a.shape, a.dtype), b]


def test_a_gathered_value_is_accepted_as_replicated() -> None:
    """jax.shard_map refuses this right program: all_gather's result varies in its eyes."""

    @jaxcc.typed(mesh=mesh_of(2), in_layouts=(Sliced(0),), out_layouts=Replicated)
    def gathered(x: Any) -> Any:
        return lax.all_gather(x, "tp", axis=0, tiled=True) * 2

    x = normal(4, 3)
    close(gathered(x), 2 * x.astype(np.float64))
    close(jax.grad(lambda x: (gathered(x) ** 2).sum())(x), 8 * x.astype(np.float64))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_two_axes_on_either_kind_of_mesh(kind: AxisType) -> None:
    mesh = jax.make_mesh((2, 2), ("dp", "tp"), axis_types=(kind,) * 2)
    layouts = (on(dp=Sliced(0), tp=Sliced(1)), on(tp=Sliced(0)))

    @jaxcc.typed(mesh=mesh, in_layouts=layouts, out_layouts=on(dp=Sliced(0)))
    def product(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "tp")

    x, w = normal(4, 6), normal(6, 3)
    close(product(x, w), x.astype(np.float64) @ w)
    close(product.reference(x, w), x.astype(np.float64) @ w)
    close(jax.jit(product)(x, w), x.astype(np.float64) @ w)


def test_loops_and_branches_run_and_have_a_reference() -> None:
    def f(x: Any, y: Any) -> Any:
        looped = lax.fori_loop(0, 3, lambda i, c: c * 2 + y, y)
        return lax.psum(x, "tp") + lax.cond(y[0] > 0, jnp.sin, jnp.cos, looped)

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated), out_layouts=Replicated)(f)
    whole = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Partial(), Replicated))(f)
    x, y = normal(2, 4), normal(4)
    looped = 15 * y.astype(np.float64)
    expected = x.astype(np.float64).sum(0) + (np.sin if y[0] > 0 else np.cos)(looped)
    for g in (typed, whole):
        close(g(x, y), expected)
        close(g.reference(x, y), expected)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_reference_traced_under_another_mesh_says_what_to_do(kind: AxisType) -> None:
    mesh = jax.make_mesh((2,), ("tp",), axis_types=(kind,), devices=jax.devices()[:2])

    @jaxcc.typed(mesh=mesh, in_layouts=(Sliced(1), Sliced(0)), out_layouts=Replicated)
    def product(x: Any, w: Any) -> Any:
        return lax.psum(x @ w, "tp")

    x, w = normal(4, 6), normal(6, 3)
    with jax.set_mesh(mesh):
        close(product.reference(x, w), x.astype(np.float64) @ w)
        with pytest.raises(jaxcc.LayoutError, match="outside of jax.jit"):
            jax.jit(product.reference)(x, w)
    close(jax.jit(product.reference)(x, w), x.astype(np.float64) @ w)


def test_local_is_the_function_itself() -> None:
    mesh = mesh_of(4)
    mapped = jax.shard_map(
        annotated.local, mesh=mesh, in_specs=(P(None, "tp"), P("tp")), out_specs=P()
    )
    x, w = normal(3, 8), normal(8, 5)
    close(mapped(x, w), x.astype(np.float64) @ w)


def test_mistakes_have_a_code_and_a_fix() -> None:
    f = jaxcc.typed(in_layouts=(Replicated,))(lambda x: x)
    with pytest.raises(jaxcc.LayoutError, match="(?s)LAYOUT_NO_MESH.*set_mesh"):
        f(normal(2))
    with jax.set_mesh(mesh_of(2)):
        close(f(normal(2)), normal(2))
    with pytest.raises(jaxcc.LayoutError, match="(?s)LAYOUT_ARGUMENT.*make_mesh"):
        jaxcc.typed(mesh=3, in_layouts=(Replicated,))
    abstract = jaxcc.typed(mesh=AbstractMesh((2,), ("tp",)), in_layouts=(Replicated,))(lambda x: x)
    with pytest.raises(jaxcc.BackendError, match="(?s)BACKEND_NO_DEVICES.*make_mesh"):
        abstract(normal(2))
    for call in (lambda: annotated(normal(3, 8)), lambda: annotated(1, 2, 3)):
        with pytest.raises(jaxcc.LayoutError, match="LAYOUT_ARGUMENT"):
            call()
    with pytest.raises(jaxcc.LayoutError, match="(?s)LAYOUT_INDIVISIBLE.*dimension 1 of x is 6"):
        annotated(normal(3, 6), normal(6, 5))
    wrong = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Sliced(5),))(lambda x: x)
    with pytest.raises(jaxcc.LayoutError, match="(?s)LAYOUT_ARGUMENT.*no dimension 5"):
        wrong(normal(2))
