"""A fused Adam step of many arrays against one of as many bytes: `python tools/bench_tree.py`.

Each side runs steps in a loop inside one program, parameters and state donated, and then one step a
call. What a call costs without any step is an empty program of the same arguments.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import numpy as np
import optax
from bench_optim import ALL, AXIS, EACH, program, spread_text, started
from jax import lax
from jax.sharding import Mesh

import jaxcc
from jaxcc.cli.demo.measure import Carried, compare
from jaxcc.cli.demo.ranks import group, place

_SIZE = 64 << 18
_LAYERS, _WIDTH = 16, 256


def transformer() -> list[int]:
    """Sizes of 200 arrays: 12 of each layer, embeddings, norms and heads; the tokens' takes what is
    left of 64 MiB.
    """
    d = _WIDTH
    layer = [d, d, 3 * d * d, 3 * d, d * d, d, d, d, 4 * d * d, 4 * d, 4 * d * d, d]
    rest = [512 * d, 2 * d, d, d, d * d, d, 128]
    return [_SIZE - sum(rest) - _LAYERS * sum(layer), *rest, *(_LAYERS * layer)]


TREES: dict[str, list[int]] = {
    "transformer": transformer(),
    "200 equal": [_SIZE // 200] * 200,
    "256 equal": [_SIZE // 256] * 256,
}


class Steps:
    """Adam over arrays of these sizes."""

    def __init__(self, sizes: Sequence[int], mesh: Mesh, rng: np.random.Generator) -> None:
        self._tx = jaxcc.optim.fuse(optax.adam(1e-3), axis_name=AXIS, mesh=mesh)
        self._mesh = mesh
        self._params = {
            f"w{n:03}": rng.standard_normal(size, dtype=np.float32) for n, size in enumerate(sizes)
        }
        each = {
            k: rng.standard_normal(2 * w.size, dtype=np.float32) for k, w in self._params.items()
        }
        self._gradients = place(each, mesh, EACH)

    def loop(self, count: int) -> Callable[[], Any]:
        """A program of `count` steps."""

        def steps(gradients: Any, state: Any, params: Any) -> Any:
            def one(_: Any, carry: Any) -> Any:
                return self._tx.step(gradients, carry[1], carry[0])

            return lax.fori_loop(0, count, one, (params, state))

        return self._carried(program(self._mesh, steps, self._tx.specs()))

    def empty(self) -> Callable[[], Any]:
        """A program of the same arguments that gives them back."""
        specs = (ALL, self._tx.specs())
        mapped = jax.shard_map(
            lambda carry, _: carry, mesh=self._mesh, in_specs=(specs, EACH), out_specs=specs
        )
        return self._carried(jax.jit(mapped, donate_argnums=0, keep_unused=True))

    def _carried(self, f: Any) -> Callable[[], Any]:
        carry = started(self._mesh, self._tx.init, self._tx.specs(), self._params)
        return Carried(lambda held: f(held, self._gradients), carry)


def main() -> None:
    """Prints milliseconds a step, and the ratios to one array, with quartiles."""
    parser = argparse.ArgumentParser(description="Fused Adam steps of many arrays")
    parser.add_argument("--steps", type=int, default=20, help="steps in a program (20)")
    parser.add_argument("--rounds", type=int, default=25, help="timed turns (25)")
    parser.add_argument("names", nargs="*", default=list(TREES), help=f"of {', '.join(TREES)}")
    given = parser.parse_args()
    mesh = group(2, AXIS)
    rng = np.random.default_rng(0)
    whole = Steps([_SIZE], mesh, rng)
    for name in given.names:
        tree = Steps(TREES[name], mesh, rng)
        for count in (given.steps, 1):
            found = compare(whole.loop(count), tree.loop(count), rounds=given.rounds)
            ours, one = (spread_text(x, 1e3 / count, 2) for x in (found.xla, found.jaxcc))
            ratio = spread_text(found.speedup, digits=3)
            print(
                f"{name}, {count:2} a call: {ours} ms a step, one array {one}: {ratio}", flush=True
            )
        empty = compare(whole.empty(), tree.empty(), rounds=given.rounds)
        calls = (spread_text(x, 1e3, 2) for x in (empty.xla, empty.jaxcc))
        print(f"{name}, an empty call: {next(calls)} ms, one array {next(calls)}", flush=True)


if __name__ == "__main__":
    main()
