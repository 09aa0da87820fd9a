"""`jaxcc.typed`: a per-rank function with layouts, checked before it first runs on given shapes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from types import MethodType
from typing import Any, overload

import jax

from jaxcc import _compat, _reference
from jaxcc._arguments import Call, Signature
from jaxcc._arrays import type_of_argument, unstacked
from jaxcc.layout import (
    LayoutError,
    LayoutReport,
    ScheduleError,
    argument_names,
    bind_annotations,
    bind_shapes,
    check,
    flatten_layouts,
    function_name,
)
from jaxcc.schedule import Compiled, Schedule, Source
from jaxcc.schedule.tuner import Options, Profile, Tuned, tune

_NO_ARRAY = ("name it in static_argnames= of jaxcc.typed if only Python reads it",)
_NO_INSTANCE = (
    "static_argnames='{name}' in jaxcc.typed, as in jax.jit: what the method reads of it is then "
    "constant for each instance",
    "make its class a pytree (jax.tree_util.register_dataclass), and give its arrays layouts",
)


class TypedFunction:
    """A per-rank function whose layouts are checked; made by `jaxcc.typed`.

    Calling it runs it on every rank of its mesh, on global arrays, over or under `jax.jit`,
    `jax.grad` and `jax.vmap`. The check runs once for each combination of shapes. In a class it
    is a method, whose instance is its first argument.
    """

    __module__ = "jaxcc"

    def __init__(
        self,
        f: Callable[..., Any],
        mesh: Any,
        in_layouts: Any,
        out_layouts: Any,
        check_vma: bool,
        static_argnums: int | Iterable[int] | None = None,
        static_argnames: str | Iterable[str] | None = None,
    ) -> None:
        self.__name__ = function_name(f)
        functools.update_wrapper(self, f)
        self._f = f
        self._mesh = mesh
        self._in_layouts = in_layouts
        self._out_layouts = out_layouts
        self._check_vma = check_vma
        self._instance: tuple[Any, ...] = ()
        self._signature = Signature(f, static_argnums, static_argnames)
        self._sources: dict[Any, tuple[Source, LayoutReport]] = {}
        self._compiled: dict[Any, Compiled] = {}

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", self.__name__)
        given = self._signature.parameters[len(self._instance) :]
        return f"<jaxcc.TypedFunction {name}({', '.join(given)})>"

    def __get__(self, instance: Any, owner: type | None = None) -> TypedFunction:
        """The method of an instance; what was checked and compiled is shared by all."""
        if instance is None:
            return self
        method = copy.copy(self)
        method._instance = (instance,)
        # What `inspect.signature` and the checker read parameters from.
        functools.update_wrapper(method, MethodType(self._f, instance), updated=())
        return method

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

    def over(self, mesh: Any) -> TypedFunction:
        """The same function over another mesh, for instance an `AbstractMesh` to check it for."""
        other = copy.copy(self)
        other._mesh = _mesh(mesh)
        return other

    def bind(self, *args: Any, **kwargs: Any) -> Call:
        """A call with these arguments, as a function of its arrays alone.

        Raises:
          LayoutError: they do not fit the parameters, or a static one is not hashable.
        """
        return self._signature.bind((*self._instance, *args), kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for global arrays; a Local or Partial one has a leading dimension of the
        group's size.

        Arrays that lie otherwise than their layouts say are moved first, as by `jax.jit`;
        `jaxcc.put` places them beforehand.
        """
        call = self.bind(*args, **kwargs)
        source, _ = self._source(call, stacked=True)
        source.require_devices()
        key = id(source)
        if key not in self._compiled:
            self._compiled[key] = Schedule(source).compile("xla")
        return self._compiled[key](*call.args)

    @property
    def local(self) -> Callable[..., Any]:
        """The function itself, of per-rank arrays, for use inside a `shard_map` of your own; it is
        not checked. A method's instance is its first argument if that is not static.
        """
        bound = self._instance and self._signature.is_static(self._signature.parameters[0])
        return MethodType(self._f, *self._instance) if bound else self._f

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """What the promise is held against: the same function on a group of one, with the whole
        arrays.

        A group of one cannot hold `Local` inputs; with them all ranks are computed on one device.
        """
        call = self.bind(*args, **kwargs)
        source, _ = self._source(call, stacked=True)
        return _reference.run(source, call.args)

    def check(self, *avals: Any, **kwargs: Any) -> LayoutReport:
        """The layout report for arguments of these whole shapes.

        Raises:
          LayoutError: the function does not compute the same on one rank and on several.
        """
        return self._source(self.bind(*avals, **kwargs), stacked=False)[1]

    def schedule(self, *avals: Any, **kwargs: Any) -> Schedule:
        """The checked program for arguments of these whole shapes, ready for verbs.

        What it compiles to takes the arrays alone: static arguments are a part of it.
        """
        return Schedule(self._source(self.bind(*avals, **kwargs), stacked=False)[0])

    def autotune(
        self,
        *args: Any,
        budget_s: float = 60.0,
        slice: str | Iterable[str] = (),
        dead: str | Iterable[str] = (),
        donate: str | Iterable[str] = (),
        backend: str = "auto",
        profile: Profile | str | None = None,
        rtol: float | None = None,
        cache: bool = True,
        progress: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> Tuned:
        """The fastest schedule for arguments like these that is found within `budget_s` seconds.

        Schedules are enumerated, ranked by a cost model, verified, compiled, held against
        `reference` and timed in turns. The program as it was written is always among them. The
        winner is kept on disk, for this program, shapes, mesh and machine.

        Args:
          args, kwargs: global arrays, as for a call; what is in them is used to check results.
          budget_s: seconds for all of it. What has begun is finished, and every schedule that was
            compiled is timed once at least.
          slice: names of inputs and results that may become Sliced, such as an optimizer's state.
          dead: names of results that nobody reads: they are None, and are not computed.
          donate: names of inputs whose buffers a call may take for its results; runs get copies.
          backend: as for `Schedule.compile`.
          profile: the machine to rank by, its name (`dgx2`, `h100`, `h200`, `cpu`) or a file with
            one; by default what `jaxcc tune --profile` measured here, or the nearest that jaxcc
            knows.
          rtol: the largest difference from the reference that is taken for rounding, relative to
            the largest magnitude of a result; by default by the program's narrowest dtype.
          cache: whether to look for an earlier run's winner, and to keep this one's.
          progress: hears what is being done.

        Raises:
          LayoutError: the function does not compute the same on one rank and on several.
          ScheduleError: SCHEDULE_WRONG_RESULT, if already the program as it was written differs
            from its reference; SCHEDULE_ARGUMENT, if an option is not as above.
          BackendError: there is no such backend, or the mesh has no devices.
          TableError: there is no such profile.
        """
        call = self.bind(*args, **kwargs)
        for i, x in enumerate(jax.tree.leaves(call.args)):
            if isinstance(x, jax.ShapeDtypeStruct):
                raise ScheduleError(
                    "SCHEDULE_ARGUMENT",
                    f"autotune runs {self._name_of(call, i)}, which is a type",
                    fixes=("pass an array; schedule and check take types",),
                )
        source, _ = self._source(call, stacked=True)
        return tune(
            Schedule(source),
            call.args,
            lambda: _reference.run(source, call.args),
            Options(budget_s, slice, dead, donate, backend, profile, rtol, cache, progress),
        )

    def _source(self, call: Call, *, stacked: bool) -> tuple[Source, LayoutReport]:
        """The checked function for these arguments; `stacked` ones have the leading dimensions of
        global arrays.
        """
        try:
            # The messages say where in the user's code; our frames would only hide it.
            mesh = self.mesh
            leaves, tree = jax.tree.flatten(call.args)
            given = tuple(
                type_of_argument(x, lambda i=i: self._name_of(call, i), self._fixes(x))
                for i, x in enumerate(leaves)
            )
            key = (call.static, tree, given, stacked, mesh)
            if key not in self._sources:
                self._sources[key] = self._checked(mesh, call, tree, given, stacked)
        except LayoutError as error:
            raise error.with_traceback(None) from error.__cause__
        return self._sources[key]

    def _fixes(self, x: Any) -> tuple[str, ...]:
        """What to do where `x` is no array."""
        if any(x is one for one in self._instance):
            return tuple(fix.format(name=self._signature.parameters[0]) for fix in _NO_INSTANCE)
        return _NO_ARRAY

    def _name_of(self, call: Call, leaf: int) -> str:
        return f"argument '{argument_names(call.f, call.args)[leaf]}' of {self.__name__}"

    def _checked(
        self, mesh: Any, call: Call, tree: Any, given: Sequence[Any], stacked: bool
    ) -> tuple[Source, LayoutReport]:
        axes = tuple(mesh.shape)
        args = jax.tree.unflatten(tree, given)
        parameters = [name for _, name in call.parameters]
        if self._in_layouts is None:
            in_layouts, out_layouts = bind_annotations(call.f, args)
            if self._out_layouts is not None:
                out_layouts = self._out_layouts
        else:
            in_layouts = self._signature.layouts(self._in_layouts, call)
            out_layouts = self._out_layouts
        flat = flatten_layouts(in_layouts, args, axes, "in_layouts", parameters)
        names = argument_names(call.f, args)
        if stacked:
            sizes = dict(mesh.shape)
            given = [
                unstacked(x, layout, sizes, name)
                for x, layout, name in zip(given, flat, names, strict=True)
            ]
        avals = jax.tree.unflatten(tree, given)
        bind_shapes(call.f, avals)
        report = check(
            call.f,
            *avals,
            mesh=mesh,
            in_layouts=jax.tree.unflatten(tree, flat),
            out_layouts=out_layouts,
            check_vma=self._check_vma,
        )
        source = Source(
            call.f,
            avals,
            mesh,
            tuple(names),
            tuple(report.in_layouts),
            tuple(report.out_layouts),
            self._check_vma,
        )
        return source, report


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
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Callable[[Callable[..., Any]], TypedFunction]: ...


def typed(
    f: Callable[..., Any] | None = None,
    /,
    *,
    mesh: Any = None,
    in_layouts: Any = None,
    out_layouts: Any = None,
    check_vma: bool = True,
    static_argnums: int | Iterable[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
) -> Any:
    """Decorates a per-rank function with layouts.

    Args:
      mesh: a `jax.sharding.Mesh`, or an `AbstractMesh` to check without devices; by default that of
        `jax.set_mesh`.
      in_layouts: a tuple with a layout (or a pytree prefix of layouts) for each parameter that is
        not static, a dict of them by parameter, or one layout for all; by default from
        `Annotated[...]` parameters.
      out_layouts: the same for the result; by default the layouts that the checker infers, so that
        a result that a `psum` is missing of is Partial, and no error.
      check_vma: the flag that `jax.shard_map` runs with; it decides what the derivative of `psum`
        is.
      static_argnums, static_argnames: the parameters that are no arrays, as for `jax.jit`: the
        function is checked for each of their values, which have to be hashable.

    Arguments that a call leaves out keep their defaults, as constants. Of a method in a class, the
    instance is the first parameter: static (`static_argnames="self"`), so that what the method
    reads of it is constant for each instance, or a pytree with layouts.

    Raises:
      LayoutError: on the first call with new shapes, if the function does not compute the same on
        one rank and on N.
    """
    mesh = None if mesh is None else _mesh(mesh)

    def decorate(function: Callable[..., Any]) -> TypedFunction:
        return TypedFunction(
            function, mesh, in_layouts, out_layouts, check_vma, static_argnums, static_argnames
        )

    return decorate if f is None else decorate(f)


def _mesh(mesh: Any) -> Any:
    if isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return mesh
    raise LayoutError(
        "LAYOUT_ARGUMENT",
        f"typed: mesh is {mesh!r}, not a jax.sharding.Mesh or AbstractMesh",
        fixes=('mesh = jax.make_mesh((2,), ("tp",))',),
    )
