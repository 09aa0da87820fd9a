"""The function that a schedule starts from, traced on demand at any group size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

from jaxcc import _compat
from jaxcc.layout import BackendError, LayoutError, LayoutMap, Replicated, Trace, trace
from jaxcc.program import Program, program_of


def positional(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a call of `f`, all positional, without defaults.

    Raises:
      LayoutError: they do not fit its parameters, or there are keyword-only ones.
    """
    name = getattr(f, "__name__", "the function")
    try:
        bound = inspect.signature(f).bind(*args, **kwargs)
    except TypeError as error:
        raise LayoutError("LAYOUT_ARGUMENT", f"{name}: {error}") from None
    if bound.kwargs:
        only = ", ".join(bound.kwargs)
        raise LayoutError("LAYOUT_ARGUMENT", f"{name}: no layout for keyword-only arguments {only}")
    return bound.args


@dataclass(frozen=True)
class Source:
    """A checked per-rank function with the shapes and layouts that it was checked for.

    Attributes:
      f: the per-rank function.
      avals: its positional arguments, leaves with whole shapes.
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` if the schedule is only printed.
      in_names, in_layouts: per leaf of `avals`.
      out_layouts: per leaf of the result.
      check_vma: the flag of `jax.shard_map` that the program was checked with and runs with.
    """

    f: Callable[..., Any]
    avals: tuple[Any, ...]
    mesh: Any
    in_names: tuple[str, ...]
    in_layouts: tuple[LayoutMap, ...]
    out_layouts: tuple[LayoutMap, ...]
    check_vma: bool

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.f, "__name__", "program")

    def require_devices(self) -> None:
        """Refuses a mesh that nothing can run on.

        Raises:
          BackendError: BACKEND_NO_DEVICES.
        """
        if isinstance(self.mesh, AbstractMesh):
            raise BackendError(
                "BACKEND_NO_DEVICES",
                f"{self.name} was given an AbstractMesh, which has no devices to run on",
                fixes=("make the mesh with jax.make_mesh; an AbstractMesh serves to check only",),
            )

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis of the mesh."""
        return dict(self.mesh.shape)

    @property
    def whole(self) -> dict[str, int]:
        """A group of one along each axis."""
        return dict.fromkeys(self.mesh.shape, 1)

    def leaves(self) -> list[jax.ShapeDtypeStruct]:
        """Whole shape and dtype of each leaf of the arguments."""
        return [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.tree.leaves(self.avals)]

    def positional(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call, all positional."""
        return args if not kwargs else positional(self.f, args, kwargs)

    def flat(self, leaves: Sequence[Any]) -> list[Any]:
        """The function on per-rank leaves; its result's leaves."""
        args = jax.tree.unflatten(jax.tree.structure(self.avals), leaves)
        return jax.tree.leaves(self.f(*args))

    @functools.cached_property
    def has_declared_types(self) -> bool:
        """Whether JAX, too, takes every Replicated result to be equal on all of several ranks."""
        traced = self._trace(self._mesh_of(self.sizes))
        return all(
            layout[axis] != Replicated
            for var, layout in zip(traced.outvars, self.out_layouts, strict=True)
            for axis in _compat.varying_axes(var.aval)
            if self.sizes[axis] > 1
        )

    def program(self, sizes: Mapping[str, int], *, mesh: AbstractMesh | None = None) -> Program:
        """The function as a program for groups of these sizes, to run on `mesh` if that is another
        than ours.
        """
        mesh = mesh or self._mesh_of(sizes)
        return program_of(
            self._trace(mesh),
            mesh,
            name=self.name,
            in_names=self.in_names,
            in_layouts=self.in_layouts,
            out_layouts=self.out_layouts,
        )

    def _trace(self, mesh: AbstractMesh) -> Trace:
        return trace(
            self.f,
            self.avals,
            self.in_layouts,
            mesh.shape,
            check_vma=self.check_vma,
            mesh=mesh,
        )

    def _mesh_of(self, sizes: Mapping[str, int]) -> AbstractMesh:
        types = (AxisType.Auto,) * len(sizes)
        if self.sizes == sizes:
            return self.mesh.abstract_mesh.update(axis_types=types)
        return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=types)
