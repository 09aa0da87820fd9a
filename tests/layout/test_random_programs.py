"""Random programs: whatever the checker accepts computes the same on 1, 2, 3 and 4 ranks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Partial, Replicated, Sliced, check
from jaxcc.testing import assert_rank_invariant

N = 12

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "neg": lambda x: -x,
    "double": lambda x: 2.0 * x,
    "square": lambda x: x * x,
    "relu": jax.nn.relu,
    "transpose": lambda x: x.T,
    "mean0": lambda x: x - x.mean(0, keepdims=True),
    "softmax1": lambda x: jax.nn.softmax(x, axis=1),
    "sum1": lambda x: x.sum(1, keepdims=True) + jnp.zeros_like(x),
    "divide": lambda x: x / lax.axis_size("tp"),
    "psum": lambda x: lax.psum(x, "tp"),
    "pmean": lambda x: lax.pmean(x, "tp"),
    "pmax": lambda x: lax.pmax(x, "tp"),
    "gather0": lambda x: lax.all_gather(x, "tp", axis=0, tiled=True),
    "gather1": lambda x: lax.all_gather(x, "tp", axis=1, tiled=True),
    "scatter0": lambda x: lax.psum_scatter(x, "tp", scatter_dimension=0, tiled=True),
    "scatter1": lambda x: lax.psum_scatter(x, "tp", scatter_dimension=1, tiled=True),
    "swap01": lambda x: lax.all_to_all(x, "tp", 0, 1, tiled=True),
    "swap10": lambda x: lax.all_to_all(x, "tp", 1, 0, tiled=True),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": jnp.maximum,
    "where": lambda a, b: jnp.where(a > 0, a, b),
    "dot": lambda a, b: a @ b / N,
    "dot_t": lambda a, b: a @ b.T / N,
}
LAYOUTS = [Replicated, Sliced(0), Sliced(1), Partial()]

steps = st.one_of(
    st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 9)),
    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 9), st.integers(0, 9)),
)
programs = st.tuples(
    st.lists(st.sampled_from(LAYOUTS), min_size=2, max_size=3),
    st.lists(steps, min_size=1, max_size=6),
)


def build(recipe: list[Any], arity: int) -> Callable[..., Any]:
    """The program of a recipe; each step reads recent values, and all that nobody read are
    returned."""

    def program(*args: Any) -> list[Any]:
        values, unread = list(args), set(range(arity))
        for name, *operands in recipe:
            at = [len(values) - 1 - k % len(values) for k in operands]
            function: Any = UNARY.get(name) or BINARY[name]
            values.append(function(*(values[k] for k in at)))
            unread = (unread - set(at)) | {len(values) - 1}
        return [values[k] for k in sorted(unread)]

    return program


def test_accepted_programs_are_rank_invariant() -> None:
    accepted = 0

    @settings(
        max_examples=100,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(programs, st.integers(0, 2**31))
    def run(program: Any, seed: int) -> None:
        nonlocal accepted
        layouts, recipe = program
        accepted += accepted_and_invariant(layouts, recipe, seed)

    run()
    # The test proves nothing if everything is refused.
    assert accepted >= 20


def accepted_and_invariant(layouts: list[Any], recipe: list[Any], seed: int) -> int:
    """For how many group sizes the checker accepts the program, which is then run."""
    f = build(recipe, len(layouts))
    rng = np.random.default_rng(seed)
    args = [rng.standard_normal((N, N)).astype(np.float32) for _ in layouts]
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args]
    accepted = 0
    for n in (4, 3):
        mesh = AbstractMesh((n,), ("tp",))
        try:
            report = check(f, *avals, mesh=mesh, in_layouts=tuple(layouts))
        except (LayoutError, TypeError, ValueError):
            continue
        accepted += 1
        for group in report.sizes:
            assert_rank_invariant(
                f,
                *args,
                mesh=group,
                in_layouts=tuple(layouts),
                out_layouts=list(report.out_layouts),
                rtol=2e-3,
                atol=2e-3,
                seed=seed,
            )
    return accepted
