"""Sends inside kernels: results are stored with the ranks that receive them."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from oracles import close, mesh_of

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, on
from jaxcc.codegen import Source
from jaxcc.layout import CodegenError
from jaxcc.schedule._kernel import plan

type Pairs = Sequence[tuple[int, int]]

PERMUTATIONS: dict[str, Callable[[int], Pairs]] = {
    "to the next": lambda n: [(i, (i + 1) % n) for i in range(n)],
    "to itself": lambda n: [(i, i) for i in range(n)],
    "backwards": lambda n: [(n - 1 - i, i) for i in range(n)],
    "neighbours": lambda n: [(i, i ^ 1 if i ^ 1 < n else i) for i in range(n)],
}


def rotated(n: int) -> Pairs:
    return PERMUTATIONS["to the next"](n)


def received(given: np.ndarray, pairs: Pairs) -> np.ndarray:
    """What each rank has after the send of what each has."""
    out = np.zeros_like(given)
    for source, target in pairs:
        out[target] = given[source]
    return out


def sent_by(pairs: Callable[[int], Pairs]) -> Any:
    def hand_over(y: Any, r: Any, key: Any, rate: Any) -> Any:
        """Bias, dropout, residual; the result goes on, and half of it stays."""
        keep = jax.random.bernoulli(key, 0.7, y.shape)
        work = jaxcc.name(jnp.where(keep, (y + r[0]) * rate, 0) + r, "work")
        n = lax.axis_size("tp")
        return jaxcc.name(lax.ppermute(work, "tp", pairs(n)), "sent"), jaxcc.name(
            work * 0.5, "kept"
        )

    return hand_over


def schedule_of(f: Any, n: int, *avals: Any, layouts: Any = Local) -> Schedule:
    return jaxcc.typed(mesh=mesh_of(n), in_layouts=layouts)(f).schedule(*avals)


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


@pytest.mark.parametrize("shape", [(4, 6), (7, 300, 11)], ids=["small", "large"])
@pytest.mark.parametrize("name", PERMUTATIONS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_permutation_gives_the_bits_of_the_unfused_program(
    n: int, name: str, shape: tuple[int, ...]
) -> None:
    pairs = PERMUTATIONS[name]
    key = jax.random.key(int(np.random.default_rng().integers(1 << 30)))
    s = schedule_of(
        sent_by(pairs),
        n,
        f32(*shape),
        f32(*shape),
        key,
        f32(),
        layouts=(Local, Local, Replicated, Local),
    )
    s = s.fuse("work", "sent", "kept", name="handed")
    rng = np.random.default_rng()
    y, r = (rng.normal(size=(n, *shape)).astype(np.float32) for _ in range(2))
    rate = rng.normal(size=n).astype(np.float32)
    run = s.compile("host")
    assert run.backend == "host" and "collective_permute" not in run.lower().as_text()
    sent, kept = run(y, r, key, rate)
    plain_sent, plain_kept = s.compile("xla")(y, r, key, rate)
    assert np.asarray(sent).tobytes() == np.asarray(plain_sent).tobytes()
    assert np.asarray(kept).tobytes() == np.asarray(plain_kept).tobytes()
    np.testing.assert_array_equal(sent, received(2 * np.asarray(kept), pairs(n)))


def test_several_results_of_different_shapes_and_dtypes_are_one_call() -> None:
    def f(a: Any, b: Any, c: Any) -> Any:
        pairs = rotated(lax.axis_size("tp"))
        send = lambda x, name: jaxcc.name(lax.ppermute(x, "tp", pairs), name)  # noqa: E731
        return send(a * 2, "a2"), send(b, "b1"), send(c + 1, "c1"), send(jax.nn.softmax(a), "rows")

    avals = (
        f32(5, 8),
        jax.ShapeDtypeStruct((3,), jnp.bfloat16),
        jax.ShapeDtypeStruct((), jnp.int32),
    )
    s = schedule_of(f, 3, *avals).fuse("a2", "b1", "c1", "rows", name="all")
    rng = np.random.default_rng()
    a = rng.normal(size=(3, 5, 8)).astype(np.float32)
    b = np.asarray(jnp.asarray(rng.normal(size=(3, 3)), jnp.bfloat16))
    c = rng.integers(1, 99, 3).astype(np.int32)
    run = s.compile("host")
    assert run.lower().as_text().count("jaxcc_fused") == 1
    pairs = rotated(3)
    for got, wanted in zip(run(a, b, c)[:3], (2 * a, b, c + 1), strict=True):
        np.testing.assert_array_equal(got, received(wanted, pairs))
    e = np.exp(a.astype(np.float64))
    np.testing.assert_allclose(run(a, b, c)[3], received(e / e.sum(-1, keepdims=True), pairs), 1e-5)


def stages(pp: int, tp: int) -> Any:
    return jax.make_mesh(
        (pp, tp), ("pp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[: pp * tp]
    )


def boundary(y: Any, bias: Any, residual: Any, key: Any) -> Any:
    """CoCoNet's hand-over of GPT-3: reduce, bias, dropout, residual, to the next group of ranks."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    keep = jax.random.bernoulli(key, 0.5, total.shape)
    work = jaxcc.name(jnp.where(keep, (total + bias) * 2, 0) + residual, "work")
    return jaxcc.name(lax.ppermute(work, "pp", rotated(lax.axis_size("pp"))), "sent")


