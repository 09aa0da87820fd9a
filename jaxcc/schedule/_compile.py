"""Compiles a schedule: fused operations become kernel calls, or their parts where there is no
kernel.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax import lax

from jaxcc import _compat
from jaxcc.layout import BackendError, CodegenError, LayoutMap, ScheduleError
from jaxcc.program import Op, Program, everywhere, run, type_text
from jaxcc.schedule._chunked import in_chunks
from jaxcc.schedule._fallback import warn_unfused
from jaxcc.schedule._fused import FusedCall
from jaxcc.schedule._place import place, shard_mapped, sharding_of
from jaxcc.schedule._source import Source

BACKENDS = ("auto", "host", "xla")

PerRank = Callable[..., list[Any]]


class Compiled:
    """A scheduled program, ready to run.

    Calling it takes and returns global arrays, laid out as `program.in_layouts` and
    `program.out_layouts` say. `local` is the same per rank, for use inside a `shard_map` of your
    own. Both have the source's derivative, in reverse mode; under `vmap` kernels run once for each
    element of the batch.

    Attributes:
      backend: `host` or `xla`, whichever it runs on.
      program: what it runs.
    """

    def __init__(
        self,
        source: Source,
        program: Program,
        calls: Mapping[str, FusedCall],
        donate: Sequence[str],
        scheduled: bool,
    ) -> None:
        self.program = program
        self.backend = "host" if calls else "xla"
        self._source = source
        if scheduled or not source.has_declared_types:
            self._per_rank = _differentiable(source, program, calls)
        else:
            # The function itself, so that every transformation that it has works.
            self._per_rank = lambda *leaves: source.flat(leaves)
        self._donated = tuple(i for i, name in enumerate(program.inputs) if name in donate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for global arrays with the structure, shapes and dtypes that were compiled.

        Raises:
          ScheduleError: an argument differs from what was compiled, or a scheduled program is
            differentiated in forward mode.
          BackendError: BACKEND_NO_DEVICES if it was compiled for an AbstractMesh.
        """
        self._source.require_devices()
        leaves = self._leaves(self._source.positional(args, kwargs), self._global_types)
        placed = map(place, leaves, self._shardings)
        with _reverse_mode_only(self.program.name):
            return jax.tree.unflatten(self.program.out_tree, self._mapped(*placed))

    def local(self, *args: Any, **kwargs: Any) -> Any:
        """The result on one rank, for per-rank arrays, inside `shard_map` over the same axes.

        Raises:
          ScheduleError: an argument differs from what was compiled, or the axes have other sizes.
          BackendError: BACKEND_AXIS if they are not bound here.
        """
        self._check_axes()
        leaves = self._leaves(self._source.positional(args, kwargs), self.program.in_types)
        with _reverse_mode_only(self.program.name):
            return jax.tree.unflatten(self.program.out_tree, self._per_rank(*leaves))

    def _check_axes(self) -> None:
        for axis, made in self._source.sizes.items():
            try:
                here = lax.axis_size(axis)
            except NameError:
                raise BackendError(
                    "BACKEND_AXIS",
                    f"{self.program.name} runs over '{axis}', and no such mesh axis is bound here",
                    fixes=(
                        "call local inside jax.shard_map over a mesh with the axis",
                        "call the compiled program itself on global arrays",
                    ),
                ) from None
            if here != made:
                raise ScheduleError(
                    "SCHEDULE_ARGUMENT",
                    f"{self.program.name} was compiled for {made} ranks along '{axis}', and there "
                    f"are {here} here",
                    fixes=("schedule and compile it for this mesh, too",),
                )

    def lower(self) -> Any:
        """The lowered computation, as `jax.jit(f).lower(...)` gives it."""
        return self._mapped.lower(*self._global_types)

    @functools.cached_property
    def _global_types(self) -> list[jax.ShapeDtypeStruct]:
        """Of each leaf, with its leading dimensions for Local and Partial axes."""
        sizes = self._source.sizes
        return [
            jax.ShapeDtypeStruct((*(sizes[a] for a in layout.stacked_axes()), *t.shape), t.dtype)
            for layout, t in zip(self.program.in_layouts, self._source.leaves(), strict=True)
        ]

    @functools.cached_property
    def _shardings(self) -> list[Any]:
        mesh = self._source.mesh
        return [
            sharding_of(layout, ndim, mesh)
            for layout, ndim in zip(self.program.in_layouts, self._in_ndims, strict=True)
        ]

    @functools.cached_property
    def _in_ndims(self) -> list[int]:
        return [len(x.shape) for x in self._source.leaves()]

    @functools.cached_property
    def _mapped(self) -> Any:
        program = self.program
        mapped = shard_mapped(
            self._per_rank,
            self._source.mesh,
            program.in_layouts,
            self._in_ndims,
            program.out_layouts,
            [len(t.shape) for t in program.out_types()],
            check_vma=self._source.check_vma,
        )
        return jax.jit(mapped, donate_argnums=self._donated)

    def _leaves(self, args: tuple[Any, ...], types: Sequence[jax.ShapeDtypeStruct]) -> list[Any]:
        """The leaves of the arguments; a kernel would read others past their ends."""
        leaves, tree = jax.tree.flatten(args)
        wanted = jax.tree.structure(self._source.avals)
        if tree != wanted:
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"{self.program.name} was compiled for arguments {wanted}, not {tree}",
            )
        for x, t, name in zip(leaves, types, self.program.inputs, strict=True):
            try:
                shape, dtype = _compat.type_of(x)
                given = type_text(jax.ShapeDtypeStruct(shape, dtype))
            except TypeError:
                shape, dtype, given = None, None, f"{x!r}, which is no array"
            if (shape, dtype) != (t.shape, t.dtype):
                raise ScheduleError(
                    "SCHEDULE_ARGUMENT",
                    f"{self.program.name} was compiled for {name}: {type_text(t)}, not {given}",
                    fixes=("schedule and compile it for these shapes and dtypes, too",),
                )
        return leaves


