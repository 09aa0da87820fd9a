"""Fuses any optax transformation made of elementwise work and whole reductions with the gradients'
mean over the ranks and the parameters' all-gather.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh

from jaxcc.layout import BackendError, CodegenError, LayoutError, being_checked
from jaxcc.optim._arguments import Arguments, ranks_of
from jaxcc.optim._kernel import ClassProgram, PhaseKernel
from jaxcc.optim._owners import SHARED
from jaxcc.optim._plan import Work
from jaxcc.optim._run import Execution
from jaxcc.optim._state import AnyMesh, StateForm, mesh_or_current
from jaxcc.optim._trace import Traced, traced_update
from jaxcc.optim._transformation import FusedTransformation
from jaxcc.schedule import warn_unfused


def fuse(
    tx: optax.GradientTransformation,
    *,
    axis_name: str,
    mesh: AnyMesh | None = None,
    master: Any = None,
) -> FusedTransformation:
    """`tx` on the mean of the ranks' gradients, its state sliced over the ranks, its update one
    kernel with the reduction and the all-gather.

    A reduction over all elements of a parameter (a norm, to clip by or to scale with) ends a
    kernel: its numbers are exchanged, and the next kernel goes on from slices.

    Args:
      tx: an optax transformation; what it does to arrays of a parameter's shape must be elementwise
        or reduce all of it.
      axis_name: the mesh axis whose ranks each hold a part of the batch.
      mesh: the mesh that it runs on; by default that of `jax.set_mesh`. An AbstractMesh is enough
        for `jaxcc.check`.
      master: a dtype such as `jnp.float32`: the state then has a slice of the parameters in it,
        which is updated in it, and rounded to the parameters' own dtype.

    Returns:
      A transformation whose state is `tx`'s with flat slices, [ceil(size / n)] on each rank; of
      large parameters (1024 elements on a rank) that n does not divide, the next multiple of 32.
      Without a C++ compiler, or on devices that are not CPU devices of this process, it computes
      the same by XLA's collectives.

    Raises:
      LayoutError: OPTIM_ARGUMENT if an argument is not as above; and when it is first run,
        OPTIM_UNSUPPORTED for other transformations.
    """
    _check(tx, mesh)
    form = StateForm(optax.with_extra_args_support(tx), axis_name, _dtype_of(master))
    return FusedTransformation.make(Fused(form, mesh))


def _check(tx: Any, mesh: Any) -> None:
    problem, fix = "", ""
    if isinstance(tx, FusedTransformation):
        problem, fix = "the transformation is fused already", "fuse the whole chain, once"
    # optax has some that are no GradientTransformation, such as MultiSteps.
    elif not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
        problem = f"{tx!r} is no optax transformation"
        fix = "jaxcc.optim.fuse(optax.adam(1e-3), axis_name=...)"
    elif mesh is not None and not isinstance(mesh, Mesh | AbstractMesh):
        problem, fix = f"mesh is {mesh!r}, not a mesh", "mesh=jax.make_mesh((n,), (axis_name,))"
    if problem:
        raise LayoutError("OPTIM_ARGUMENT", problem, fixes=(fix,))


def _dtype_of(master: Any) -> Any:
    if master is None:
        return None
    try:
        dtype = jnp.dtype(master)
    except TypeError:
        dtype = None
    problem = ""
    if dtype is None or not jnp.issubdtype(dtype, jnp.floating):
        problem = "not a floating-point dtype"
    elif jax.dtypes.canonicalize_dtype(dtype) != dtype:
        problem = "which JAX does not have without jax_enable_x64"
    if problem:
        raise LayoutError(
            "OPTIM_ARGUMENT",
            f"master is {dtype or repr(master)}, {problem}",
            fixes=("master=jnp.float32 keeps f32 slices of the parameters",),
        )
    return dtype


class Fused:
    """The functions of a fused transformation."""

    def __init__(self, form: StateForm, mesh: AnyMesh | None) -> None:
        self.form = form
        self._mesh = mesh
        self._traced: dict[Any, Traced] = {}
        self._calls: dict[Any, PhaseKernel | None] = {}

    def mesh(self) -> AnyMesh:
        return mesh_or_current(self._mesh)

    def step(self, grads: Any, state: Any, params: Any, extra: Mapping[str, Any]) -> Any:
        """New parameters and state."""
        return self._run(grads, state, params, extra, apply=True)

    def update(self, grads: Any, state: Any, params: Any, extra: Mapping[str, Any]) -> Any:
        """Updates and state."""
        if self.form.master is None:
            return self._run(grads, state, params, extra, apply=False)
        new, state = self._run(grads, state, params, extra, apply=True)
        # In the master's dtype the difference of two rounded numbers is exact, or nearly so.
        wide = self.form.master
        return jax.tree.map(lambda n, p: n.astype(wide) - p.astype(wide), new, params), state

    def _run(
        self, grads: Any, state: Any, params: Any, extra: Mapping[str, Any], *, apply: bool
    ) -> Any:
        axis = self.form.axis
        ranks = ranks_of(axis)
        given = Arguments.of(self.form, grads, state, params, extra)
        given.check(axis, ranks)
        traced = self._trace(given, apply)
        arrays = dict(zip(traced.means, given.grads, strict=True))
        pairs = zip(traced.params, given.params or (), strict=True)
        arrays |= {v: x for v, x in pairs if v is not None}
        arrays |= dict(zip(traced.state, given.state, strict=True))
        arrays |= dict(zip(traced.extra, given.extra, strict=True))
        execution = Execution(arrays, given.grads, axis)
        execution.run(traced.plan, self._call)
        out = traced.outputs
        new = [execution.result(v, n) for n, v in enumerate(out.params)]
        kept = [
            execution.shared(out.shared[n])
            if owner == SHARED
            else execution.slot(out.slots[n], owner)
            for n, owner in enumerate(given.owners)
        ]
        return given.tree.unflatten(new), given.state_tree.unflatten(kept)

    def _trace(self, given: Arguments, apply: bool) -> Traced:
        key = (given.key, apply)
        if key not in self._traced:
            self._traced[key] = traced_update(self.form, given, apply=apply)
        return self._traced[key]

    def _call(self, classes: Sequence[Sequence[Work]]) -> PhaseKernel | None:
        """The kernel for these works, in classes of those that are alike; None where the checker
        looks on, and, after one warning, where there cannot be one.
        """
        if being_checked():
            return None
        mesh, axis = self.mesh(), self.form.axis
        self._check_mesh(mesh)
        key = (*((works[0].text, ClassProgram(works, axis).own) for works in classes), mesh)
        if key not in self._calls:
            try:
                self._calls[key] = PhaseKernel(classes, axis, mesh)
            except (CodegenError, BackendError) as error:
                warn_unfused(error)
                self._calls[key] = None
        return self._calls[key]

    def _check_mesh(self, mesh: AnyMesh) -> None:
        axis = self.form.axis
        made, here = mesh.shape.get(axis), ranks_of(axis)
        if made != here:
            there = f"{made} ranks along" if made else "no axis"
            raise LayoutError(
                "OPTIM_AXIS",
                f"this optimizer's mesh has {there} '{axis}', and the enclosing jax.shard_map "
                f"{here} ranks",
                fixes=(
                    "make the optimizer, and its state, with the mesh of that jax.shard_map: mesh=",
                ),
            )
