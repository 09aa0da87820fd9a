"""jaxcc.optim.adam against optax.adam on one device and Adam in NumPy's f64."""

from typing import Any

import fused
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc.optim
from jaxcc import _compat

# jaxlib 0.11 crashes on empty arrays in shard_map, with or without jaxcc.
EMPTY = {"empty": (0, 3)} if _compat.JAX_VERSION >= (0, 12) else {}
SHAPES = {
    "a": (7, 3),
    "b": (5,),
    "scalar": (),
    "one": (1,),
    "big": (90, 257),
    "odd": (83, 101),
    **EMPTY,
}


def randoms(rng: np.random.Generator, lead: tuple[int, ...] = ()) -> dict[str, np.ndarray]:
    return fused.randoms(rng, SHAPES, lead)


def on_ranks(tx: Any, mesh: Any, form: str) -> Any:
    """As `fused.on_ranks`, with the prefix of the state's specs, and all donated that can be."""
    donated = {"donate_argnums": (1, 2)} if form == "step" else {}
    return fused.on_ranks(tx, mesh, None, form, **donated)


class Adam64:
    """The published algorithm, in f64."""

    def __init__(self, lr: Any, b1: float, b2: float, eps: float) -> None:
        self.lr, self.b1, self.b2, self.eps, self.t = lr, b1, b2, eps, 0
        self.m: Any = None

    def step(self, g: Any, w: Any) -> Any:
        if self.m is None:
            self.m = {k: np.zeros(x.shape) for k, x in w.items()}
            self.v = {k: np.zeros(x.shape) for k, x in w.items()}
        lr = self.lr(self.t) if callable(self.lr) else self.lr
        self.t += 1
        out = {}
        for k in w:
            self.m[k] = self.b1 * self.m[k] + (1 - self.b1) * g[k]
            self.v[k] = self.b2 * self.v[k] + (1 - self.b2) * g[k] ** 2
            hat = self.m[k] / (1 - self.b1**self.t)
            out[k] = w[k] - lr * hat / (np.sqrt(self.v[k] / (1 - self.b2**self.t)) + self.eps)
        return out


@pytest.mark.parametrize("form", ["step", "update"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_agrees_with_optax_and_f64(n: int, form: str) -> None:
    rng = np.random.default_rng(10 * n + len(form))
    rate: Any = optax.linear_schedule(1e-2, 1e-3, 4)
    mesh = mesh_of(n, "dp")
    tx: Any = jaxcc.optim.adam(rate, b1=0.8, b2=0.97, eps=1e-6, axis_name="dp", mesh=mesh)
    reference: Any = optax.adam(rate, b1=0.8, b2=0.97, eps=1e-6)
    wide = Adam64(rate, 0.8, 0.97, 1e-6)
    start = randoms(rng)
    params, state = jax.tree.map(jnp.array, start), tx.init(start)
    optax_state = reference.init(start)
    optax_params: Any = start
    params64 = {k: x.astype(np.float64) for k, x in start.items()}
    run = on_ranks(tx, mesh, form)
    for _ in range(5):
        grads = randoms(rng, (n,))
        mean64 = {k: g.astype(np.float64).mean(0) for k, g in grads.items()}
        params, state = run(grads, state, params)
        mean = jax.tree.map(lambda g: jnp.asarray(g.mean(0)), grads)
        updates, optax_state = reference.update(mean, optax_state)
        optax_params = optax.apply_updates(optax_params, updates)
        params64 = wide.step(mean64, params64)
        for k in SHAPES:
            close(params[k], optax_params[k])
            close(params[k], params64[k])
    assert int(state[0].count) == 5
    for k, shape in SHAPES.items():
        size = int(np.prod(shape))
        flat = np.asarray(state[0].mu[k])
        block = -(-size // n)
        whole = size % n == 0 or block < 1024
        assert flat.shape == (n * (block if whole else -(-block // 32) * 32),)
        assert not flat[size:].any()
        close(flat[:size], wide.m[k].reshape(-1))


def test_state_can_start_inside_shard_map() -> None:
    mesh = mesh_of(2, "dp")
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh)
    params = randoms(np.random.default_rng(0))
    mapped = jax.shard_map(tx.init, mesh=mesh, in_specs=P(), out_specs=tx.specs())
    inside = jax.jit(mapped)(params)
    outside = tx.init(params)
    for a, b in zip(jax.tree.leaves(inside), jax.tree.leaves(outside), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_every_rank_gets_the_same_bits_run_after_run() -> None:
    mesh = mesh_of(4, "dp")
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh)
    rng = np.random.default_rng(1)
    start, grads = randoms(rng), randoms(rng, (4,))
    run = on_ranks(tx, mesh, "update")
    seen = set()
    for _ in range(3):
        params, _ = run(grads, tx.init(start), start)
        seen |= {np.asarray(s.data).tobytes() for s in params["big"].addressable_shards}
    assert len(seen) == 1


def test_mixed_dtypes_use_a_kernel_each() -> None:
    mesh = mesh_of(2, "dp")
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh)
    reference: Any = optax.adam(1e-2)
    rng = np.random.default_rng(2)
    start = {
        "f": jnp.asarray(rng.normal(size=(33,)), jnp.float32),
        "h": jnp.asarray(rng.normal(size=(18,)), jnp.bfloat16),
    }
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=(2, *p.shape)), p.dtype), start)
    params, _ = on_ranks(tx, mesh, "update")(grads, tx.init(start), start)
    mean = jax.tree.map(lambda g: g.mean(0, dtype=jnp.float32).astype(g.dtype), grads)
    stepped, _ = on_ranks(tx, mesh, "step")(grads, tx.init(start), jax.tree.map(jnp.copy, start))
    updates, _ = reference.update(mean, reference.init(start))
    expected: Any = optax.apply_updates(start, updates)
    close(params["f"], expected["f"])
    close(params["h"], expected["h"], tolerance=2**-7)
    for name in start:
        assert stepped[name].dtype == start[name].dtype
        close(stepped[name], expected[name], tolerance=2**-7)


def test_without_a_mesh_the_error_names_the_fix() -> None:
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="dp")
    with pytest.raises(jaxcc.BackendError, match=r"(?s)BACKEND_NO_MESH.*pass mesh="):
        tx.init({"w": np.zeros(3, np.float32)})


