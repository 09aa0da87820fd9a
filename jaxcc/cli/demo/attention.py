"""The tail of a Megatron self-attention layer: product, all-reduce, bias, GeLU, residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

import jaxcc
from jaxcc import Partial, Replicated, Sliced
from jaxcc.cli.demo.measure import Carried, Comparison, compare
from jaxcc.cli.demo.ranks import group, largest_difference, place
from jaxcc.cli.demo.settings import Settings

AXIS = "tp"
ALL = PartitionSpec()


def bias_before_sum(x: jax.Array, w: jax.Array, b: jax.Array, r: jax.Array) -> jax.Array:
    """The mistake: every rank adds the bias, so that the sum over ranks holds it n times."""
    total = jax.lax.psum(x @ w + b, AXIS)
    return jax.nn.gelu(total) + r


def tail(x: jax.Array, w: jax.Array, b: jax.Array, r: jax.Array) -> jax.Array:
    """The tail, per rank: x f32[batch, sequence, hidden / n], w f32[hidden / n, hidden]."""
    return epilogue(x @ w, b, r)


def epilogue(y: jax.Array, b: jax.Array, r: jax.Array) -> jax.Array:
    """What follows the product: y, each rank's term, and r are f32[batch, sequence, hidden]."""
    total = jaxcc.name(jax.lax.psum(y, AXIS), "total")
    return jaxcc.name(jax.nn.gelu(total + b) + r, "out")


TAIL_LAYOUTS = (Sliced(2), Sliced(0), Replicated, Replicated)
EPILOGUE_LAYOUTS = (Partial(), Replicated, Replicated)


@dataclass(frozen=True)
class Attention:
    """What this part found.

    Attributes:
      shape: of the result.
      fused: whether the kernel was generated and ran.
      error: the message for `bias_before_sum`.
      source: the checked program as it was written.
      schedule: the program after the steps.
      epilogue, whole: times without and with the product.
      differences: largest difference of the scheduled tail from each oracle.
    """

    shape: tuple[int, ...]
    fused: bool
    error: str
    source: str
    schedule: str
    epilogue: Comparison
    whole: Comparison
    differences: dict[str, float]


def fuse(schedule: jaxcc.Schedule) -> jaxcc.Schedule:
    """One kernel for the all-reduce and what follows it, each rank doing its slice of that."""
    moved = schedule.split("total").reorder("total.gather", after="out")
    return moved.fuse("total.scatter", ..., "total.gather", name="fused")


def run(settings: Settings, tell: Callable[[str], None]) -> Attention:
    """Checks, schedules, runs and times the tail; `tell` hears what it is about to do."""
    mesh = group(settings.ranks, AXIS)
    typed = partial(jaxcc.typed, mesh=mesh, out_layouts=Replicated)
    inputs = _inputs(settings)
    specs = (PartitionSpec(None, None, AXIS), PartitionSpec(AXIS), ALL, ALL)
    x, w, b, r = (place(one, mesh, spec) for one, spec in zip(inputs, specs, strict=True))

    tell("checking")
    error = _refusal(typed(in_layouts=TAIL_LAYOUTS)(bias_before_sum), x, w, b, r)
    checked = typed(in_layouts=TAIL_LAYOUTS)(tail)
    source = checked.schedule(x, w, b, r)
    schedule = fuse(source)

    tell("comparing with one rank and with NumPy")
    scheduled = schedule.compile()
    result = scheduled(x, w, b, r)
    differences = {
        "one rank": largest_difference(result, checked.reference(x, w, b, r)),
        "NumPy f64": largest_difference(result, _in_f64(*inputs)),
    }

    tell("timing")
    terms = place(_terms(settings.ranks, *inputs[:2]), mesh, PartitionSpec(AXIS))
    after = typed(in_layouts=EPILOGUE_LAYOUTS)(epilogue)
    whole_y = jax.ShapeDtypeStruct(r.shape, r.dtype)

    def unstacked(y: jax.Array, b: jax.Array, r: jax.Array) -> jax.Array:
        return epilogue(y[0], b, r)

    def compared(
        schedule: jaxcc.Schedule, f: Callable[..., jax.Array], specs: tuple[Any, ...], *args: Any
    ) -> Comparison:
        """Both donate the residual, and their result is the next call's."""
        ours = schedule.compile(donate=["r"])
        per_rank = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=ALL)
        xla = jax.jit(per_rank, donate_argnums=len(args))
        return compare(
            Carried(lambda r: ours(*args, r), place(inputs[-1], mesh, ALL)),
            Carried(lambda r: xla(*args, r), place(inputs[-1], mesh, ALL)),
            rounds=settings.rounds,
        )

    return Attention(
        r.shape,
        scheduled.backend == "host",
        error,
        str(source),
        str(schedule),
        compared(
            fuse(after.schedule(whole_y, b, r)),
            unstacked,
            (PartitionSpec(AXIS), ALL, ALL),
            terms,
            b,
        ),
        compared(schedule, tail, specs, x, w, b),
        differences,
    )


def _refusal(wrong: Any, *args: jax.Array) -> str:
    """The message that a user of the wrong program sees."""
    try:
        wrong(*args)
    except jaxcc.LayoutError as error:
        return str(error)
    raise AssertionError("the checker accepted a bias added before the sum")


def _inputs(settings: Settings) -> tuple[np.ndarray, ...]:
    """x, w, b and r, whole; the hidden size is rounded up so that the ranks divide it."""
    batch, sequence, hidden = settings.tail
    hidden = -(-hidden // settings.ranks) * settings.ranks
    random = np.random.default_rng(0)
    shapes = (
        (batch, sequence, hidden),
        (hidden, hidden),
        (hidden,),
        (batch, sequence, hidden),
    )
    x, w, b, r = (random.standard_normal(shape, dtype=np.float32) for shape in shapes)
    return x, w * np.float32(hidden**-0.5), b, r


def _terms(ranks: int, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Each rank's x @ w: f32[ranks, batch, sequence, hidden]."""
    parts = zip(np.split(x, ranks, axis=2), np.split(w, ranks), strict=True)
    return np.stack([own_x @ own_w for own_x, own_w in parts])


def _in_f64(*inputs: np.ndarray) -> np.ndarray:
    x, w, b, r = (one.astype(np.float64) for one in inputs)
    h = x @ w + b
    return 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3))) + r
