"""The tail of a Megatron self-attention layer: checked, scheduled and fused.

XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/attention_tail.py
"""

import jax
import numpy as np
from jax.sharding import AxisType

import jaxcc
from jaxcc import Replicated, Sliced

mesh = jax.make_mesh((2,), ("tp",), axis_types=(AxisType.Auto,))


@jaxcc.typed(
    mesh=mesh,
    in_layouts=(Sliced(2), Sliced(0), Replicated, Replicated),
    out_layouts=Replicated,
)
def tail(x: jax.Array, w: jax.Array, b: jax.Array, r: jax.Array) -> jax.Array:
    """Per rank: x is f32[batch, sequence, hidden / n] and w is f32[hidden / n, hidden]."""
    total = jaxcc.name(jax.lax.psum(x @ w, "tp"), "total")
    return jaxcc.name(jax.nn.gelu(total + b) + r, "out")


def main() -> None:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((4, 128, 256), (256, 256), (256,), (4, 128, 256))
    args = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]

    schedule = tail.schedule(*args)
    schedule = schedule.split("total").reorder("total.gather", after="out")
    schedule = schedule.fuse("total.scatter", ..., "total.gather", name="fused")
    print(schedule)

    result = np.asarray(schedule.compile()(*args))
    reference = np.asarray(tail.reference(*args))
    print("largest difference from one rank:", np.abs(result - reference).max())


if __name__ == "__main__":
    main()
