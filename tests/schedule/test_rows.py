"""Fused epilogues that reduce: rows (softmax, RMSNorm, LayerNorm), and totals beside the work."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError


def total(y: Any) -> Any:
    return jaxcc.name(lax.psum(y, "tp"), "total")


def rms_norm(y: Any, r: Any, scale: Any) -> Any:
    t = total(y) + r
    return jaxcc.name(t * lax.rsqrt(jnp.mean(t * t, -1, keepdims=True) + 1e-6) * scale, "out")


def layer_norm(y: Any, r: Any, scale: Any) -> Any:
    t = jax.nn.gelu(total(y)) + r
    middle = t - t.mean(-1, keepdims=True)
    return jaxcc.name(middle * lax.rsqrt(t.var(-1, keepdims=True) + 1e-6) * scale, "out")


def softmax(y: Any, r: Any, scale: Any) -> Any:
    return jaxcc.name(jax.nn.softmax(total(y) * scale + r, axis=-1), "out")


ROWS = {"rms_norm": rms_norm, "layer_norm": layer_norm, "softmax": softmax}


def fused(f: Any, n: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> tuple[Any, Schedule]:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(Local, Replicated, Replicated))(f)
    avals = [jax.ShapeDtypeStruct(s, dtype) for s in (shape, shape, shape[-1:])]
    s = typed.schedule(*avals).split("total", dim=0).reorder("total.gather", after="out")
    return typed, s.fuse("total.scatter", ..., "total.gather", name="kernel")


def given(n: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng()
    shapes = ((n, *shape), shape, shape[-1:])
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("which", ROWS)
@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("shape", [(8, 5), (4, 3, 700)])
def test_rows_are_reduced_in_the_kernel(which: str, n: int, shape: tuple[int, ...]) -> None:
    typed, s = fused(ROWS[which], n, shape)
    # Numbers that depend on nothing are computed before.
    assert [op.kind for op in s.program.ops if op.types[0].shape] == ["fused"]
    args = given(n, shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # No kernel would be a warning.
        got = s.compile("host")(*args)
    with jax.enable_x64(True):
        wide = [np.asarray(a, np.float64) for a in args]
        expected = ROWS64[which](wide[0].sum(0), *wide[1:])
    close(got, expected)
    close(got, typed.reference(*args))


ROWS64: dict[str, Callable[..., Any]] = {
    "rms_norm": lambda t, r, w: (
        (t + r) / np.sqrt(((t + r) ** 2).mean(-1, keepdims=True) + 1e-6) * w
    ),
    "layer_norm": lambda t, r, w: _normed(np.asarray(jax.nn.gelu(t)) + r) * w,
    "softmax": lambda t, r, w: _softmax(t * w + r),
}


def _normed(t: np.ndarray) -> np.ndarray:
    return (t - t.mean(-1, keepdims=True)) / np.sqrt(t.var(-1, keepdims=True) + 1e-6)


def _softmax(t: np.ndarray) -> np.ndarray:
    e = np.exp(t - t.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_its_gradient_is_that_of_the_source() -> None:
    typed, s = fused(rms_norm, 2, (4, 6))
    args = given(2, (4, 6))
    run, weight = s.compile("host"), np.random.default_rng().normal(size=(4, 6))
    got = jax.grad(lambda *a: (run(*a) * weight).sum(), argnums=(1, 2))(*args)
    expected = jax.grad(lambda *a: (typed.reference(*a) * weight).sum(), argnums=(1, 2))(*args)
    for one, other in zip(got, expected, strict=True):
        close(one, other)


def test_a_row_that_is_sliced_is_refused() -> None:
    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated, Replicated))(rms_norm)
    avals = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 6), (4, 6), (6,))]
    s = typed.schedule(*avals).split("total", dim=1).reorder("total.gather", after="out")
    with pytest.raises(ScheduleError, match="SCHEDULE_NOT_POINTWISE.*reduces the dimension"):
        s.fuse("total.scatter", ..., "total.gather", name="kernel")


def step(g: Any, w: Any, m: Any) -> tuple[Any, Any, Any, Any]:
    m = jaxcc.name(0.9 * m + 0.1 * total(g), "new_m")
    new = jaxcc.name(w - 0.1 * m, "out")
    largest = jaxcc.name(jnp.max(jnp.abs(m) * w), "largest")
    return new, m, jnp.sqrt(jaxcc.name(jnp.sum(new * new), "square")), largest


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("shape", [(8, 3), (4, 9_001)])
def test_totals_come_out_of_the_kernel(n: int, shape: tuple[int, ...]) -> None:
    typed = jaxcc.typed(mesh=mesh_of(n), in_layouts=(Local, Replicated, Replicated))(step)
    s = typed.schedule(*[jax.ShapeDtypeStruct(shape, jnp.float32)] * 3)
    s = s.split("total", dim=0)
    for after in ("out", "square", "largest"):
        s = _gathered_after(s, after)
    s = s.as_slice("m", "new_m")
    gathers = [op.name for op in s.program.ops if op.kind == "all_gather"]
    totals = [op.name for op in s.program.ops if op.kind == "all_reduce"]
    assert len(totals) == 2
    s = s.fuse("total.scatter", ..., *gathers, *totals, name="kernel")
    (op,) = (op for op in s.program.ops if op.kind == "fused")
    assert set(totals) <= set(op.outputs)
    g, w, m = given(n, shape)[0], *(given(n, shape)[1] for _ in range(2))
    wide = [np.asarray(a, np.float64) for a in (g.sum(0, dtype=np.float64), w, m)]
    new_m = 0.9 * wide[2] + 0.1 * wide[0]
    new = wide[1] - 0.1 * new_m
    expected = new, new_m, np.linalg.norm(new), (abs(new_m) * wide[1]).max()
    results = s.compile("host")(g, w, m)
    for got, one in zip(results, expected, strict=True):
        close(got, one)
    for x in results[2:]:
        assert len({np.asarray(part.data).tobytes() for part in x.addressable_shards}) == 1


def _gathered_after(s: Schedule, after: str) -> Schedule:
    before = s.program.reaching([after])
    for op in s.program.ops:
        if op.kind == "all_gather" and op.name in before:
            return s.reorder(op.name, after=after)
    return s


def test_a_total_that_the_group_reads_is_refused() -> None:
    def clipped(g: Any) -> Any:
        t = total(g)
        size = jaxcc.name(jnp.sum(t * t), "size")
        return jaxcc.name(t / (1 + size), "out")

    typed = jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local,))(clipped)
    s = typed.schedule(jax.ShapeDtypeStruct((4, 6), jnp.float32))
    s = s.split("total", dim=0).reorder("total.gather", after="out")
    with pytest.raises(ScheduleError, match="is a total, and 'add' reads it"):
        s.fuse("total.scatter", ..., "total.gather", name="kernel")
    kept = s.fuse("total.scatter", "mul", "size", "size.all_reduce", name="kernel")
    (g,) = given(2, (4, 6))[:1]
    t = g.sum(0, dtype=np.float64)
    close(kept.compile("host")(g), t / (1 + (t * t).sum()))