@contextlib.contextmanager
def _reverse_mode_only(name: str) -> Iterator[None]:
    """Says what to do instead of forward mode."""
    try:
        yield
    except TypeError as error:
        if "forward-mode autodiff" not in str(error):
            raise
        raise ScheduleError(
            "SCHEDULE_FORWARD_MODE",
            f"{name}, scheduled, is differentiated in forward mode",
            because="its derivative is that of the function that was scheduled, by a rule for "
            "reverse mode",
            fixes=(
                "jax.grad, jax.vjp or jax.jacrev of it",
                "jax.jvp or jax.jacfwd of the typed function itself",
            ),
        ) from error


def _differentiable(source: Source, program: Program, calls: Mapping[str, FusedCall]) -> PerRank:
    """The per-rank program on leaves; its derivative is that of the source, which has the user's
    own rules.
    """

    def fused(op: Op, given: list[Any]) -> list[Any]:
        return calls[op.name](given)

    @jax.custom_vjp
    def scheduled(*leaves: Any) -> list[Any]:
        runner = fused if calls else None
        return run(program, leaves, fused=runner, check_vma=source.check_vma)

    def forward(*leaves: Any) -> tuple[list[Any], Any]:
        return scheduled(*leaves), leaves

    def backward(leaves: Any, cotangents: list[Any]) -> Any:
        _, pullback = jax.vjp(lambda *x: original(x), *leaves)
        return pullback(cotangents)

    returned = tuple(source.out_layouts[leaf] for leaf in program.results)
    same = (program.in_layouts, program.out_layouts) == (source.in_layouts, returned)
    as_source = same and source.has_declared_types

    def original(leaves: Sequence[Any]) -> list[Any]:
        if not as_source:
            return run(everywhere(program), leaves, check_vma=source.check_vma)
        every = source.flat(leaves)
        return [every[leaf] for leaf in program.results]

    scheduled.defvjp(forward, backward)
    return scheduled


def require_backend(name: str) -> None:
    """Refuses what is no backend.

    Raises:
      BackendError: BACKEND_UNKNOWN.
    """
    if name not in BACKENDS:
        raise BackendError(
            "BACKEND_UNKNOWN", f"no backend '{name}'; there are {', '.join(BACKENDS)}"
        )


def compile_program(
    source: Source,
    program: Program,
    layouts: Mapping[str, LayoutMap | str],
    backend: str,
    donate: Sequence[str],
    mesh: Any,
    *,
    scheduled: bool,
) -> Compiled:
    """The program on the chosen backend; see `Schedule.compile`. `mesh` has the devices that
    kernels run on; a program that is not `scheduled` is its source.
    """
    require_backend(backend)
    for name in donate:
        if name not in program.inputs:
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"donate: {program.name} has no input '{name}'; it has {', '.join(program.inputs)}",
            )
    for axis, ranks in program.sizes.items():
        if mesh.shape.get(axis, ranks) != ranks:
            raise ScheduleError(
                "SCHEDULE_ARGUMENT",
                f"compile: mesh= has {mesh.shape[axis]} ranks along '{axis}', and {program.name} "
                f"was scheduled for {ranks}",
                fixes=("schedule it for that mesh",),
            )
    program, layouts = in_chunks(program, layouts)
    calls: dict[str, FusedCall] = {}
    for op in program.ops:
        if not op.has_kernel or backend == "xla":
            continue
        try:
            calls[op.name] = FusedCall.build(
                mesh, program, op, layouts, donate, check_vma=source.check_vma
            )
        except (CodegenError, BackendError) as error:
            if backend == "host":
                raise
            warn_unfused(error)
            return Compiled(source, program, {}, donate, scheduled)
    return Compiled(source, program, calls, donate, scheduled)
