"""Holds what an optimizer's step is given against what it needs, before anything is computed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc import _compat
from jaxcc.layout import LayoutError, being_checked
from jaxcc.optim._owners import SHARED
from jaxcc.optim._slices import block_size
from jaxcc.optim._state import StateForm
from jaxcc.optim._trees import check_structure

_SLICES = "slices in the state"
_OTHER_GROUP = (
    "a state from a group of another size goes through tx.save_form there and tx.load_form here",
)
_OF_INIT = (
    "pass the state that init, or the last step, returned for these parameters; "
    "optax's own states are not sliced: tx.load_form(state, params)",
)
_OF_STATE = (
    "give the state its layouts in in_layouts and out_layouts: tx.layouts()",
    "for the check, give parameters sizes that the ranks divide: others are padded",
)


def ranks_of(axis_name: str) -> int:
    """The group's size, inside `shard_map` over `axis_name`.

    Raises:
      LayoutError: OPTIM_AXIS if no such axis is bound here.
    """
    try:
        return lax.axis_size(axis_name)
    except NameError:
        raise LayoutError(
            "OPTIM_AXIS",
            f"there is no mesh axis '{axis_name}' here",
            because="the step reduces gradients over it",
            fixes=(f"call it inside jax.shard_map over a mesh with the axis '{axis_name}'",),
        ) from None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one step, as leaves.

    Attributes:
      paths: of each gradient, as messages show it.
      grads: this rank's gradients.
      params: the parameters, equal on all ranks; None if none were given.
      state: the arrays of the state: slices of parameters, and what ranks share.
      extra: the arrays of the keyword arguments.
      tree, state_tree, extra_tree: their structures.
      owners: for each array of the state the number of its parameter, or SHARED.
      state_types: of each array of the state its type, whole.
    """

    paths: Sequence[str]
    grads: Sequence[Any]
    params: Sequence[Any] | None
    state: Sequence[Any]
    extra: Sequence[Any]
    tree: Any
    state_tree: Any
    extra_tree: Any
    owners: Sequence[int]
    state_types: Sequence[jax.ShapeDtypeStruct]

    @classmethod
    def of(
        cls, form: StateForm, grads: Any, state: Any, params: Any, extra: Mapping[str, Any]
    ) -> Arguments:
        """The arguments, of which the structures fit.

        Raises:
          LayoutError: OPTIM_ARGUMENT if they do not.
        """
        paths, tree = jax.tree_util.tree_flatten_with_path(grads)
        if params is not None:
            check_structure("parameters", params, "the gradients", grads, _OF_INIT)
        like = jax.tree.map(_type, grads if params is None else params)
        with _compat.outside_all_traces():
            whole = jax.eval_shape(form.whole, like)
            owners = form.owners(whole, like)
        leaves, state_tree = jax.tree.flatten(state)
        check_structure("state", state, "what init returns for these parameters", whole, _OF_INIT)
        given = list(map(jnp.asarray, leaves))
        owned = jax.tree.leaves(owners)
        types = [
            _type(x) if owner == SHARED else jax.ShapeDtypeStruct(t.shape, x.dtype)
            for x, t, owner in zip(given, jax.tree.leaves(whole), owned, strict=True)
        ]
        others, extra_tree = jax.tree.flatten(dict(extra))
        return cls(
            [jax.tree_util.keystr(path) or "the parameter" for path, _ in paths],
            [jnp.asarray(leaf) for _, leaf in paths],
            None if params is None else list(map(jnp.asarray, jax.tree.leaves(params))),
            given,
            list(map(jnp.asarray, others)),
            tree,
            state_tree,
            extra_tree,
            owned,
            types,
        )

    @property
    def key(self) -> Hashable:
        """Equal for arguments that are traced alike."""
        columns = (self.grads, self.params or (), self.state_types, self.extra)
        types = tuple(tuple((x.shape, x.dtype, _is_weak(x)) for x in column) for column in columns)
        given = self.params is not None
        return types, given, self.tree, self.state_tree, self.extra_tree, tuple(self.owners)

    def check(self, axis: str, ranks: int) -> None:
        """Shapes, dtypes, and that gradients are not summed yet.

        Raises:
          LayoutError: OPTIM_ARGUMENT or OPTIM_SUMMED.
        """
        shapes = [g.shape for g in self.grads]
        for path, g in zip(self.paths, self.grads, strict=True):
            _check_array(path, "gradients", g, g.shape, g.shape, ranks)
        for path, p, shape in zip(self.paths, self.params or (), shapes, strict=False):
            _check_array(path, "parameters", p, shape, shape, ranks)
        for x, owner in zip(self.state, self.owners, strict=True):
            if owner != SHARED:
                block = (block_size(self.grads[owner].size, ranks),)
                path = self.paths[owner]
                _check_array(path, _SLICES, x, block, shapes[owner], ranks)
        # What differs between ranks is known to JAX under check_vma=True alone.
        if axis in _compat.varying_axes(lax.axis_index(axis)):
            for path, g in zip(self.paths, self.grads, strict=True):
                _check_not_summed(path, g, axis)


def _type(x: Any) -> jax.ShapeDtypeStruct:
    x = x if hasattr(x, "dtype") else jnp.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=_is_weak(x))


def _is_weak(x: Any) -> bool:
    return bool(getattr(x, "weak_type", False))


def _check_array(
    where: str,
    shown: str,
    x: Any,
    shape: tuple[int, ...],
    gradient: tuple[int, ...],
    ranks: int,
) -> None:
    if x.shape != shape:
        of_state = shown == _SLICES and being_checked()
        raise LayoutError(
            "OPTIM_ARGUMENT",
            f"{where}: the {shown} have shape {x.shape}, not {shape}, "
            f"for a gradient of shape {gradient} on {ranks} ranks",
            because="the check holds the state to every size of groups" if of_state else "",
            fixes=_OF_STATE if of_state else _OTHER_GROUP if shown == _SLICES else (),
        )
    if shown != _SLICES and not jnp.issubdtype(x.dtype, jnp.floating):
        raise LayoutError(
            "OPTIM_ARGUMENT",
            f"{where}: the {shown} are {x.dtype}, not floating point",
            fixes=("leave arrays that are not trained out of the pytree",),
        )


def _check_not_summed(where: str, g: Any, axis: str) -> None:
    if axis not in _compat.varying_axes(g):
        raise LayoutError(
            "OPTIM_SUMMED",
            f"{where}: the gradient is equal on all ranks of '{axis}'",
            because="jax.shard_map with check_vma=True has already summed the gradient of a "
            "Replicated parameter; the step would reduce it a second time",
            fixes=(
                f"differentiate by jax.lax.pcast(params, '{axis}', to='varying') "
                "and pass the params themselves to step",
            ),
        )
