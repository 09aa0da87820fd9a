"""The tail of a Megatron self-attention layer: product, all-reduce, bias, GeLU, residual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import jaxcc
from jaxcc import Partial, Replicated, Sliced
from jaxcc.cli.demo.measure import Carried, Comparison, compare
from jaxcc.cli.demo.ranks import group, largest_difference, place
from jaxcc.cli.demo.settings import Settings

AXIS = "tp"


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


ALL = PartitionSpec()
TAIL_LAYOUTS = (Sliced(2), Sliced(0), Replicated, Replicated)
TAIL_SPECS = (PartitionSpec(None, None, AXIS), PartitionSpec(AXIS), ALL, ALL)
EPILOGUE_LAYOUTS = (Partial(), Replicated, Replicated)
EPILOGUE_SPECS = (PartitionSpec(AXIS), ALL, ALL)


@dataclass(frozen=True)
class Measured:
    """One scheduled program: its times, and its largest difference from each oracle."""

    times: Comparison
    differences: dict[str, float]


@dataclass(frozen=True)
class Attention:
    """What this part found.

    Attributes:
      bytes: size of the result.
      fused: whether the kernel was generated and ran.
      error: the message for `bias_before_sum`.
      source: the checked program as it was written.
      schedule: the program after the steps.
      epilogue, whole: without and with the product.
    """

    bytes: int
    fused: bool
    error: str
    source: str
    schedule: str
    epilogue: Measured
    whole: Measured


def fuse(schedule: jaxcc.Schedule) -> jaxcc.Schedule:
    """One kernel for the all-reduce and what follows it, each rank doing its slice of that."""
    moved = schedule.split("total").reorder("total.gather", after="out")
    return moved.fuse("total.scatter", ..., "total.gather", name="fused")


def run(settings: Settings, tell: Callable[[str], None]) -> Attention:
    """Checks, schedules, runs and times the tail; `tell` hears what it is about to do."""
    mesh = group(settings.ranks, AXIS)
    typed = partial(jaxcc.typed, mesh=mesh, out_layouts=Replicated)
    inputs = _inputs(settings)
    x, w, b, r = (place(one, mesh, spec) for one, spec in zip(inputs, TAIL_SPECS, strict=True))
    y = place(_terms(settings.ranks, *inputs[:2]), mesh, EPILOGUE_SPECS[0])

    tell("checking")
    error = _refusal(typed(in_layouts=TAIL_LAYOUTS)(bias_before_sum), x, w, b, r)
    whole = typed(in_layouts=TAIL_LAYOUTS)(tail)
    after = typed(in_layouts=EPILOGUE_LAYOUTS)(epilogue)
    source = whole.schedule(x, w, b, r)
    schedule = fuse(source)
    after_schedule = fuse(after.schedule(jax.ShapeDtypeStruct(r.shape, r.dtype), b, r))

    def measured(
        schedule: jaxcc.Schedule, program: Any, xla: Callable[..., jax.Array], *args: jax.Array
    ) -> Measured:
        """All donate the residual, which is the last of `args`; each result is the next one."""
        tell(f"comparing {program.__name__} with one rank and with NumPy")
        result = schedule.compile()(*args)
        differences = {
            "one rank": largest_difference(result, program.reference(*args)),
            "NumPy f64": largest_difference(result, in_f64),
        }
        tell(f"timing {program.__name__}")
        ours = schedule.compile(donate=["r"])
        times = compare(
            Carried(lambda r: ours(*args[:-1], r), place(inputs[-1], mesh, ALL)),
            Carried(lambda r: xla(*args[:-1], r), place(inputs[-1], mesh, ALL)),
            rounds=settings.rounds,
        )
        return Measured(times, differences)

    in_f64 = _in_f64(*inputs)
    return Attention(
        r.nbytes,
        schedule.compile().backend == "host",
        error,
        str(source),
        str(schedule),
        measured(after_schedule, after, _in_xla(_stacked_epilogue, mesh, EPILOGUE_SPECS), y, b, r),
        measured(schedule, whole, _in_xla(tail, mesh, TAIL_SPECS), x, w, b, r),
    )


def _in_xla(f: Callable[..., jax.Array], mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Any:
    """The same program in plain jitted shard_map, its last argument donated."""
    per_rank = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=ALL)
    return jax.jit(per_rank, donate_argnums=len(specs) - 1)


def _stacked_epilogue(y: jax.Array, b: jax.Array, r: jax.Array) -> jax.Array:
    """`epilogue` for y with a leading dim, of which a rank holds one entry."""
    return epilogue(y[0], b, r)


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