def boundary_schedule(pp: int, tp: int) -> Schedule:
    layouts = (on(pp=Local, tp=Local), Replicated, on(pp=Local), Replicated)
    typed = jaxcc.typed(mesh=stages(pp, tp), in_layouts=layouts)(boundary)
    return typed.schedule(f32(8, 6), f32(6), f32(8, 6), jax.random.key(0))


FUSIONS: dict[str, Callable[[Schedule], Schedule]] = {
    "c-p2p": lambda s: _sliced(s, "sent").fuse("work", "sent", name="fused"),
    "rs-c-p2p": lambda s: _sliced(s, "sent").fuse("total.scatter", ..., "sent", name="fused"),
    "rs-c-p2p-ag": lambda s: _sliced(s, "sent").fuse(
        "total.scatter", ..., "total.gather", name="fused"
    ),
    "rs-c-ag-p2p": lambda s: _sliced(s, "work").fuse("total.scatter", ..., "sent", name="fused"),
    "ar-c-p2p": lambda s: s.fuse("total", ..., "sent", name="fused"),
    "overlapped": lambda s: (
        _sliced(s, "sent")
        .fuse("work", "sent", name="fused")
        .overlap("total.scatter", "fused", "total.gather", chunks=2, dim=1)
    ),
}


def _sliced(s: Schedule, after: str) -> Schedule:
    return s.split("total").reorder("total.gather", after=after)


@pytest.mark.parametrize("name", FUSIONS)
@pytest.mark.parametrize(("pp", "tp"), [(2, 2), (3, 1), (1, 4), (4, 1)])
def test_a_pipeline_s_hand_over(name: str, pp: int, tp: int) -> None:
    s = boundary_schedule(pp, tp)
    fused = FUSIONS[name](s)
    rng = np.random.default_rng()
    y = rng.integers(-8, 9, (pp, tp, 8, 6)).astype(np.float32)
    bias, residual = (rng.normal(size=t).astype(np.float32) for t in ((6,), (pp, 8, 6)))
    key = jax.random.key(int(rng.integers(1 << 30)))
    run = fused.compile("host")
    kernels = run.lower().as_text().count("jaxcc_fused")
    assert kernels == (2 if name == "overlapped" else 1)
    sent = run(y, bias, residual, key)
    # Sums of small integers are the same in any order.
    assert (
        np.asarray(sent).tobytes() == np.asarray(s.compile("xla")(y, bias, residual, key)).tobytes()
    )
    keep = np.asarray(jax.random.bernoulli(key, 0.5, (8, 6)))
    work = np.where(keep, (y.astype(np.float64).sum(1) + bias) * 2, 0) + residual
    close(sent, received(work, rotated(pp)))


def test_golden_text(golden: Callable[[str, str], None]) -> None:
    """Without dropout, which versions of JAX write differently."""

    def f(y: Any, bias: Any) -> Any:
        work = jaxcc.name(jnp.tanh(jaxcc.name(lax.psum(y, "tp"), "total") + bias), "work")
        return jaxcc.name(lax.ppermute(work, "pp", rotated(lax.axis_size("pp"))), "sent")

    layouts = (on(pp=Local, tp=Local), Replicated)
    s = jaxcc.typed(mesh=stages(2, 2), in_layouts=layouts)(f).schedule(f32(8, 6), f32(6))
    golden("boundary", FUSIONS["rs-c-p2p-ag"](s).text(lines=False))


def test_the_gradient_is_that_of_the_unfused_program() -> None:
    s = boundary_schedule(2, 2)
    rng = np.random.default_rng()
    y = rng.normal(size=(2, 2, 8, 6)).astype(np.float32)
    bias, residual = (rng.normal(size=t).astype(np.float32) for t in ((6,), (2, 8, 6)))
    key = jax.random.key(3)
    grads = [
        jax.grad(lambda y, f=f: jnp.sum(f(y, bias, residual, key) ** 2))(y)
        for f in (FUSIONS["rs-c-p2p-ag"](s).compile("host"), s.compile("xla"))
    ]
    close(grads[0], np.asarray(grads[1], np.float64))


def test_a_send_over_two_axes() -> None:
    both = on(pp=Local, tp=Local)
    typed = jaxcc.typed(mesh=stages(2, 2), in_layouts=both)(
        lambda y: jaxcc.name(
            lax.ppermute(y * 2, ("pp", "tp"), rotated(lax.axis_size(("pp", "tp")))), "sent"
        )
    )
    s = typed.schedule(f32(5)).fuse("sent", name="fused")
    y = np.random.default_rng().normal(size=(2, 2, 5)).astype(np.float32)
    wanted = received(2 * y.reshape(4, 5), rotated(4)).reshape(2, 2, 5)
    np.testing.assert_array_equal(s.compile("host")(y), wanted)


