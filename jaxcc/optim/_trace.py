"""Traces an optax update, and says which of its values every array of the arguments is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax

from jaxcc import _compat
from jaxcc.optim._arguments import Arguments
from jaxcc.optim._owners import SHARED
from jaxcc.optim._plan import Outputs, Plan, plan
from jaxcc.optim._read import Reader
from jaxcc.optim._state import MasterState, StateForm
from jaxcc.optim._unsupported import unsupported
from jaxcc.optim._values import GIVEN, MEAN, PARAM, SLOT, Value


@dataclass(frozen=True)
class Traced:
    """An update as a plan; the values of its arguments and results, each in the order of leaves.

    `params` has None for those that the update gets from the state's master copy.
    """

    plan: Plan
    means: Sequence[Value]
    params: Sequence[Value | None]
    state: Sequence[Value]
    extra: Sequence[Value]
    outputs: Outputs


def traced_update(form: StateForm, given: Arguments, *, apply: bool) -> Traced:
    """The update of `form.tx` for arguments like `given`; its first results are the new parameters
    if `apply`, else the updates.

    Raises:
      LayoutError: OPTIM_UNSUPPORTED if it does more than elementwise work and whole reductions.
    """
    reader = Reader()
    grads = [jax.ShapeDtypeStruct(g.shape, form.master or g.dtype) for g in given.grads]
    params = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in given.params or ()]
    extra = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in given.extra]
    means = [reader.source(MEAN, t, leaf=n) for n, t in enumerate(grads)]
    for v, g in zip(means, given.grads, strict=True):
        v.data = g.dtype
    read = [reader.source(PARAM, t, leaf=n) for n, t in enumerate(params)]
    state = [
        reader.source(GIVEN, t, index=n)
        if owner == SHARED
        else reader.source(SLOT, t, leaf=owner, index=n)
        for n, (t, owner) in enumerate(zip(given.state_types, given.owners, strict=True))
    ]
    others = [reader.source(GIVEN, t, index=len(state) + n) for n, t in enumerate(extra)]
    inputs = (grads, given.state_types, params, extra)
    with _compat.outside_all_traces():
        jaxpr = jax.make_jaxpr(_update(form, given, apply))(*inputs)
    results = reader.read(jaxpr, [*means, *state, *read, *others])
    outputs = _outputs(reader, results, given)
    made = plan(reader.made, outputs, replaces_params=apply)
    return Traced(
        made, means, read if form.master is None else [None] * len(read), state, others, outputs
    )


def _update(form: StateForm, given: Arguments, apply: bool) -> Any:
    """The update on lists of leaves."""

    def update(grads: Any, state: Any, params: Any, extra: Any) -> tuple[list[Any], list[Any]]:
        grads, state = given.tree.unflatten(grads), given.state_tree.unflatten(state)
        keywords = given.extra_tree.unflatten(extra)
        if form.master is not None:
            updates, inner = form.tx.update(grads, state.inner, state.master, **keywords)
            wide: Any = optax.apply_updates(state.master, updates)
            state = MasterState(wide, inner)
            new = [w.astype(p.dtype) for w, p in zip(jax.tree.leaves(wide), params, strict=True)]
        else:
            held: Any = None if given.params is None else given.tree.unflatten(params)
            updates, state = form.tx.update(grads, state, held, **keywords)
            new = jax.tree.leaves(optax.apply_updates(held, updates) if apply else updates)
        if jax.tree.structure(state) != given.state_tree or len(new) != len(given.grads):
            raise unsupported("its update changes the structure of the state, or of the gradients")
        return new, jax.tree.leaves(state)

    return update


def _outputs(reader: Reader, results: Sequence[Value], given: Arguments) -> Outputs:
    params, state = results[: len(given.grads)], results[len(given.grads) :]
    for n, v in enumerate(params):
        _check_owner(v, n, given.paths[n])
    slots: dict[int, Value] = {}
    shared: dict[int, Value] = {}
    for n, (v, owner) in enumerate(zip(state, given.owners, strict=True)):
        if owner == SHARED:
            if v.leaf is not None and v.size > 1:
                raise unsupported(
                    f"its state keeps elements of {given.paths[v.leaf]} in an array that is not "
                    "like a parameter"
                )
            shared[n] = v if v.leaf is None else reader.number(v)
        else:
            _check_owner(v, owner, given.paths[owner])
            slots[n] = v
    return Outputs(params, slots, shared)


def _check_owner(v: Value, leaf: int, path: str) -> None:
    if v.leaf not in (None, leaf):
        raise unsupported(f"it gives {path} the elements of another parameter")
