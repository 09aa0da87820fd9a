"""What users mix up about verbs and compiled schedules is named, with the way out."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from oracles import avals, mesh_of

import jaxcc
from jaxcc import Local, Replicated

RNG = np.random.default_rng()
A, W = RNG.normal(size=(2, 8, 6)).astype(np.float32), RNG.normal(size=(8, 6)).astype(np.float32)


@jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated), out_layouts=Replicated)
def f(a: Any, w: Any) -> Any:
    total = jaxcc.name(lax.psum(a, "tp"), "total")
    return jaxcc.name(jnp.tanh(total) * w, "out")


def plan() -> Any:
    return f.schedule(A[0], W)


def kernel() -> Any:
    """A kernel that has slices inside."""
    cut = plan().split("total").reorder("total.gather", after="out")
    return cut.fuse("total.scatter", ..., "total.gather", name="fused")


def message(call: Callable[[], Any], kind: type[jaxcc.JaxccError] = jaxcc.ScheduleError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("split: dim is 'x', not int or null", lambda s: s.split("total", dim="x")),
        ("split: name is 3, not str", lambda s: s.split(3)),
        (
            "split: policy is 'tree', not 'reduce-scatter'",
            lambda s: s.split("total", policy="tree"),
        ),
        ("reorder: after is None, not str", lambda s: s.reorder("total", after=None)),
        ("split('total') makes the all-gather", lambda s: s.reorder("total", after="out")),
        ("fuse: names is ('total', 'out'), not", lambda s: s.fuse(("total", "out"), name="k")),
        ("fuse: name is 3, not str", lambda s: s.fuse("total", "out", name=3)),
        ("fuse: the name '' is empty", lambda s: s.fuse("total", "out", name="")),
        ("overlap: chunks is 2.0, not int", lambda s: s.overlap("total", "out", chunks=2.0)),
        ("as_slice: names is 0, not str", lambda s: s.as_slice(0)),
        ("dead: names is None, not str", lambda s: s.dead(None)),
        ("apply: 3 is neither", lambda s: s.apply(3)),
        ("donate: f has no input 'z'", lambda s: s.compile(donate="z")),
        ("compile: donate=True is neither a name nor", lambda s: s.compile(donate=True)),
        ("4 ranks along 'tp', and f was scheduled for 2", lambda s: s.compile(mesh=mesh_of(4))),
        ("for w: f32[8,6], not 'w', which is no array", lambda s: s.compile("xla")(A, "w")),
    ],
)
def test_arguments_of_another_kind(text: str, call: Any) -> None:
    said = message(lambda: call(plan()))
    assert "[SCHEDULE_" in said and text in said


def test_what_is_run_needs_devices_and_arrays() -> None:
    mesh = jax.sharding.AbstractMesh((2,), ("tp",))
    abstract = jaxcc.typed(mesh=mesh, in_layouts=(Local, Replicated))(f.local)
    said = message(lambda: abstract.schedule(A[0], W).compile()(A, W), jaxcc.BackendError)
    assert "[BACKEND_NO_DEVICES]" in said and "jax.make_mesh" in said
    types = avals((A, W))
    assert "autotune runs argument 'a' of f, which is a type" in message(lambda: f.autotune(*types))


def test_one_name_is_donated_as_one() -> None:
    compiled = kernel().compile("host", donate="w")
    np.testing.assert_allclose(compiled(A, jnp.asarray(W)), f.reference(A, W), atol=1e-5)


@pytest.mark.parametrize("backend", ["host", "xla"])
def test_under_vmap_every_element_of_the_batch_is_right(backend: str) -> None:
    compiled = kernel().compile(backend)
    a, w = RNG.normal(size=(3, *A.shape)), RNG.normal(size=(3, *W.shape))
    a, w = a.astype(np.float32), w.astype(np.float32)
    wanted = np.tanh(a.astype(np.float64).sum(1)) * w
    np.testing.assert_allclose(jax.vmap(compiled)(a, w), wanted, atol=1e-5)
    one = jax.jit(jax.vmap(compiled, in_axes=(0, None)))(a, w[0])
    np.testing.assert_allclose(one, np.tanh(a.astype(np.float64).sum(1)) * w[0], atol=1e-5)
    twice = jax.vmap(lambda a, w: compiled(a, compiled(a, w)))(a, w)
    np.testing.assert_allclose(twice, np.tanh(a.astype(np.float64).sum(1)) * wanted, atol=1e-5)
    slopes = jax.vmap(jax.grad(lambda a, w: compiled(a, w).sum()))(a, w)
    slope = (1 - np.tanh(a.astype(np.float64).sum(1)) ** 2) * w
    np.testing.assert_allclose(slopes, np.stack([slope, slope], 1), atol=1e-4)


@pytest.mark.parametrize("backend", ["host", "xla"])
@pytest.mark.parametrize(
    "differentiate",
    [lambda c: jax.jvp(c, (A, W), (A, W)), lambda c: jax.jacfwd(c)(A, W),
     lambda c: jax.hessian(lambda a: c(a, W).sum())(A)],
)  # fmt: skip
def test_forward_mode_is_an_error_that_names_reverse_mode(backend: str, differentiate: Any) -> None:
    said = message(lambda: differentiate(kernel().compile(backend)))
    assert "[SCHEDULE_FORWARD_MODE]" in said and "jax.jacrev" in said
    differentiate(f)


@pytest.mark.parametrize("backend", ["host", "xla"])
def test_local_where_its_axis_is_not_or_has_another_size(backend: str) -> None:
    compiled = kernel().compile(backend)
    said = message(lambda: compiled.local(A[0], W), jaxcc.BackendError)
    assert "[BACKEND_AXIS]" in said and "inside jax.shard_map" in said

    @partial(jax.shard_map, mesh=mesh_of(4), in_specs=(P("tp"), P()), out_specs=P())
    def wide(a: Any, w: Any) -> Any:
        return compiled.local(a[0], w)

    said = message(lambda: wide(np.concatenate([A, A]), W))
    assert "compiled for 2 ranks along 'tp', and there are 4" in said


def test_results_without_elements() -> None:
    @jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)
    def part(a: Any) -> Any:
        total = jaxcc.name(lax.psum(a, "tp"), "total")
        return jaxcc.name(2 * total, "out"), a[:0], (a + 1)[:, :0], total[:0]

    schedule = part.schedule(A[0])
    for compiled in (
        part,
        schedule.compile("xla"),
        schedule.fuse("total", "out", name="k").compile("host"),
    ):
        for found, wanted in zip(compiled(A), part.reference(A), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
            assert found.dtype == wanted.dtype


def test_a_compiler_that_fails_is_quoted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cxx"
    compiler.write_text('#!/bin/sh\nfor n in $(seq 40); do echo "bad line $n" >&2; done\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("JAXCC_CXX", str(compiler))
    monkeypatch.setenv("JAXCC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("jaxcc.schedule._fallback._said", set())
    with pytest.warns(
        jaxcc.UnfusedWarning, match=r"(?s)CODEGEN_COMPILE.*JAXCC_CXX.*bad line 1\b"
    ) as said:
        compiled = kernel().compile()
    assert said[0].filename == __file__ and "bad line 40" not in str(said[0].message)
    np.testing.assert_allclose(compiled(A, W), f.reference(A, W), atol=1e-5)
    quoted = message(lambda: kernel().compile("host"), jaxcc.CodegenError)
    assert "bad line 40" in quoted


def test_a_send_that_leaves_ranks_out_says_what_can_be_scheduled() -> None:
    def shift(y: Any, every: bool) -> Any:
        n = lax.axis_size("tp")
        pairs = [(i, (i + 1) % n) for i in range(n if every else n - 1)]
        came = lax.ppermute(jaxcc.name(jnp.tanh(y), "work"), "tp", pairs)
        return jaxcc.name(came * (lax.axis_index("tp") > 0) if every else came, "sent")

    def typed(every: bool) -> Any:
        return jaxcc.typed(mesh=mesh_of(2), in_layouts=Local)(partial(shift, every=every))

    said = message(lambda: typed(False).schedule(A[0]), jaxcc.LayoutError)
    assert "neither proved nor scheduled" in said and "jax.lax.axis_index('tp') > 0" in said
    compiled = typed(True).schedule(*avals((A[0],))).compile()
    wanted = np.stack([np.zeros_like(A[0]), np.tanh(A[0])])
    np.testing.assert_allclose(compiled(A), wanted, rtol=1e-5)
