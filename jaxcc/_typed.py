"""`jaxcc.typed`: a per-rank function with layouts, checked before it first runs on given shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, overload

import jax

from jaxcc import _compat, _reference
from jaxcc.layout import (
    BackendError,
    LayoutError,
    LayoutReport,
    argument_names,
    bind_annotations,
    check,
    flatten_layouts,
)
from jaxcc.schedule import Compiled, Schedule, Source, positional


class TypedFunction:
    """A per-rank function whose layouts are checked; made by `jaxcc.typed`.

    Calling it runs it on every rank of its mesh, on global arrays, over or under `jax.jit`,
    `jax.grad` and `jax.vmap`. The check runs once for each combination of shapes.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: Any,
        in_layouts: Any,
        out_layouts: Any,
        check_vma: bool,
    ) -> None:
        self.__name__ = getattr(f, "__name__", "the function")
        functools.update_wrapper(self, f)
        self._f = f
        self._mesh = mesh
        self._in_layouts = in_layouts
        self._out_layouts = out_layouts
        self._check_vma = check_vma
        self._sources: dict[Any, tuple[Source, LayoutReport]] = {}
        self._compiled: dict[Any, Compiled] = {}

    @property
    def mesh(self) -> Any:
        """The mesh given to `typed`, or the one set by `jax.set_mesh`."""
        if self._mesh is not None:
            return self._mesh
        mesh = _compat.current_mesh()
        if mesh.empty:
            raise LayoutError(
                "LAYOUT_NO_MESH",
                f"{self.__name__} has no mesh",
                fixes=("pass mesh= to jaxcc.typed, or call it under `with jax.set_mesh(mesh):`",),
            )
        return mesh

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for global arrays; a Local or Partial one has a leading dimension of the
        group's size.
        """
        args = positional(self._f, args, kwargs)
        source, _ = self._source(args, stacked=True)
        if isinstance(source.mesh, jax.sharding.AbstractMesh):
            raise BackendError(
                "BACKEND_NO_DEVICES",
                f"{self.__name__} was given an AbstractMesh, which has no devices to run on",
                fixes=("make the mesh with jax.make_mesh; an AbstractMesh serves to check only",),
            )
        key = id(source)
        if key not in self._compiled:
            self._compiled[key] = Schedule(source).compile("xla")
        return self._compiled[key](*args)

    def local(self, *args: Any) -> Any:
        """The function itself on per-rank arrays, for use inside a `shard_map` of your own; it is
        not checked.
        """
        return self._f(*args)

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """What the promise is held against: the same function on a group of one, with the whole
        arrays.

        A group of one cannot hold `Local` inputs; with them all ranks are computed on one device.
        """
        args = positional(self._f, args, kwargs)
        source, _ = self._source(args, stacked=True)
        return _reference.run(source, args)

    def check(self, *avals: Any, **kwargs: Any) -> LayoutReport:
        """The layout report for arguments of these whole shapes.

        Raises:
          LayoutError: the function does not compute the same on one rank and on several.
        """
        return self._source(positional(self._f, avals, kwargs), stacked=False)[1]

    def schedule(self, *avals: Any, **kwargs: Any) -> Schedule:
        """The checked program for arguments of these whole shapes, ready for verbs."""
        return Schedule(self._source(positional(self._f, avals, kwargs), stacked=False)[0])

    def _source(self, args: tuple[Any, ...], *, stacked: bool) -> tuple[Source, LayoutReport]:
        """The checked function for these arguments; `stacked` ones have the leading dimensions of
        global arrays.
        """
        mesh = self.mesh
        leaves, tree = jax.tree.flatten(args)
        shapes = tuple((tuple(jax.numpy.shape(x)), jax.numpy.result_type(x)) for x in leaves)
        key = (tree, shapes, stacked, mesh)
        if key not in self._sources:
            try:
                self._sources[key] = self._checked(mesh, tree, shapes, stacked)
            except LayoutError as error:
                # The message says where in the user's code; our frames would only hide it.
                raise error.with_traceback(None) from error.__cause__
        return self._sources[key]

    def _checked(
        self, mesh: Any, tree: Any, shapes: Any, stacked: bool
    ) -> tuple[Source, LayoutReport]:
        axes = tuple(mesh.shape)
        given = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        in_layouts, out_layouts = self._in_layouts, self._out_layouts
        args = jax.tree.unflatten(tree, given)
        if in_layouts is None:
            in_layouts, out_layouts = bind_annotations(self._f, args)
        parameters = argument_names(self._f, [0] * len(args))
        flat = flatten_layouts(in_layouts, args, axes, "in_layouts", parameters)
        names = argument_names(self._f, args)
        if stacked:
            sizes = dict(mesh.shape)
            given = [
                _unstacked(x, [sizes[a] for a in layout.stacked_axes()], name, layout.describe())
                for x, layout, name in zip(given, flat, names, strict=True)
            ]
        avals = jax.tree.unflatten(tree, given)
        report = check(
            self._f,
            *avals,
            mesh=mesh,
            in_layouts=jax.tree.unflatten(tree, flat),
            out_layouts=out_layouts,
            check_vma=self._check_vma,
        )
        source = Source(
            self._f,
            avals,
            mesh,
            tuple(names),
            tuple(report.in_layouts),
            tuple(report.out_layouts),
            self._check_vma,
        )
        return source, report


def _unstacked(
    x: jax.ShapeDtypeStruct, sizes: list[int], name: str, layout: str
) -> jax.ShapeDtypeStruct:
    """The whole shape of a global array, less the leading dimension per Local or Partial axis."""
    if list(x.shape[: len(sizes)]) != sizes:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"{name} is {layout}, so its global array starts with dimensions {tuple(sizes)}, "
            f"one entry per rank; its shape is {x.shape}",
            fixes=("stack the ranks' values along a new first dimension",),
        )
    return jax.ShapeDtypeStruct(x.shape[len(sizes) :], x.dtype)


@overload
def typed(f: Callable[..., Any], /) -> TypedFunction: ...


@overload
def typed(
    f: None = None,
    /,
    *,
    mesh: Any = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    check_vma: bool = True,
) -> Callable[[Callable[..., Any]], TypedFunction]: ...


def typed(
    f: Callable[..., Any] | None = None,
    /,
    *,
    mesh: Any = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    check_vma: bool = True,
) -> Any:
    """Decorates a per-rank function with layouts.

    Args:
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to check without devices; by default that of
        `jax.set_mesh`.
      in_layouts: a layout per argument (or a pytree of layouts); by default from `Annotated[...]`
        parameters.
      out_layouts: the same for the result; by default the layouts that the checker infers.
      check_vma: the flag that `jax.shard_map` runs with; it decides what the derivative of `psum`
        is.

    Raises:
      LayoutError: on the first call with new shapes, if the function does not compute the same on
        one rank and on N.
    """

    if not isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh | None):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"typed: mesh is {mesh!r}, not a jax.sharding.Mesh or AbstractMesh",
            fixes=('mesh = jax.make_mesh((2,), ("tp",))',),
        )

    def decorate(function: Callable[..., Any]) -> TypedFunction:
        return TypedFunction(function, mesh, in_layouts, out_layouts, check_vma)

    return decorate if f is None else decorate(f)
