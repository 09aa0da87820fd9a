"""Applies an elementwise update rule to a pytree of parameters whose state is sliced, as one fused
kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name as label
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxcc import _compat, runtime
from jaxcc.layout import BackendError, CodegenError, LayoutError, Local, Replicated, as_map, check
from jaxcc.optim._arguments import block_size, rows_of
from jaxcc.program import own_slice
from jaxcc.schedule import FusedCall, Schedule, Source, warn_unfused

Rule = Callable[..., tuple[Any, ...]]


def slices_like(params: Any, axis_name: str, mesh: Mesh | None) -> Any:
    """Zeros for this rank's flat slice of each leaf; outside `shard_map`, the global arrays of all
    slices.
    """
    try:
        ranks = lax.axis_size(axis_name)
    except NameError:
        return _global_slices(params, axis_name, mesh_or_current(mesh))

    def zeros(p: Any) -> Any:
        flat = jnp.zeros((block_size(p.size, ranks),), p.dtype)
        return lax.pcast(flat, (axis_name,), to="varying")

    return jax.tree.map(zeros, params)


def _global_slices(params: Any, axis_name: str, mesh: Mesh) -> Any:
    if axis_name not in mesh.shape:
        raise LayoutError(
            "OPTIM_AXIS", f"the mesh has no axis '{axis_name}'; it has {', '.join(mesh.shape)}"
        )
    ranks = mesh.shape[axis_name]
    sharding = NamedSharding(mesh, PartitionSpec(axis_name))
    return jax.tree.map(
        lambda p: jnp.zeros((ranks * block_size(p.size, ranks),), p.dtype, device=sharding), params
    )


def mesh_or_current(mesh: Mesh | None) -> Mesh:
    """The mesh, or that of `jax.set_mesh`."""
    current = mesh if mesh is not None else _compat.current_mesh()
    if current.empty:
        raise BackendError(
            "BACKEND_NO_MESH",
            "a fused optimizer needs to know which devices its axis runs over",
            fixes=("pass mesh= to the optimizer, or run under `with jax.set_mesh(mesh):`",),
        )
    return current


class FlatUpdate:
    """An elementwise rule over gradients that are averaged over the ranks, whole arrays and sliced
    state.

    `rule(mean, *whole, *slices, *scalars)` returns the result that every rank gets, and the new
    slices. It is traced once per dtype into a program that is checked, scheduled (split, reorder,
    as_slice, fuse) and compiled like any other.
    """

    def __init__(
        self,
        rule: Rule,
        whole: Sequence[str],
        slices: Sequence[str],
        axis_name: str,
        mesh: Mesh | None,
    ) -> None:
        self._rule = rule
        self._whole = tuple(whole)
        self._slices = tuple(slices)
        self._axis = axis_name
        self._mesh = mesh
        self._calls: dict[Any, FusedCall | None] = {}

    def __call__(
        self, grads: Any, whole: Sequence[Any], slices: Sequence[Any], scalars: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Pytrees of the result and of the new slices; inside `shard_map`."""
        rows, tree = rows_of(
            grads,
            dict(zip(self._whole, whole, strict=True)),
            dict(zip(self._slices, slices, strict=True)),
            self._axis,
        )
        results: list[Any] = [None] * len(rows)
        order = runtime.new_order()
        for i, row in enumerate(rows):
            if row["g"].size == 0:
                kept = (
                    row[self._whole[0]]
                    if self._whole
                    else jnp.zeros(row["g"].shape, row["g"].dtype)
                )
                results[i] = (kept, *(row[n] for n in self._slices))
        for dtypes, indices in _by_dtype(rows).items():
            chosen = [rows[i] for i in indices]
            order, made = self._update(dtypes, chosen, scalars, order)
            for i, one in zip(indices, made, strict=True):
                results[i] = one
        return tuple(
            jax.tree.unflatten(tree, [row[k] for row in results])
            for k in range(1 + len(self._slices))
        )

    def _update(
        self,
        dtypes: tuple[Any, ...],
        rows: list[dict[str, Any]],
        scalars: Sequence[Any],
        order: Any,
    ) -> tuple[Any, list[list[Any]]]:
        call = self._call(dtypes, len(scalars))
        if call is None:
            return order, [self._unfused(row, scalars) for row in rows]
        order, made = call.over(rows, {f"s{i}": x for i, x in enumerate(scalars)}, order)
        names = ("total.gather", *(f"new_{n}" for n in self._slices))
        return order, [[one[n] for n in names] for one in made]

    def _call(self, dtypes: tuple[Any, ...], scalars: int) -> FusedCall | None:
        """The kernel for leaves of these dtypes; None, after one warning, where there cannot be
        one.
        """
        ranks = lax.axis_size(self._axis)
        mesh = mesh_or_current(self._mesh)
        key = (dtypes, ranks, scalars, mesh)
        if key not in self._calls:
            try:
                self._calls[key] = self._build(mesh, dtypes, scalars, ranks)
            except (CodegenError, BackendError) as error:
                warn_unfused(error)
                self._calls[key] = None
        return self._calls[key]

    def _build(self, mesh: Mesh, dtypes: tuple[Any, ...], scalars: int, ranks: int) -> FusedCall:
        schedule = self.schedule(mesh, dtypes, scalars, size=8 * ranks)
        (op,) = (op for op in schedule.program.ops if op.body)
        return FusedCall.build(
            mesh,
            schedule.program,
            op,
            schedule.layouts,
            ("g", *self._whole, *self._slices),
            any_size=True,
        )

    def schedule(self, mesh: Mesh, dtypes: tuple[Any, ...], scalars: int, size: int) -> Schedule:
        """The scheduled program for one flat leaf of `size` elements."""
        names = ("g", *self._whole, *self._slices, *(f"s{i}" for i in range(scalars)))
        layouts = [as_map(Local if n == "g" else Replicated, (self._axis,)) for n in names]
        avals = [jax.ShapeDtypeStruct((size,), dtype) for dtype in dtypes]
        avals += [jax.ShapeDtypeStruct((), jnp.float32)] * scalars
        new = [f"new_{n}" for n in self._slices]

        def update(g: Any, *rest: Any) -> tuple[Any, ...]:
            total = label(lax.psum(g, self._axis), "total")
            mean = total / lax.axis_size(self._axis)
            result, *state = self._rule(mean, *rest)
            return (label(result, "result"), *map(label, state, new))

        one_axis = jax.sharding.AbstractMesh((mesh.shape[self._axis],), (self._axis,))
        report = check(update, *avals, mesh=one_axis, in_layouts=tuple(layouts))
        source = Source(
            update,
            tuple(avals),
            one_axis,
            names,
            tuple(layouts),
            tuple(report.out_layouts),
            True,
        )
        return (
            Schedule(source)
            .split("total")
            .reorder("total.gather", after="result")
            .as_slice(*self._slices, *new)
            .fuse("total.scatter", ..., "total.gather", name="update")
        )

    def _unfused(self, row: dict[str, Any], scalars: Sequence[Any]) -> list[Any]:
        """The same for one leaf by XLA's collectives."""
        ranks = lax.axis_size(self._axis)
        shape, size = row["g"].shape, row["g"].size
        pad = block_size(size, ranks) * ranks - size
        padded = {n: jnp.pad(row[n].reshape(-1), (0, pad)) for n in ("g", *self._whole)}
        mean = lax.psum_scatter(padded["g"], self._axis, tiled=True) / ranks
        whole = [own_slice(padded[n], self._axis, 0) for n in self._whole]
        result, *state = self._rule(mean, *whole, *(row[n] for n in self._slices), *scalars)
        gathered = lax.all_gather(result, self._axis, tiled=True, to="invarying")
        return [gathered[:size].reshape(shape), *state]


def _by_dtype(rows: Sequence[dict[str, Any]]) -> dict[tuple[Any, ...], list[int]]:
    """The rows that have elements, by the dtypes of their columns."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if row["g"].size == 0:
            continue
        groups.setdefault(tuple(x.dtype for x in row.values()), []).append(index)
    return groups
