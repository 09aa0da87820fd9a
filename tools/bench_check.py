"""How long a check takes, in traces: a GPT of Megatron layers, unrolled, scanned, and its gradient.

`python tools/bench_check.py --layers 96` prints, for each program, the time of one trace on the
mesh, of the walk, and of the whole check in a warm process: medians and quartiles of several runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import Replicated, Sliced, check, trace, walk
from jaxcc.layout._layouts import flatten_layouts

WIDTH, HEADS, BATCH, LENGTH = 64, 8, 2, 16
LAYOUTS = {
    "norm1": Replicated, "qkv": Sliced(2), "out": Sliced(0), "norm2": Replicated,
    "up": Sliced(1), "bias_up": Sliced(0), "down": Sliced(0), "bias_down": Replicated,
}  # fmt: skip
SHAPES = {
    "norm1": (WIDTH,), "qkv": (3, WIDTH, HEADS, WIDTH // HEADS),
    "out": (HEADS, WIDTH // HEADS, WIDTH), "norm2": (WIDTH,),
    "up": (WIDTH, 4 * WIDTH), "bias_up": (4 * WIDTH,),
    "down": (4 * WIDTH, WIDTH), "bias_down": (WIDTH,),
}  # fmt: skip


def norm(x: Any, gain: Any) -> Any:
    """RMS norm."""
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def layer(x: Any, p: Any) -> Any:
    """A Megatron layer: heads and hidden units sliced over tp."""
    q, k, v = jnp.einsum("bld,cdhk->cblhk", norm(x, p["norm1"]), p["qkv"])
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / 8.0
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    heads = jnp.einsum("bhlm,bmhk->blhk", weights, v)
    x = x + lax.psum(jnp.einsum("blhk,hkd->bld", heads, p["out"]), "tp")
    up = jax.nn.gelu(norm(x, p["norm2"]) @ p["up"] + p["bias_up"])
    return x + lax.psum(up @ p["down"], "tp") + p["bias_down"]


def unrolled(x: Any, layers: Any) -> Any:
    """The layers one after the other."""
    for p in layers:
        x = layer(x, p)
    return x


def scanned(x: Any, stacked: Any) -> Any:
    """The layers as one scan."""
    return lax.scan(lambda x, p: (layer(x, p), None), x, stacked)[0]


def gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient for the parameters of the mean square of a program's result."""
    return lambda x, p: jax.grad(lambda p: jnp.mean(f(x, p) ** 2))(p)


def timed(function: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each of several runs, after one that is not counted."""
    function()
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def shown(times: list[float]) -> str:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return f"{middle:8.1f} [{low:.1f}-{high:.1f}] ms"


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.float32)
    one = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in SHAPES.items()}
    many = [dict(one) for _ in range(options.layers)]
    stack = {n: jax.ShapeDtypeStruct((options.layers, *s), jnp.float32) for n, s in SHAPES.items()}
    deeper = {n: Sliced(k.dim + 1) if isinstance(k, Sliced) else k for n, k in LAYOUTS.items()}
    each = (Replicated, [LAYOUTS] * options.layers)
    programs = [
        ("forward, unrolled", unrolled, (x, many), each),
        ("gradient, unrolled", gradient(unrolled), (x, many), each),
        ("forward, scan", scanned, (x, stack), (Replicated, deeper)),
        ("gradient, scan", gradient(scanned), (x, stack), (Replicated, deeper)),
    ]
    for name, f, args, ins in programs:
        print(f"{name:20s}{measured(f, args, ins, options.repeats)}", flush=True)


def measured(f: Callable[..., Any], args: tuple[Any, ...], ins: Any, repeats: int) -> str:
    """One line of the table."""
    sizes, mesh = {"tp": 2}, AbstractMesh((2,), ("tp",))
    flat = flatten_layouts(ins, args, ("tp",), "in_layouts")
    names = [str(k) for k in range(len(flat))]
    at_n, at_1 = trace(f, args, flat, sizes), trace(f, args, flat, {"tp": 1})
    tracing = timed(lambda: trace(f, args, flat, sizes), repeats)
    walking = timed(lambda: walk(at_n, at_1, flat, names, None), repeats)
    whole = timed(lambda: check(f, *args, mesh=mesh, in_layouts=ins), repeats)
    one = statistics.median(tracing)
    walks, checks = statistics.median(walking) / one, statistics.median(whole) / one
    return (
        f"trace {shown(tracing)}, walk {shown(walking)} = {walks:.2f} traces, "
        f"check {shown(whole)} = {checks:.2f} traces"
    )


if __name__ == "__main__":
    main()