def test_a_program_that_runs_its_own_inputs_in_place() -> None:
    """A donated operand may take what stays, never what is received."""
    pairs = PERMUTATIONS["to the next"]
    shape = (64, 1000)
    s = schedule_of(
        sent_by(pairs),
        4,
        f32(*shape),
        f32(*shape),
        jax.random.key(0),
        f32(),
        layouts=(Local, Local, Replicated, Local),
    )
    s = s.fuse("work", "sent", "kept", name="handed")
    run, plain = s.compile("host", donate=["y", "r"]), s.compile("xla")
    rng = np.random.default_rng()
    for _ in range(5):
        y, r = (rng.normal(size=(4, *shape)).astype(np.float32) for _ in range(2))
        key, rate = jax.random.key(int(rng.integers(99))), rng.normal(size=4).astype(np.float32)
        wanted = plain(y, r, key, rate)
        for got, want in zip(run(y, r, key, rate), wanted, strict=True):
            assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def refused(code: str) -> Any:
    return pytest.raises(ScheduleError, match=f"(?s)SCHEDULE_{code}")


def test_sends_that_a_kernel_does_not_hold() -> None:
    def f(y: Any, w: Any) -> Any:
        pp = rotated(lax.axis_size("pp"))

        def send(x: Any, name: str, pairs: Any = pp) -> Any:
            return jaxcc.name(lax.ppermute(x, "pp", pairs), name)

        x = jaxcc.name(lax.psum(y, "tp"), "x")
        one = send(jaxcc.name(x * 2, "twice"), "one")
        two = send(x, "two", PERMUTATIONS["to itself"](lax.axis_size("pp")))
        read, all_ = jaxcc.name(one + 1, "read"), jaxcc.name(jnp.sum(w), "all")
        return one, two, send(one, "again"), send(w, "apart"), read, all_

    both = on(pp=Local, tp=Local)
    s = jaxcc.typed(mesh=stages(2, 2), in_layouts=both)(f).schedule(f32(4, 6), f32(4, 6))
    with refused("TWO_GROUPS.*'one' and 'two': they do not send to the same ranks"):
        s.fuse("x", "twice", "one", "two", name="f")
    with refused("WRONG_OPERATION.*'one' is received and then read.*leave 'again' out"):
        s.fuse("one", "again", name="f")
    with refused("WRONG_OPERATION.*'one' is received and then read.*leave 'read' out"):
        s.fuse("one", "read", name="f")
    with refused("TWO_GROUPS.*'apart'.*nothing to do with the group's collectives"):
        s.fuse("x", "twice", "one", "apart", name="f")
    with refused("NOT_POINTWISE.*'all' .reduce_sum. reduces"):
        s.fuse("all", "apart", name="f")


def test_cuda_has_no_kernels_that_send() -> None:
    s = boundary_schedule(2, 2).fuse("total", ..., "sent", name="fused")
    (op,) = (op for op in s.program.ops if op.body)
    made = plan(s.program, op, s.layouts)
    with pytest.raises(CodegenError, match="CODEGEN_PLATFORM.*sends has no CUDA form"):
        _ = Source(tuple(one.kernel for one in made.tensors)).cuda_text


ABSENT = """
import jax, numpy as np, jaxcc
from jax import lax
mesh = jax.make_mesh((2,), ("tp",), axis_types=(jax.sharding.AxisType.Auto,))
def swap(y):
    n = lax.axis_size("tp")
    return jaxcc.name(lax.ppermute(y * 2, "tp", [(i, n - 1 - i) for i in range(n)]), "sent")
typed = jaxcc.typed(mesh=mesh, in_layouts=jaxcc.Local)(swap)
s = typed.schedule(jax.ShapeDtypeStruct((9000,), np.float32)).fuse("sent", name="handed")
run = s.compile("host")
def lone(y):
    return lax.cond(lax.axis_index("tp") == 0, run.local, lambda y: y, y)
f = jax.shard_map(lone, mesh=mesh, in_specs=jax.P("tp"), out_specs=jax.P("tp"), check_vma=False)
try:
    jax.block_until_ready(jax.jit(f)(np.ones(18000, np.float32)))
except jax.errors.JaxRuntimeError as error:
    print(error)
print(np.asarray(run(np.ones((2, 9000), np.float32))).sum())
"""


def test_a_rank_that_does_not_come_is_named_and_nothing_hangs(tmp_path: Path) -> None:
    script = tmp_path / "absent.py"
    script.write_text(ABSENT)
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAXCC_TIMEOUT_S": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "[BACKEND_TIMEOUT] handed (collective 1 in jit(lone)): rank 1 (device 1)" in done.stdout
    assert done.stdout.endswith("36000.0\n")
