"""A function and its gradients as one program to check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import jax

from jaxcc import _compat
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._layouts import Layout, LayoutMap, Local, Partial, Replicated
from jaxcc.layout._trace import argument_names

_jax: Any = jax
_jnp: Any = jax.numpy

Grads = Literal["summed", "pending"]


@dataclass(frozen=True)
class Unit:
    """`f` with its gradients.

    Attributes:
      f: a function of the arguments of the original and of a cotangent for each of its results,
        unless that is one scalar; it returns the original's results and the gradients, flat.
      avals: whole types of the cotangents.
      in_layouts: of the cotangents.
      out_layouts: of the results, then of the gradients.
      in_names: what messages call the cotangents.
      out_names: what messages call the results and the gradients.
    """

    f: Callable[..., Any]
    avals: tuple[Any, ...]
    in_layouts: tuple[LayoutMap, ...]
    out_layouts: tuple[LayoutMap, ...]
    in_names: tuple[str, ...]
    out_names: tuple[str, ...]


def with_gradients(
    f: Callable[..., Any],
    args: Sequence[Any],
    grad: int | tuple[int, ...],
    grads: Grads,
    in_layouts: Sequence[LayoutMap],
    out_avals: Sequence[Any],
    out_layouts: Sequence[LayoutMap],
) -> Unit:
    """`f` and its gradients for the arguments `grad`, as `jax.value_and_grad` makes them inside a
    `shard_map`.

    Args:
      f: the per-rank function, which is right by itself.
      args: its arguments, whole shapes.
      grad: which arguments, by position.
      grads: whether the gradient of a Replicated argument is to be whole, or still to be summed
        over the ranks.
      in_layouts: for each leaf of the arguments.
      out_avals: whole types of the results' leaves.
      out_layouts: for each leaf of the results.

    Raises:
      LayoutError: LAYOUT_ARGUMENT for an argument or a result without a gradient, LAYOUT_GRADIENT
        for a result that each rank has its own of.
    """
    wanted = _positions(grad, len(args))
    if grads not in ("summed", "pending"):
        raise LayoutError("LAYOUT_ARGUMENT", f"grads is {grads!r}, not 'summed' or 'pending'")
    names = argument_names(f, args)
    owners = [index for index, arg in enumerate(args) for _ in _jax.tree.leaves(arg)]
    leaves: list[Any] = _jax.tree.leaves(tuple(args))
    chosen = [at for index in wanted for at, owner in enumerate(owners) if owner == index]
    for at in chosen:
        if not _floating(leaves[at]):
            raise _no_gradient(f"argument '{names[at]}' is {leaves[at].dtype}")
    active = [at for at, aval in enumerate(out_avals) if _floating(aval)]
    if not active:
        raise _no_gradient("no result")
    loss = len(out_avals) == 1 and not out_avals[0].shape
    for at in active:
        _require_shared(at, out_layouts[at], loss)
    cotangents = [] if loss else active

    def unit(*given: Any) -> list[Any]:
        flat, tree = _jax.tree.flatten(given[: len(args)])

        def of_chosen(*values: Any) -> tuple[list[Any], list[Any]]:
            full = list(flat)
            for at, value in zip(chosen, values, strict=True):
                full[at] = value
            results = [
                _jnp.asarray(y) for y in _jax.tree.leaves(f(*_jax.tree.unflatten(tree, full)))
            ]
            return [results[at] for at in active], results

        made, pull, results = _jax.vjp(of_chosen, *(flat[at] for at in chosen), has_aux=True)
        seeds = [_jnp.ones_like(made[0])] if loss else list(given[len(args) :])
        return [*results, *pull(_compat.as_varying_as(seeds, [_jax.typeof(y) for y in made]))]

    return Unit(
        unit,
        tuple(out_avals[at] for at in cotangents),
        tuple(_cotangent(out_layouts[at]) for at in cotangents),
        (*out_layouts, *(_gradient(in_layouts[at], grads) for at in chosen)),
        tuple(f"the cotangent of result {at}" for at in cotangents),
        (
            *(f"result {at}" for at in range(len(out_avals))),
            *(f"the gradient of '{names[at]}'" for at in chosen),
        ),
    )


def gradient_note(check_vma: bool) -> str:
    """What the flag of `shard_map` means for gradients."""
    if check_vma:
        return (
            "check_vma=True: JAX itself sums over the ranks the gradient of a value that it takes "
            "to be the same on all of them"
        )
    return "check_vma=False: the derivative of psum is psum, and JAX sums no gradient by itself"


def gradient_cure(check_vma: bool, grads: Grads, passes: Callable[[], bool]) -> str | None:
    """What mends the gradients of a function that is right: another flag, or what they are said
    to be; `passes()` is whether they are right, summed, with check_vma=True."""
    if grads == "pending" and check_vma and passes():
        return (
            "say grads='summed': with check_vma=True JAX has already summed them; they are pending "
            "with check_vma=False"
        )
    if not check_vma and passes():
        return (
            "run and check with check_vma=True, where JAX sums each gradient once; or, with "
            "check_vma=False, write Megatron's pairs of collectives (`jaxcc explain psum`)"
        )
    return None


def _positions(grad: int | tuple[int, ...], count: int) -> tuple[int, ...]:
    wanted = cast(Any, grad) if isinstance(grad, (tuple, list)) else (grad,)
    for index in wanted:
        if (
            isinstance(index, bool)
            or not isinstance(cast(Any, index), int)
            or not -count <= index < count
        ):
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"grad={grad!r} names argument {index!r}, but the function has {count}",
                fixes=("give positions of arguments, such as grad=(0, 1)",),
            )
    return tuple(index % count for index in wanted)


def _floating(leaf: Any) -> bool:
    return bool(_jnp.issubdtype(leaf.dtype, _jnp.inexact))


def _no_gradient(what: str) -> LayoutError:
    return LayoutError(
        "LAYOUT_ARGUMENT",
        f"{what} has no gradient",
        because="only floating-point values have one",
        fixes=("name floating-point arguments in grad=",),
    )


def _require_shared(at: int, layout: LayoutMap, loss: bool) -> None:
    for axis in layout:
        if layout[axis] == Local and loss:
            raise LayoutError(
                "LAYOUT_GRADIENT",
                f"result {at}, which is differentiated, is Local over '{axis}'",
                because="every rank has a loss of its own, so no one number is differentiated",
                fixes=(
                    f"return jax.lax.pmean(loss, '{axis}') (or psum), or declare the loss "
                    "Partial() if the sum of the ranks' losses is meant",
                ),
            )


def _cotangent(layout: LayoutMap) -> LayoutMap:
    """What is passed back to a result: every rank gets that of a pending sum."""
    return _mapped(layout, lambda one: Replicated if isinstance(one, Partial) else one)


def _gradient(layout: LayoutMap, grads: Grads) -> LayoutMap:
    """The gradient of a value with this layout."""
    shared: Layout = Replicated if grads == "summed" else Partial()
    return _mapped(
        layout,
        lambda one: (
            Replicated if isinstance(one, Partial) else shared if one == Replicated else one
        ),
    )


def _mapped(layout: LayoutMap, function: Callable[[Layout], Layout]) -> LayoutMap:
    return LayoutMap(tuple((axis, function(one)) for axis, one in layout.items_))
