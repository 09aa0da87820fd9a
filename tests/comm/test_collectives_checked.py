"""What the layout checker says of jaxcc.comm's collectives, and that what it accepts is so."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, comm
from jaxcc.layout import LayoutError
from jaxcc.testing import assert_rank_invariant

X = jax.ShapeDtypeStruct((8, 12), jnp.float32)
MESH = AbstractMesh((4,), ("r",), axis_types=(AxisType.Auto,))

RIGHT = {
    "all_gather": (lambda v: comm.all_gather(v, "r"), Sliced(0), Replicated),
    "all_gather along 1": (lambda v: comm.all_gather(v, "r", dim=1), Sliced(1), Replicated),
    "reduce_scatter": (lambda v: comm.reduce_scatter(v, "r"), Partial(), Sliced(0)),
    "its maximum": (
        lambda v: comm.reduce_scatter(v, "r", op="max"),
        Partial("max"),
        Sliced(0),
    ),
    "all_to_all": (
        lambda v: comm.all_to_all(v, "r", split_dim=0, concat_dim=1),
        Sliced(1),
        Sliced(0),
    ),
    "broadcast": (lambda v: comm.broadcast(v, "r", root=1), Replicated, Replicated),
    "reduce": (lambda v: comm.reduce(v, "r", root=1), Partial(), Partial()),
    "reduce, then all": (
        lambda v: comm.all_reduce(comm.reduce(v, "r"), "r"),
        Partial(),
        Replicated,
    ),
    "gather": (lambda v: comm.gather(v, "r", dim=1), Sliced(1), Partial()),
    "scatter": (lambda v: comm.scatter(v, "r", root=1, dim=1), Replicated, Sliced(1)),
    "shift": (lambda v: comm.shift(v, "r"), Replicated, Replicated),
    "barrier": (lambda v: comm.barrier(v, "r"), Sliced(0), Sliced(0)),
    "started": (lambda v: comm.done(comm.all_gather_start(v, "r")), Sliced(0), Replicated),
}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("name", RIGHT)
def test_right_uses_are_accepted_and_give_the_same_on_one_rank(name: str, check_vma: bool) -> None:
    body, given, made = RIGHT[name]
    x = np.random.default_rng(len(name)).normal(size=X.shape).astype(np.float32)
    layouts: dict[str, Any] = {"in_layouts": (given,), "out_layouts": made}
    assert_rank_invariant(body, x, mesh=MESH, check_vma=check_vma, **layouts)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_typed_program_runs_on_the_backend_that_it_names(check_vma: bool) -> None:
    mesh = jax.make_mesh((4,), ("r",), axis_types=(AxisType.Auto,))

    def body(v: jax.Array) -> jax.Array:
        mine = comm.reduce_scatter(jnp.sin(v), "r", backend="host", mesh=mesh)
        return comm.all_gather(mine + 1, "r", to="invarying", backend="host", mesh=mesh)

    def typed(layout: Any) -> Any:
        options: dict[str, Any] = {"mesh": mesh, "check_vma": check_vma}
        return jaxcc.typed(in_layouts=(layout,), out_layouts=Replicated, **options)(body)

    x = np.random.default_rng(3).normal(size=(4, *X.shape)).astype(np.float32)
    with pytest.raises(LayoutError, match="LAYOUT_PARTIAL_NONLINEAR"):
        typed(Partial())(x)
    wanted = np.sin(x.astype(np.float64)).sum(0) + 1
    np.testing.assert_allclose(typed(Local)(x), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "layout"),
    [
        (lambda v: comm.broadcast(v, "r"), Replicated),
        (lambda v: comm.scatter(v, "r"), Sliced(0)),
    ],
)
def test_what_one_rank_gives_to_all_is_no_longer_local(body: Callable, layout: Any) -> None:
    jaxcc.check(body, X, mesh=MESH, in_layouts=(Local,), out_layouts=layout)


WRONG = [
    (lambda v: comm.all_gather(v, "r", dim=1), Sliced(0), Replicated, "LAYOUT_RESULT"),
    (lambda v: comm.broadcast(v, "r"), Sliced(0), Replicated, "LAYOUT_RANK_DEPENDENT"),
    (lambda v: comm.broadcast(v, "r"), Partial(), Replicated, "LAYOUT_PARTIAL_NONLINEAR"),
    (lambda v: comm.scatter(v, "r"), Sliced(1), Sliced(0), "LAYOUT_RANK_DEPENDENT"),
    (lambda v: comm.reduce(v, "r"), Partial(), Replicated, "LAYOUT_RESULT_PARTIAL"),
    (lambda v: comm.gather(v, "r"), Sliced(0), Replicated, "LAYOUT_RESULT_PARTIAL"),
    (lambda v: jnp.tanh(comm.gather(v, "r")), Sliced(0), Partial(), "LAYOUT_PARTIAL_NONLINEAR"),
    (lambda v: comm.reduce(v, "r"), Replicated, Partial(), "LAYOUT_SCALE"),
]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("case", range(len(WRONG)))
def test_wrong_uses_are_refused(case: int, check_vma: bool) -> None:
    body, given, made, code = WRONG[case]
    with pytest.raises(LayoutError) as caught:
        jaxcc.check(body, X, mesh=MESH, in_layouts=(given,), out_layouts=made, check_vma=check_vma)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "broadcast", "reduce", "gather"])
def test_gradients_are_checked_with_them(name: str) -> None:
    body, given, made = RIGHT[name]
    if name == "all_gather":
        # Of a varying result that all ranks return, each rank's cotangent counts.
        def body(v: jax.Array) -> jax.Array:
            return comm.all_gather(v, "r", to="invarying")

    jaxcc.check(body, X, mesh=MESH, in_layouts=(given,), out_layouts=made, grad=0)
