"""One LAMB step on the parameters of BERT-large (334 M): time, and the memory at its peak.

The ranks' gradients are reduced, the update is computed on slices and the new parameters are
gathered by generated kernels; the moments m and v exist once, sliced over the ranks.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/bert_lamb.py [--hidden 1024]
"""

import argparse
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcc

type Shapes = dict[str, tuple[int, ...]]

GIB = 2**30


def shapes(hidden: int = 1024, layers: int = 24, vocabulary: int = 30522) -> Shapes:
    """BERT's parameters, with feed-forward layers of 4 x hidden, 512 positions and both heads; the
    decoder of the masked language model shares the word embeddings.
    """
    found: Shapes = {
        "embeddings.word": (vocabulary, hidden),
        "embeddings.position": (512, hidden),
        "embeddings.token_type": (2, hidden),
        **_norm("embeddings.norm", hidden),
    }
    for n in range(layers):
        for part in ("query", "key", "value", "output"):
            found |= _dense(f"layer{n}.attention.{part}", hidden, hidden)
        found |= _norm(f"layer{n}.attention.norm", hidden)
        found |= _dense(f"layer{n}.up", hidden, 4 * hidden)
        found |= _dense(f"layer{n}.down", 4 * hidden, hidden)
        found |= _norm(f"layer{n}.norm", hidden)
    found |= _dense("pooler", hidden, hidden)
    found |= _dense("mlm.dense", hidden, hidden) | _norm("mlm.norm", hidden)
    found |= {"mlm.bias": (vocabulary,)}
    return found | _dense("next_sentence", hidden, 2)


def _dense(name: str, rows: int, columns: int) -> Shapes:
    return {f"{name}.kernel": (rows, columns), f"{name}.bias": (columns,)}


def _norm(name: str, size: int) -> Shapes:
    return {f"{name}.scale": (size,), f"{name}.bias": (size,)}


def memory(field: str) -> int:
    """A line of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> None:
    """Lets the process's high-water mark begin again at what it uses now."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    given = shapes(options.hidden, options.layers)
    elements = sum(map(math.prod, given.values()))
    ranks = jax.device_count()
    mesh = jax.make_mesh((ranks,), ("dp",), axis_types=(AxisType.Auto,))
    lamb = jaxcc.optim.lamb(1e-3, weight_decay=0.01, axis_name="dp", mesh=mesh)
    print(f"{elements:,} parameters in {len(given)} arrays, {ranks} ranks, f32")

    @partial(jax.jit, out_shardings=NamedSharding(mesh, P()))
    def parameters() -> Any:
        return {name: jnp.full(shape, 0.02, jnp.float32) for name, shape in given.items()}

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=(), out_specs=P("dp"))
    def gradients() -> Any:
        """Each rank's own, with a leading dim of the group's size."""
        first = jax.lax.axis_index("dp").astype(jnp.float32)
        return {
            name: jnp.broadcast_to((first + n % 7 - 3) * 1e-3, (1, *shape))
            for n, (name, shape) in enumerate(given.items())
        }

    def step(params: Any, state: Any, grads: Any) -> Any:
        mine = jax.tree.map(lambda g: g[0], grads)
        return lamb.step(mine, state, params)

    specs = lamb.specs()
    init = jax.jit(jax.shard_map(lamb.init, mesh=mesh, in_specs=(P(),), out_specs=specs))
    train = jax.jit(
        jax.shard_map(step, mesh=mesh, in_specs=(P(), specs, P("dp")), out_specs=(P(), specs)),
        donate_argnums=(0, 1),
    )

    params, grads = parameters(), gradients()
    state = init(params)
    jax.block_until_ready((params, grads, state))
    compiled = train.lower(params, state, grads).compile()
    before = memory("VmRSS")
    reset_peak()
    for number in range(options.steps):
        start = time.perf_counter()
        params, state = jax.block_until_ready(compiled(params, state, grads))
        print(f"step {number}: {time.perf_counter() - start:.2f} s")
    peak = memory("VmHWM")
    one = 4 * elements
    arrays = one * (2 * ranks + 2)
    print(f"p and g on each of {ranks} ranks, m and v once: {arrays / GIB:.2f} GiB")
    print(f"m and v on each rank would add {2 * (ranks - 1) * one / GIB:.2f} GiB")
    print(f"resident before the steps {before / GIB:.2f} GiB, at their peak {peak / GIB:.2f} GiB")
    print(f"the steps' own memory: {(peak - before) / GIB:.2f} GiB, {(peak - before) / one:.2f} p")


if __name__ == "__main__":
    main()
