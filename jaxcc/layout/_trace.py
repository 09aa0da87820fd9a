"""Traces a per-rank function at chosen group sizes, without devices."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax import ad_checkpoint
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from jaxcc import _compat
from jaxcc.layout._captured import refuse_sharded
from jaxcc.layout._collector import collector_at_rest
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._layouts import LayoutMap, Sliced, to_spec

# JAX has types for some of its parameters only.
_jax: Any = jax
_label: Any = cast(Any, ad_checkpoint).checkpoint_name

_checked: ContextVar[bool] = ContextVar("jaxcc_checked", default=False)

_IN = "__jaxcc_in"
_OUT = "__jaxcc_out"


def being_checked() -> bool:
    """Whether what runs now is traced for the checker, for a group that may have no devices: a
    function with a kernel of its own then computes by what has layout rules.
    """
    return _checked.get()


@dataclass(frozen=True)
class Trace:
    """The equations of a per-rank function for one set of group sizes.

    Attributes:
      sizes: ranks along each mesh axis.
      invars: one variable per leaf of the arguments, with its per-rank shape.
      outvars: one variable or literal per leaf of the result.
      eqns: the equations, in order; `outvars` need not use all of them.
      consts: arrays that the function captured, by variable.
      out_tree: the structure of the result.
    """

    sizes: Mapping[str, int]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    eqns: tuple[Any, ...]
    consts: Mapping[Any, Any]
    out_tree: Any


def function_name(f: Callable[..., Any]) -> str:
    """What messages call a function."""
    while isinstance(f, functools.partial):
        f = cast(Callable[..., Any], f.func)
    return getattr(f, "__name__", "the function")


def positional_parameters(f: Callable[..., Any], count: int) -> list[tuple[str, int | None]]:
    """The parameter that each of `count` positional arguments is for, and its index if that is
    `*args`."""
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    out: list[tuple[str, int | None]] = []
    for index in range(count):
        starred = next((p for p in parameters if p.kind is p.VAR_POSITIONAL), None)
        first = parameters.index(starred) if starred else len(parameters)
        if index < first:
            out.append((parameters[index].name, None))
        else:
            out.append((starred.name, index - first) if starred else (f"arg{index}", None))
    return out


def argument_names(f: Callable[..., Any], args: Sequence[Any]) -> list[str]:
    """A name for each leaf of the positional arguments: `w`, or `params['w']` in a pytree."""
    names: list[str] = []
    for arg, (name, index) in zip(args, positional_parameters(f, len(args)), strict=True):
        root = name if index is None else f"{name}[{index}]"
        leaves, _ = _jax.tree_util.tree_flatten_with_path(arg)
        names += [root + _jax.tree_util.keystr(path) for path, _ in leaves]
    return names


def result_names(tree: Any) -> list[str]:
    """A name for each leaf of a result: `result 0`, or `result 0['w']` in a pytree."""
    count = tree.num_leaves
    leaves, _ = _jax.tree_util.tree_flatten_with_path(_jax.tree.unflatten(tree, range(count)))
    names: list[str] = []
    for path, _ in leaves:
        first, rest = (path[0], path[1:]) if path else (None, ())
        number = getattr(first, "idx", None) if path else 0
        root = "result" if number is None else f"result {number}"
        names.append(root + _jax.tree_util.keystr(path if number is None else rest))
    return names


def per_rank_shape(
    shape: Sequence[int], layout: LayoutMap, sizes: Mapping[str, int], name: str
) -> tuple[int, ...]:
    """The shape that one rank holds of an array whose whole shape is `shape`."""
    out = list(shape)
    for axis, one in layout.items_:
        if not isinstance(one, Sliced):
            continue
        if not -len(out) <= one.dim < len(out):
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"{name} has shape {tuple(shape)}, which has no dimension {one.dim} to slice",
            )
        if out[one.dim] % sizes[axis]:
            raise LayoutError(
                "LAYOUT_INDIVISIBLE",
                f"dimension {one.dim} of {name} is {shape[one.dim]}, "
                f"which the {sizes[axis]} ranks of axis '{axis}' do not divide",
                fixes=(f"pad {name} to a multiple of {sizes[axis]}, or slice another dimension",),
            )
        out[one.dim] //= sizes[axis]
    return tuple(out)


@collector_at_rest()
def trace(
    f: Callable[..., Any],
    args: Sequence[Any],
    layouts: Sequence[LayoutMap],
    sizes: Mapping[str, int],
    *,
    check_vma: bool = True,
    axis_names: Collection[str] | None = None,
    mesh: AbstractMesh | None = None,
) -> Trace:
    """Traces `f` as one rank of a mesh with these `sizes` sees it.

    Args:
      f: the per-rank function.
      args: positional arguments; leaves have the whole `.shape` and `.dtype`.
      layouts: one per leaf of `args`.
      sizes: ranks along each mesh axis, in the mesh's order.
      check_vma: the flag of `jax.shard_map` under which the program will run; it changes what
        `psum` means to `grad`.
      axis_names: the axes of which `f` is one rank, as for `jax.shard_map`; the others are for
        shard_maps inside `f`. None for all.
      mesh: the mesh of these sizes that the equations will run on, if they will; the bodies of
        loops keep it.
    """
    axes = tuple(axis for axis in sizes if axis_names is None or axis in axis_names)
    mesh = mesh or AbstractMesh(
        tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes)
    )
    leaves, in_tree = _jax.tree.flatten(tuple(args))
    names = argument_names(f, args)
    specs: list[PartitionSpec] = []
    avals: list[jax.ShapeDtypeStruct] = []
    for leaf, layout, name in zip(leaves, layouts, names, strict=True):
        per_rank_shape(leaf.shape, layout, sizes, name)
        stacked = tuple(sizes[axis] for axis in layout.stacked_axes())
        specs.append(to_spec(layout, len(leaf.shape)))
        weak = bool(getattr(leaf, "weak_type", False))
        avals.append(jax.ShapeDtypeStruct(stacked + tuple(leaf.shape), leaf.dtype, weak_type=weak))
    out_tree: list[Any] = []

    def per_rank(*flat: Any) -> list[Any]:
        inputs = [
            _label(x.reshape(x.shape[len(layout.stacked_axes()) :]), f"{_IN}{i}")
            for i, (x, layout) in enumerate(zip(flat, layouts, strict=True))
        ]
        result = f(*_jax.tree.unflatten(in_tree, inputs))
        flat_result, tree = _jax.tree.flatten(result)
        out_tree.append(tree)
        _require_arrays(flat_result)
        outputs = [_label(y, f"{_OUT}{i}") for i, y in enumerate(flat_result)]
        return [_stack(y, axes, check_vma) for y in outputs]

    wrapped = per_rank
    if axes:
        wrapped = jax.shard_map(
            per_rank,
            mesh=mesh,
            in_specs=tuple(specs),
            out_specs=PartitionSpec(axes),
            axis_names=set(axes),
            check_vma=check_vma,
        )
    token = _checked.set(True)
    try:
        with _compat.traced_for(mesh):
            closed = _jax.make_jaxpr(wrapped)(*avals)
    finally:
        _checked.reset(token)
    traced = _strip(closed, sizes, len(leaves), out_tree, wrapped=bool(axes))
    refuse_sharded(traced.eqns, traced.consts)
    return traced


def _require_arrays(results: Sequence[Any]) -> None:
    for result in results:
        if not hasattr(result, "dtype") and not isinstance(result, (bool, int, float, complex)):
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"the function returns {result!r}, which is no array",
                fixes=("return arrays, or pytrees of arrays",),
            )


def _stack(y: Any, axes: tuple[str, ...], check_vma: bool) -> Any:
    """Gives `y` the one form that shard_map accepts of any value: varying, with a dimension for the
    ranks."""
    y = _jax.numpy.asarray(y)[None]
    if not check_vma:
        return y
    missing = tuple(axis for axis in axes if axis not in _compat.varying_axes(y))
    return _jax.lax.pcast(y, missing, to="varying") if missing else y


def _strip(
    closed: Any, sizes: Mapping[str, int], arity: int, out_tree: list[Any], *, wrapped: bool
) -> Trace:
    """The equations between the input and output labels of `trace`, which stand in a shard_map if
    the function was `wrapped` in one."""
    outer = _compat.open_jaxpr(closed)
    body, consts = outer, dict(zip(outer.constvars, _compat.jaxpr_consts(closed), strict=True))
    if wrapped:
        (call,) = [eqn for eqn in outer.eqns if _compat.op_name(eqn) == "shard_map"]
        body = _compat.open_jaxpr(call.params["jaxpr"])
        consts = {
            inner: consts[given]
            for given, inner in zip(call.invars, body.invars, strict=True)
            if not isinstance(given, _compat.Literal) and given in consts
        }
        consts |= dict(zip(body.constvars, _compat.jaxpr_consts(call.params["jaxpr"]), strict=True))
    invars: dict[int, Any] = {}
    outvars: dict[int, Any] = {}
    eqns: list[Any] = []
    for eqn in body.eqns:
        label = str(eqn.params.get("name", "")) if _compat.op_name(eqn) == "name" else ""
        if label.startswith(_IN):
            invars[int(label.removeprefix(_IN))] = eqn.outvars[0]
        elif label.startswith(_OUT):
            outvars[int(label.removeprefix(_OUT))] = eqn.invars[0]
        elif len(invars) == arity and not outvars:
            eqns.append(eqn)
    return Trace(
        sizes=dict(sizes),
        invars=tuple(invars[i] for i in range(arity)),
        outvars=tuple(outvars[i] for i in range(len(outvars))),
        eqns=tuple(eqns),
        consts=consts,
        out_tree=out_tree[0],
    )
