"""A generated kernel that sends along any permutation, or a part of one, against `lax.ppermute`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxcc.codegen import OutRole, Role, compile_kernel, generate
from jaxcc.runtime import Teams, Tensor, fused_call, groups_of, load_kernel

PAIRS = {
    "pipeline": [(0, 1), (1, 2), (2, 3)],
    "one": [(3, 1)],
    "none": [],
    "mixed": [(2, 2), (0, 3)],
    "ring": [(0, 1), (1, 2), (2, 3), (3, 0)],
}
SHAPES = [(5,), (3, 7), (), (41, 1000)]


def work(x: Any, r: Any) -> Any:
    return x * 2 + r


@pytest.fixture(scope="module")
def kernel() -> str:
    """The key of a kernel that makes `work`, stores it with the rank that receives it, and keeps
    its square."""
    aval = jax.ShapeDtypeStruct((8,), np.float32)
    closed = jax.make_jaxpr(lambda x, r: (work(x, r), work(x, r) ** 2))(aval, aval)
    outputs = [OutRole.SEND, OutRole.SLICE]
    jaxpr = getattr(closed, "jaxpr", closed)
    made = generate(jaxpr, (), [Role.WHOLE] * 2, outputs, shape=None, ranks=1)
    key, path = compile_kernel(made)
    load_kernel(key, str(path))
    return key


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_what_is_received_is_what_ppermute_gives(kernel: str, name: str, check_vma: bool) -> None:
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    to = dict(PAIRS[name])
    teams = Teams(1, tuple(to.get(k, -1) for k in range(4)))
    groups = groups_of(mesh, "x")

    def fused(*given: Any) -> Any:
        tensors = [
            Tensor((x[0], r[0]), (jax.typeof(x[0]),) * 2, 1, x[0].size)
            for x, r in zip(given[::2], given[1::2], strict=True)
        ]
        made = fused_call(kernel, groups, tensors, op="sends", teams=teams)
        return [(sent[None], kept[None]) for sent, kept in made]

    def plain(*given: Any) -> Any:
        made = [work(x, r) for x, r in zip(given[::2], given[1::2], strict=True)]
        return [(lax.ppermute(y, "x", PAIRS[name]), y**2) for y in made]

    rng = np.random.default_rng()
    # Whole numbers, so that it does not matter whether XLA contracts a product and a sum.
    given = [
        jnp.asarray(rng.integers(-99, 99, (4, *shape)), jnp.float32)
        for shape in SHAPES
        for _ in range(2)
    ]
    results = [
        jax.jit(
            jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=check_vma)
        )(*given)
        for f in (fused, plain)
    ]
    for (sent, kept), (wanted, square) in zip(*results, strict=True):
        np.testing.assert_array_equal(sent, wanted)
        np.testing.assert_array_equal(kept, square)
