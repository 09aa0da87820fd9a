"""All ranks on one device compute what they compute on devices of their own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, PartitionSpec

from jaxcc.layout import Replicated, Sliced, on, run_on_ranks

SIZES = {"dp": 2, "tp": 2}
AXES = tuple(SIZES)


def ring(x: Any, axis: str) -> Any:
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(r, (r + 1) % n) for r in range(n)])


def on_scan(x: Any) -> Any:
    def step(carry: Any, row: Any) -> Any:
        return ring(carry + lax.psum(row, "tp"), "dp"), carry * row

    start = lax.pcast(jnp.zeros(x.shape[1:]), AXES, to="varying")
    return lax.scan(step, start, x, reverse=True)


def on_while(x: Any) -> Any:
    # Each rank leaves the loop when it is through.
    stop = 2 + lax.axis_index("dp")
    return lax.while_loop(lambda s: s[0] < stop, lambda s: (s[0] + 1, 2 * s[1]), (0 * stop, x))[1]


def on_loss(w: Any, x: Any) -> Any:
    return lax.pmean((jnp.tanh(x @ w) ** 2).sum(), AXES)


PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "psum": lambda x, w: lax.psum(x, "tp"),
    "psum of two axes": lambda x, w: lax.psum((x, 2 * x), AXES),
    "pmean": lambda x, w: lax.pmean(x, "dp"),
    "pmax": lambda x, w: lax.pmax(x, AXES),
    "pmin": lambda x, w: lax.pmin(x, "tp"),
    "all_gather": lambda x, w: lax.all_gather(x, "tp", axis=1),
    "all_gather, tiled": lambda x, w: lax.all_gather(x, AXES, tiled=True),
    "all_gather, invariant": lambda x, w: lax.all_gather(x, "dp", to="invarying"),
    "psum_scatter": lambda x, w: lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True),
    "psum_scatter of two axes": lambda x, w: lax.psum_scatter(x.reshape(4, 2), AXES),
    "all_to_all of two axes": lambda x, w: lax.all_to_all(x, AXES, 1, 0, tiled=True),
    "all_to_all, untiled": lambda x, w: lax.all_to_all(x, "tp", 0, 1),
    "groups": lambda x, w: lax.all_gather(x, AXES, axis_index_groups=[[0, 3], [2, 1]]),
    "psum of groups": lambda x, w: lax.psum(x, AXES, axis_index_groups=[[0, 3], [2, 1]]),
    "all_to_all": lambda x, w: lax.all_to_all(x, "dp", 0, 1, tiled=True),
    "ppermute": lambda x, w: ring(x, "tp"),
    "a shift that drops one": lambda x, w: lax.ppermute(x, "tp", [(0, 1)]),
    "axis_index": lambda x, w: x + lax.axis_index(AXES),
    "dynamic_slice": lambda x, w: lax.dynamic_slice_in_dim(w, lax.axis_index("tp") * 2, 2),
    "scan": lambda x, w: on_scan(x),
    "while": lambda x, w: on_while(x),
    "cond": lambda x, w: lax.cond(x.sum() > 0, lambda: jnp.sin(x), lambda: x * 3),
    "fori_loop": lambda x, w: lax.fori_loop(0, 3, lambda i, y: ring(y, "tp") + i, x),
    "switch": lambda x, w: lax.switch(
        lax.axis_index("tp"), [lambda v: v + 1, lambda v: v * lax.axis_index("dp")], x
    ),
    "remat": lambda x, w: jax.checkpoint(lambda y: jnp.sin(lax.psum(y, "tp")))(x),
    "softmax in jit": lambda x, w: jax.jit(jax.nn.softmax)(x),
    "grad": lambda x, w: jax.grad(on_loss)(w, x),
    "grad of a scan": lambda x, w: jax.grad(lambda y: lax.pmean(on_scan(y)[1].sum(), AXES))(x),
    "vmap": lambda x, w: jax.vmap(lambda row: lax.psum(row, "dp"))(x),
    "sort and gather": lambda x, w: w[jnp.argsort(x[:, 0]) % 4],
    "random": lambda x, w: jax.random.normal(
        jax.random.fold_in(jax.random.key(0), lax.axis_index(AXES)), (3,)
    ),
}


# What JAX itself takes under one setting of the flag only.
ONLY: dict[str, bool] = {
    "all_gather, invariant": True,
    "scan": True,
    "grad of a scan": True,
    "psum of groups": False,
}


@pytest.mark.parametrize(
    ("name", "check_vma"),
    [(name, flag) for name in PROGRAMS for flag in (True, False) if ONLY.get(name, flag) == flag],
)
def test_a_program_on_one_device(name: str, check_vma: bool) -> None:
    program = PROGRAMS[name]
    rng = np.random.default_rng()
    x = rng.standard_normal((8, 4), np.float32)
    w = rng.standard_normal((4, 4), np.float32)

    def stacked(x: Any, w: Any) -> Any:
        def varying(y: Any) -> Any:
            y = jnp.asarray(y)[None, None]
            missing = tuple(a for a in AXES if a not in jax.typeof(y).manual_axis_type.varying)
            return lax.pcast(y, missing, to="varying") if check_vma and missing else y

        return [varying(y) for y in jax.tree.leaves(program(x, w))]

    mesh = Mesh(np.reshape(jax.devices()[:4], (2, 2)), AXES, axis_types=(AxisType.Auto,) * 2)
    specs = (PartitionSpec(AXES), PartitionSpec(None, None))
    ranks = jax.shard_map(
        stacked, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(*AXES), check_vma=check_vma
    )
    layouts = (on(dp=Sliced(0), tp=Sliced(0)), on(dp=Replicated, tp=Replicated))
    found = run_on_ranks(program, (x, w), layouts, SIZES, check_vma=check_vma)
    expected = jax.jit(ranks)(x, w)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