def refusal(tx: Any, mesh: Any, change: Any) -> str:
    """What a step says to changed (gradients, state, params)."""
    params = {"w": np.ones((4, 3), np.float32), "b": np.ones(5, np.float32)}

    def step(params: Any) -> Any:
        varying = jax.lax.pcast(params, "dp", to="varying")
        grads, state, params = change(varying, tx.init(params), params)
        return tx.step(grads, state, params)

    mapped = jax.shard_map(step, mesh=mesh, in_specs=P(), out_specs=(P(), tx.specs()))
    with pytest.raises(jaxcc.LayoutError) as caught:
        jax.jit(mapped).lower(params)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "text", "change"),
    [
        ("OPTIM_SUMMED", "['b']: the gradient is equal on all", lambda g, s, p: (p, s, p)),
        ("OPTIM_ARGUMENT", "the structure of", lambda g, s, p: ([g["w"], g["b"]], s, p)),
        ("OPTIM_ARGUMENT", "['b']: the parameters", lambda g, s, p: (g, s, {**p, "b": p["b"][:2]})),
        (
            "OPTIM_ARGUMENT",
            "['b']: the slices in the state",
            lambda g, s, p: (g, (s[0]._replace(mu=p), *s[1:]), p),
        ),
        (
            "OPTIM_ARGUMENT",
            "int32, not floating",
            lambda g, s, p: (jax.tree.map(lambda x: x.astype(int), g), s, p),
        ),
        (
            "OPTIM_ARGUMENT",
            "the structure of the state is not that of what init returns",
            lambda g, s, p: (g, s[0], p),
        ),
    ],
)
def test_what_does_not_belong_together_is_refused(code: str, text: str, change: Any) -> None:
    mesh = mesh_of(2, "dp")
    message = refusal(jaxcc.optim.adam(1e-2, axis_name="dp", mesh=mesh), mesh, change)
    assert code in message and text in message


def test_an_axis_that_the_mesh_lacks_is_named() -> None:
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="tp", mesh=mesh_of(2, "dp"))
    with pytest.raises(jaxcc.LayoutError, match="OPTIM_AXIS.*'tp'.*dp"):
        tx.init({"w": np.zeros(3, np.float32)})


def test_the_mesh_that_is_set_serves_inside_jit() -> None:
    tx: Any = jaxcc.optim.adam(1e-2, axis_name="dp")
    params = {"w": np.ones((4, 3), np.float32)}
    with jax.set_mesh(mesh_of(2, "dp")):
        step = jax.jit(
            jax.shard_map(
                lambda p: tx.step(jax.lax.pcast(p, "dp", to="varying"), tx.init(p), p)[0],
                in_specs=P(),
                out_specs=P(),
            )
        )
        close(step(params)["w"], np.full((4, 3), 0.99))
