"""`jaxcc.check`: whether a per-rank program computes the same on one rank and on n."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, cast

import jax
import numpy as np

from jaxcc.layout._annotations import bind_annotations
from jaxcc.layout._checked import Program, positive
from jaxcc.layout._dtypes import array_type, is_key
from jaxcc.layout._errors import LayoutError
from jaxcc.layout._grad import Unit, gradient_cure, gradient_note, with_gradients
from jaxcc.layout._layouts import LayoutMap, Partial, Replicated, flatten_layouts
from jaxcc.layout._notes import narrowed_notes, pending_notes, program_notes
from jaxcc.layout._proof import Proof, passes, prove
from jaxcc.layout._report import LayoutReport, type_texts
from jaxcc.layout._tested import tested
from jaxcc.layout._trace import argument_names, function_name

Structure = Literal["rank-invariant", "rank-dependent"]


def check(
    f: Callable[..., Any],
    *avals: Any,
    mesh: Any,
    in_layouts: Any = None,
    out_layouts: Any = None,
    check_vma: bool = True,
    grad: int | tuple[int, ...] | None = None,
    grads: Literal["summed", "pending"] = "summed",
    structure: Structure = "rank-invariant",
    axis_names: Collection[str] | None = None,
) -> LayoutReport:
    """Checks that `f` computes the same on a group of one and on the groups of `mesh`; needs no
    devices.

    Args:
      f: the per-rank function of positional arguments.
      *avals: its arguments; every leaf is a number, or has the *whole* array's `.shape` and
        `.dtype`.
      mesh: a Mesh, an AbstractMesh, or anything whose `.shape` maps axis names to sizes.
      in_layouts: a pytree prefix of the arguments (a tuple with an entry for each); by default
        what `f`'s annotations state, of the result too.
      out_layouts: a pytree prefix of the result. None infers the layouts and reports them: a
        result that a `psum` is missing of is then Partial, and no error.
      check_vma: the flag of `jax.shard_map` that the program will run with; it decides what the
        gradient of `psum` is.
      grad: positions of arguments whose gradients, as `jax.grad` inside the function makes them,
        are checked with the function. A function of one scalar result is differentiated itself;
        others are with a cotangent for each result.
      grads: what the gradient of a Replicated argument is to be: `"summed"`, Replicated, or
        `"pending"`, a Partial sum that somebody else reduces. The gradient of a Sliced argument is
        Sliced, of a Partial one Replicated.
      structure: `"rank-dependent"` for a program that takes another path for every number of
        ranks, such as a ring, which cannot be proved: it is run with random arguments on one rank
        and on the mesh's, on one device, and the report says that it was tested. `out_layouts` is
        needed.
      axis_names: the axes of which `f` is one rank, as for `jax.shard_map`; over the others `f`
        sees whole arrays, and calls `jax.shard_map` itself. An empty set is for a whole program. By
        default all. A shard_map inside that was given a mesh of these axes is traced for others of
        its sizes, too.

    Returns:
      The program with the layout of each value.

    Raises:
      LayoutError: with everything that is wrong with the program.
    """
    _require_call(f, avals)
    if in_layouts is None:
        in_layouts, stated = bind_annotations(f, avals)
        out_layouts = stated if out_layouts is None else out_layouts
    program = _program(f, avals, mesh, in_layouts, check_vma, axis_names)
    narrowed = narrowed_notes(program, jax.tree.leaves(avals))
    if structure == "rank-dependent":
        if grad is not None:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                "grad= needs a program that can be proved, not structure='rank-dependent'",
                fixes=("test a function that calls jax.grad inside",),
            )
        report = tested(program, out_layouts)
        return replace(report, notes=(*report.notes, *narrowed))
    if structure != "rank-invariant":
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"structure is {structure!r}, not 'rank-invariant' or 'rank-dependent'",
        )
    proof = prove(program, out_layouts)
    names = program.results(proof.alone)
    notes = (*program_notes(program, proof.alone), *narrowed)
    notes = (*notes, *pending_notes(names, proof.outs, out_layouts))
    if grad is not None:
        types = [var.aval for var in proof.alone.outvars]
        _require_cotangents(proof)
        avals = program.avals
        unit = with_gradients(f, avals, grad, grads, program.layouts, types, proof.outs)
        plain, program = program, _with_gradients(program, unit)
        try:
            proof = prove(program, list(unit.out_layouts))
        except LayoutError as error:
            summed = with_gradients(f, avals, grad, "summed", plain.layouts, types, proof.outs)
            cure = gradient_cure(check_vma, grads, lambda: _summed_by_jax(plain, summed))
            raise _noted(error, check_vma, cure) from error.__cause__
        names, notes = unit.out_names, (*notes, gradient_note(check_vma))
    return LayoutReport(
        sizes=proof.groups,
        in_layouts=program.layouts,
        out_layouts=proof.outs,
        check_vma=check_vma,
        in_names=program.names,
        in_types=type_texts(jax.tree.leaves(program.avals)),
        out_names=names,
        out_types=type_texts(proof.out_types),
        notes=(*notes, *proof.result.assumptions),
        assumed=len(proof.result.assumptions),
        source=proof.result.source,
    )


def _require_cotangents(proof: Proof) -> None:
    for at, (var, own) in enumerate(zip(proof.alone.outvars, proof.out_types, strict=True)):
        if tuple(var.aval.shape) != own.shape:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"grad=: result {at} is a block of {tuple(var.aval.shape)} that was passed on, of "
                "which a group of one has no gradient",
                fixes=("check the gradient of a function that reduces it, or passes it back",),
            )


def _program(
    f: Callable[..., Any],
    avals: tuple[Any, ...],
    mesh: Any,
    in_layouts: Any,
    check_vma: bool,
    axis_names: Collection[str] | None,
) -> Program:
    sizes = mesh_sizes(mesh)
    ours = manual_axes(axis_names, sizes)
    parameters = argument_names(f, [0] * len(avals))
    flat = flatten_layouts(in_layouts, tuple(avals), tuple(sizes), "in_layouts", parameters)
    avals = jax.tree.map(_type_of, tuple(avals))
    leaves = jax.tree.leaves(avals)
    layouts = tuple(positive(layout, leaf) for layout, leaf in zip(flat, leaves, strict=True))
    names = argument_names(f, avals)
    for layout, name, leaf in zip(layouts, names, leaves, strict=True):
        _one_pending(layout, name, leaf)
        require_whole_over(set(sizes).difference(ours), layout, f"argument '{name}'")
    return Program(f, avals, layouts, tuple(names), sizes, check_vma, ours)


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    try:
        return array_type(leaf)
    except (OverflowError, TypeError) as error:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"check takes arrays, numbers or types of arrays, not {leaf!r}",
            because=str(error),
            fixes=("jax.ShapeDtypeStruct(shape, dtype) with the whole shape",),
        ) from None


def _require_call(f: Callable[..., Any], avals: tuple[Any, ...]) -> None:
    """Refuses arguments that `f` cannot be called with, and an `f` of global arrays."""
    if not callable(f):
        raise LayoutError("LAYOUT_ARGUMENT", f"check takes a per-rank function, not {f!r}")
    if callable(getattr(f, "local", None)) and hasattr(f, "schedule"):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{function_name(f)} is a function of global arrays that jaxcc.typed made",
            because="check takes the per-rank function",
            fixes=(
                f"{function_name(f)}.check(*avals), which knows its layouts",
                f"check({function_name(f)}.local, ...) for other layouts",
            ),
        )
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*avals)
    except TypeError as error:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{function_name(f)}{signature} cannot be called with {len(avals)} arguments: {error}",
            fixes=("give check one array type for each positional argument",),
        ) from None


def _with_gradients(program: Program, unit: Unit) -> Program:
    return replace(
        program,
        f=unit.f,
        avals=(*program.avals, *unit.avals),
        layouts=(*program.layouts, *unit.in_layouts),
        names=(*program.names, *unit.in_names),
        out_names=unit.out_names,
    )


def _summed_by_jax(plain: Program, summed: Unit) -> bool:
    """Whether the program passes with summed gradients under check_vma=True."""
    program = replace(_with_gradients(plain, summed), check_vma=True)
    return passes(program, list(summed.out_layouts))


def _noted(error: LayoutError, check_vma: bool, cure: str | None) -> LayoutError:
    """The error of a program with its gradients, with what the flag means for them.

    `cure` mends the gradients without a change to the function, which is right by itself.
    """
    note = gradient_note(check_vma)
    return LayoutError.of(
        tuple(
            replace(
                one,
                because=f"{one.because}; {note}" if one.because else note,
                fixes=(cure,) if cure and one.code == "LAYOUT_SCALE" else one.fixes,
            )
            for one in error.findings
        )
    )


def mesh_sizes(mesh: Any) -> dict[str, int]:
    """Ranks along each axis of a mesh."""
    shape: Any = getattr(mesh, "shape", mesh)
    if not isinstance(shape, Mapping) or not shape:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"mesh has to be a jax Mesh or AbstractMesh with an axis, not {mesh!r}",
        )
    sizes = cast(Mapping[Any, Any], shape)
    for axis, n in sizes.items():
        if not isinstance(n, (int, np.integer)) or n < 1:
            raise LayoutError(
                "LAYOUT_ARGUMENT", f"mesh has {n!r} ranks along '{axis}', not a number from 1"
            )
    return {str(axis): int(n) for axis, n in sizes.items()}


def manual_axes(axis_names: Collection[str] | None, sizes: Mapping[str, int]) -> frozenset[str]:
    """The axes of which a function is one rank."""
    if axis_names is None:
        return frozenset(sizes)
    known = ", ".join(map(repr, sizes))
    if not isinstance(axis_names, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"axis_names is {axis_names!r}, not a set of axes of the mesh: {known}",
        )
    ours = [axis_names] if isinstance(axis_names, str) else list(axis_names)
    for axis in ours:
        if axis not in list(sizes):
            raise LayoutError("LAYOUT_AXIS", f"axis_names has {axis!r}, and the mesh {known}")
    return frozenset(ours)


def require_whole_over(axes: Collection[str], layout: LayoutMap, name: str) -> None:
    """Refuses a layout that says something of axes of which the function is not one rank."""
    for axis in sorted(axes):
        if layout[axis] != Replicated:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"{name} is {layout[axis]!r} over '{axis}', which axis_names= leaves out",
                because=f"the function sees whole arrays along '{axis}'",
                fixes=(
                    f"add '{axis}' to axis_names=",
                    f"leave it Replicated over '{axis}': a shard_map inside slices it",
                ),
            )


def _one_pending(layout: LayoutMap, name: str, leaf: Any) -> None:
    ops = {one.op for one in layout.values() if isinstance(one, Partial)}
    if ops and is_key(leaf):
        raise LayoutError("LAYOUT_ARGUMENT", f"{name} is {layout!r}: keys have no {ops.pop()}")
    if len(ops) > 1:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name} is {layout!r}: pending reductions of two kinds have no order",
        )
