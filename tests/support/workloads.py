"""The programs that CoCoNet schedules: optimizer steps and the tails of Megatron's layers.

Their layouts and shapes stand beside them; `g` is each rank's own gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import jaxcc
from jaxcc import Local, Replicated, Schedule, Sliced


class Workload(NamedTuple):
    """A per-rank function over the axis `tp`, with the layouts of its arguments.

    Attributes:
      function: per rank.
      in_layouts: of its arguments.
      shapes: of its arguments, whole, of a size.
      state: arguments that may be kept sliced between calls.
    """

    function: Callable[..., Any]
    in_layouts: tuple[Any, ...]
    shapes: Callable[[int], list[tuple[int, ...]]]
    state: tuple[str, ...] = ()

    def schedule(self, mesh: Any, size: int) -> Schedule:
        """The unscheduled program in f32."""
        typed = jaxcc.typed(mesh=mesh, in_layouts=self.in_layouts)(self.function)
        return typed.schedule(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in self.shapes(size)))


def sgd(g, w, lr):
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    return jaxcc.name(w - lr * total, "new_w")


def adam(g, w, m, v, lr):
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    m = jaxcc.name(0.9 * m + 0.1 * total, "new_m")
    v = jaxcc.name(0.999 * v + 0.001 * total * total, "new_v")
    return jaxcc.name(w - lr * m / (jnp.sqrt(v) + 1e-8), "new_w"), m, v


def lamb(g, w, m, v, lr):
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    m = jaxcc.name(0.9 * m + 0.1 * total, "new_m")
    v = jaxcc.name(0.999 * v + 0.001 * total * total, "new_v")
    r = jaxcc.name(m / (jnp.sqrt(v) + 1e-6) + 0.01 * w, "r")
    norms = jnp.sqrt(jnp.sum(w * w)), jnp.sqrt(jnp.sum(r * r))
    return jaxcc.name(w - lr * (norms[0] / norms[1]) * r, "new_w"), m, v


def attention_tail(x, w, b, r):
    total = jaxcc.name(lax.psum(x @ w, "tp"), "total")
    return jaxcc.name(jax.nn.gelu(total + b) + r, "out")


def mlp_tail(x, w1, w2, b, r):
    hidden = jax.nn.gelu(x @ w1)
    total = jaxcc.name(lax.psum(hidden @ w2, "tp"), "total")
    return jaxcc.name(total + b + r, "out")


_STEP = (Local, Replicated, Replicated, Replicated, Replicated)
WORKLOADS = {
    "sgd": Workload(sgd, (Local, Replicated, Replicated), lambda n: [(n,), (n,), ()]),
    "adam": Workload(adam, _STEP, lambda n: [(n,)] * 4 + [()], ("m", "v", "new_m", "new_v")),
    "lamb": Workload(lamb, _STEP, lambda n: [(n,)] * 4 + [()], ("m", "v", "new_m", "new_v")),
    "attention": Workload(
        attention_tail,
        (Sliced(2), Sliced(0), Replicated, Replicated),
        lambda n: [(4, 8, n), (n, n), (n,), (4, 8, n)],
    ),
    "mlp": Workload(
        mlp_tail,
        (Replicated, Sliced(1), Sliced(0), Replicated, Replicated),
        lambda n: [(4, 8, n), (n, 4 * n), (4 * n, n), (n,), (4, 8, n)],
    ),
}
