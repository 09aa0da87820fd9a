"""Holds what an optimizer's step is given against what it needs, before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc import _compat
from jaxcc.layout import LayoutError


def block_size(size: int, ranks: int) -> int:
    """Elements of a flat tensor that one rank owns; the last ranks may own fewer."""
    return -(-size // ranks)


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


def rows_of(
    grads: Any, whole: Mapping[str, Any], slices: Mapping[str, Any], axis_name: str
) -> tuple[list[dict[str, Any]], Any]:
    """For each leaf its gradient `g` and its other arrays by name, and the structure of `grads`.

    Args:
      grads: a pytree of this rank's gradients.
      whole: pytrees like it, equal on all ranks.
      slices: pytrees like it of this rank's flat slices.
      axis_name: the axis that gradients are to be reduced over.

    Raises:
      LayoutError: OPTIM_ARGUMENT if structures, shapes or dtypes do not fit, OPTIM_SUMMED if a
        gradient is already equal on all ranks.
    """
    ranks = ranks_of(axis_name)
    paths, tree = jax.tree_util.tree_flatten_with_path(grads)
    rows = [{"g": jnp.asarray(leaf)} for _, leaf in paths]
    for name, column in {**whole, **slices}.items():
        if jax.tree.structure(column) != tree:
            raise LayoutError(
                "OPTIM_ARGUMENT",
                f"{_SHOWN.get(name, name)} have another structure than the gradients",
                operands=(f"gradients: {tree}", f"{name}: {jax.tree.structure(column)}"),
                fixes=(
                    "pass the state that init, or the last step, returned for these parameters",
                ),
            )
        for row, leaf in zip(rows, jax.tree.leaves(column), strict=True):
            row[name] = jnp.asarray(leaf)
    for (path, _), row in zip(paths, rows, strict=True):
        where = jax.tree_util.keystr(path) or "the parameter"
        _check_types(where, row, whole, slices, ranks)
        _check_not_summed(where, row, slices, axis_name)
    return rows, tree


_SHOWN = {"w": "parameters", "m": "first moments", "v": "second moments"}


def _check_types(
    where: str,
    row: Mapping[str, Any],
    whole: Mapping[str, Any],
    slices: Mapping[str, Any],
    ranks: int,
) -> None:
    g = row["g"]
    block = (block_size(g.size, ranks),)
    wanted = {"g": g.shape, **dict.fromkeys(whole, g.shape), **dict.fromkeys(slices, block)}
    for name, shape in wanted.items():
        x = row[name]
        shown = _SHOWN.get(name, "gradients")
        if x.shape != shape:
            raise LayoutError(
                "OPTIM_ARGUMENT",
                f"{where}: the {shown} have shape {x.shape}, not {shape}, "
                f"for a gradient of shape {g.shape} on {ranks} ranks",
            )
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise LayoutError(
                "OPTIM_ARGUMENT",
                f"{where}: the {shown} are {x.dtype}, not floating point",
                fixes=("leave arrays that are not trained out of the pytree",),
            )


def _check_not_summed(
    where: str, row: Mapping[str, Any], slices: Mapping[str, Any], axis_name: str
) -> None:
    # Slices always vary where JAX keeps track of that (check_vma=True).
    tracked = any(axis_name in _compat.varying_axes(row[name]) for name in slices)
    if tracked and axis_name not in _compat.varying_axes(row["g"]):
        raise LayoutError(
            "OPTIM_SUMMED",
            f"{where}: the gradient is equal on all ranks of '{axis_name}'",
            because="jax.shard_map with check_vma=True has already summed the gradient of a "
            "Replicated parameter; the step would reduce it a second time",
            fixes=(
                f"differentiate by jax.lax.pcast(params, '{axis_name}', to='varying') "
                "and pass the params themselves to step",
            ),
        )
