"""A step to be tuned, which tests of the tuner share."""

from typing import Any

from jax import lax
from oracles import mesh_of

import jaxcc
from jaxcc import Local, Replicated
from jaxcc.schedule.tuner import Tuned


def step_of(g: Any, w: Any) -> Any:
    total = jaxcc.name(lax.psum(g, "tp"), "total")
    return jaxcc.name(w - 0.5 * total, "new_w")


def typed() -> Any:
    """The step over two ranks."""
    return jaxcc.typed(mesh=mesh_of(2), in_layouts=(Local, Replicated))(step_of)


def by_verbs(tuned: Tuned) -> dict[str, Any]:
    """The trials by the verbs of their schedules."""
    return {trial.verbs: trial for trial in tuned.trials}
