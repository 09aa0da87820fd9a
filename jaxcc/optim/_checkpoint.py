"""A fused optimizer's state as optax has it, and back: for checkpoints, and groups of any size."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxcc import _compat
from jaxcc.layout import LayoutError
from jaxcc.optim._owners import SHARED
from jaxcc.optim._slices import block_size
from jaxcc.optim._state import AnyMesh, MasterState, StateForm
from jaxcc.optim._trees import check_structure
from jaxcc.program import type_text

_OWN = "this optimizer's for these parameters"
_LIKE = (
    "pass a state of this transformation for these parameters; what is read from a file gets its "
    "structure from jax.eval_shape(tx.init, params), tx being optax's",
)


def save_form(form: StateForm, state: Any, params: Any) -> Any:
    """The global state with whole arrays in the parameters' shapes, as optax has it.

    Raises:
      LayoutError: OPTIM_ARGUMENT if it is no state of `form` for these parameters.
    """
    types = jax.eval_shape(form.whole, params)
    check_structure("state", state, _OWN, types, _LIKE)

    def whole(path: Any, x: Any, t: Any, owner: int) -> Any:
        x = jnp.asarray(x)
        if not _fits(x, t, form.axis, owner):
            _refuse("state", path, x, t, owner)
        return x if owner == SHARED else _whole(x)[: t.size].reshape(t.shape)

    owners = form.owners(types, params)
    return jax.tree_util.tree_map_with_path(whole, state, types, owners)


def _whole(x: jax.Array) -> jax.Array:
    """`x` typed as whole: of one that Explicit axes divide, JAX knows no reshape."""
    sharding = jax.typeof(x).sharding
    if any(kind == AxisType.Explicit for kind in sharding.mesh.axis_types):
        return jax.reshard(x, sharding.update(spec=P(*[None] * x.ndim)))
    return x


def load_form(form: StateForm, saved: Any, params: Any, mesh: AnyMesh) -> Any:
    """The global state for this mesh, of what `save_form` gave or of optax's own state.

    Raises:
      LayoutError: OPTIM_ARGUMENT if it is no state of `form` for these parameters.
    """
    if form.master is not None and not isinstance(saved, MasterState):
        wide = jax.tree.map(lambda p: jnp.asarray(p, form.master), params)
        saved = MasterState(wide, saved)
    if form.master is None and isinstance(saved, MasterState):
        raise LayoutError(
            "OPTIM_ARGUMENT",
            "the saved state has a master copy of the parameters, and this optimizer keeps none",
            fixes=("make the optimizer with master=", "load saved.inner, without the copy"),
        )
    types = jax.eval_shape(form.whole, params)
    check_structure("saved state", saved, _OWN, types, _LIKE)

    def check(path: Any, x: Any, t: Any) -> None:
        shape, dtype = _compat.type_of(x)
        # An update may widen what init made, but counts no fractions.
        if shape != t.shape or _kind(dtype) != _kind(t.dtype):
            _refuse("saved state", path, x, t, SHARED)

    jax.tree_util.tree_map_with_path(check, saved, types)
    return form.placed(lambda given: given, saved, params, mesh)


def _fits(x: Any, t: Any, axis: str, owner: int) -> bool:
    """Whether an array of the global state has the shape that `t` has there."""
    if owner == SHARED:
        return jnp.shape(x) == t.shape
    if _compat.is_tracer(x) or not isinstance(x.sharding, NamedSharding):
        return x.ndim == 1 and x.size >= t.size  # Nothing says for how many ranks it is padded.
    ranks: int = x.sharding.mesh.shape.get(axis, 1)
    return x.shape == (block_size(t.size, ranks) * ranks,)


def _refuse(what: str, path: Any, x: Any, t: Any, owner: int) -> None:
    shape, dtype = _compat.type_of(x)
    given = type_text(jax.ShapeDtypeStruct(shape, dtype))
    flat = "" if owner == SHARED else ", flat and padded to equal slices"
    raise LayoutError(
        "OPTIM_ARGUMENT",
        f"the {what}'s {jax.tree_util.keystr(path)} is {given}; these parameters have "
        f"{type_text(t)} there{flat}",
        fixes=_LIKE,
    )


def _kind(dtype: Any) -> str:
    for kind in (jnp.floating, jnp.complexfloating, jnp.integer):
        if jnp.issubdtype(dtype, kind):
            return kind.__name__
    return str(dtype)
