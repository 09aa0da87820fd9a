"""A gather moves past a send: slices are sent, and gathered by those that receive them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from oracles import close

import jaxcc
from jaxcc import Local, Replicated, Schedule, ScheduleError, on


def stages(tp: int) -> Any:
    """A mesh of two pipeline stages with `tp` ranks each."""
    return jax.make_mesh(
        (2, tp), ("pp", "tp"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[: 2 * tp]
    )


def to_the_next(x: Any, axis: str) -> Any:
    n = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])


def hand_over(y: Any, bias: Any) -> Any:
    """The tail of a stage's layer, sent to the next stage."""
    total = jaxcc.name(lax.psum(y, "tp"), "total")
    work = jaxcc.name(jnp.tanh(total + bias), "work")
    sent = jaxcc.name(to_the_next(work, "pp"), "sent")
    return jaxcc.name(sent + sent, "out")


def scheduled(tp: int, f: Any = hand_over) -> tuple[Any, Schedule]:
    layouts = (on(pp=Local, tp=Local), Replicated)
    typed = jaxcc.typed(mesh=stages(tp), in_layouts=layouts)(f)
    shapes = [(4, 6), (6,)]
    return typed, typed.schedule(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))


def arguments(tp: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arguments, and what both stages send, in f64."""
    rng = np.random.default_rng(tp)
    y = rng.normal(size=(2, tp, 4, 6)).astype(np.float32)
    bias = rng.normal(size=(6,)).astype(np.float32)
    return y, bias, np.tanh(y.astype(np.float64).sum(1) + bias.astype(np.float64))


@pytest.mark.parametrize("after", ["sent", "out"])
@pytest.mark.parametrize("tp", [1, 2])
def test_slices_are_sent_over_another_axis(tp: int, after: str) -> None:
    typed, s = scheduled(tp)
    s = s.split("total").reorder("total.gather", after=after)
    (sent,) = (op for op in s.program.ops if op.kind == "ppermute")
    assert sent.types[0].shape == (4 // tp, 6)
    y, bias, work = arguments(tp)
    close(s.compile("xla")(y, bias), 2 * work[::-1])
    close(typed.reference(y, bias), 2 * work[::-1])


def test_golden_text(golden: Callable[[str, str], None]) -> None:
    _, s = scheduled(2)
    golden("sent", s.split("total").reorder("total.gather", after="out").text(lines=False))


def test_work_before_the_send_is_fused_on_its_own() -> None:
    _, s = scheduled(2)
    s = s.split("total").reorder("total.gather", after="out")
    s = s.fuse("total.scatter", ..., "work", name="fused")
    y, bias, work = arguments(2)
    close(s.compile("host")(y, bias), 2 * work[::-1])


def test_a_send_over_the_axis_of_the_gather_is_refused() -> None:
    """What is gathered is the same on all ranks, so that every permutation leaves it as it is."""

    def f(y: Any, bias: Any) -> Any:
        total = jaxcc.name(lax.psum(y, "tp"), "total")
        return jaxcc.name(to_the_next(total, "tp") + bias, "out")

    _, s = scheduled(2, f)
    message = "(?s)SCHEDULE_WRONG_OPERATION.*sends over 'tp' itself.*another rank's block"
    with pytest.raises(ScheduleError, match=message):
        s.split("total").reorder("total.gather", after="out")
