"""A linear layer whose weight is split by rows over the ranks, with everything after the product
fused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx import initializers
from jax import lax
from jax.ad_checkpoint import checkpoint_name as label
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxcc import _compat
from jaxcc.layout import (
    BackendError,
    LayoutError,
    LayoutMap,
    Replicated,
    ScheduleError,
    Sliced,
    as_map,
    check,
    to_spec,
)
from jaxcc.schedule import Schedule, Source, warn_unfused

Activation = Callable[[jax.Array], jax.Array]


class RowParallelLinear(nnx.Module):
    """`activation(x @ kernel + bias) + residual`, with `x` and `kernel` sliced along the
    contraction.

    Each rank multiplies its columns of `x` by its rows of `kernel`; the sum over ranks, the bias,
    the activation and the residual are one fused reduce-scatter, epilogue, all-gather. Value and
    gradient are those of `nnx.Linear`, then `activation`, then the residual.

    Call it inside `jax.shard_map` over `axis_name`, with the module's state split by
    `jaxcc.nnx.specs`. Outside, it computes the whole product on its own. With check_vma=False the
    gradients of what is equal on all ranks (`bias`, `residual`) are as in any `jax.shard_map`
    without that check: they follow from the transpose of `psum`, which is then again a `psum`.

    Args:
      in_features: whole length of the contraction.
      out_features: length of the result's last dimension.
      axis_name: mesh axis over which the contraction is sliced.
      mesh: the mesh, for the fused kernel's devices; by default that of `jax.set_mesh`.
      use_bias: adds `bias`, f[out_features].
      activation: an elementwise function, such as `jax.nn.gelu`; with any other the layer runs
        unfused, with a warning.
      dtype: what is computed in; by default what `x` and `kernel` promote to.
      param_dtype: of `kernel` and `bias`.
      kernel_init, bias_init: initialisers.
      rngs: where `kernel_init` and `bias_init` take their keys from.

    Raises:
      LayoutError: LAYOUT_AXIS or LAYOUT_INDIVISIBLE if `mesh` has no axis `axis_name`, or one that
        does not divide `in_features`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        axis_name: str,
        mesh: Mesh | None = None,
        use_bias: bool = True,
        activation: Activation | None = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        kernel_init: Any = None,
        bias_init: Any = None,
        rngs: nnx.Rngs,
    ) -> None:
        if mesh is not None:
            _check_mesh(mesh, axis_name, in_features)
        kernel_init = kernel_init or initializers.lecun_normal()
        bias_init = bias_init or initializers.zeros_init()
        kernel = kernel_init(rngs.params(), (in_features, out_features), param_dtype)
        self.kernel = nnx.Param(kernel, layout=Sliced(0), axis_name=axis_name)
        self.bias = (
            nnx.Param(
                bias_init(rngs.params(), (out_features,), param_dtype),
                layout=Replicated,
                axis_name=axis_name,
            )
            if use_bias
            else None
        )
        self.in_features = in_features
        self.axis_name = axis_name
        self.mesh = mesh
        self.activation = activation
        self.dtype = dtype

    def __call__(self, x: jax.Array, residual: jax.Array | None = None) -> jax.Array:
        """The layer's result on one rank, equal on all.

        Args:
          x: f[..., in_features / n], this rank's columns.
          residual: f[..., out_features], equal on all ranks, added after the activation.

        Raises:
          LayoutError: LAYOUT_SHAPE if `x`, or the module's kernel, is not this rank's part.
        """
        given = {"x": x, "kernel": self.kernel[...]}
        if self.bias is not None:
            given["bias"] = self.bias[...]
        if residual is not None:
            given["residual"] = residual
        dtype = self.dtype or jnp.result_type(x, given["kernel"])
        arrays = {name: jnp.asarray(value, dtype) for name, value in given.items()}
        ranks = _ranks(self.axis_name)
        self._check_shapes(arrays["x"].shape, arrays["kernel"].shape, ranks)
        if ranks is None or ranks == 1:
            axis_name = None if ranks is None else self.axis_name
            return _tail(axis_name, self.activation, **arrays)
        mesh = self.mesh if self.mesh is not None else _compat.current_mesh()
        if mesh.empty:
            warn_unfused(
                BackendError(
                    "BACKEND_NO_MESH",
                    "a RowParallelLinear does not know the devices of its axis",
                    fixes=("pass mesh= to the layer, or run under `with jax.set_mesh(mesh):`",),
                )
            )
            return _tail(self.axis_name, self.activation, **arrays)
        function = _fused(
            tuple((name, value.shape, value.dtype) for name, value in arrays.items()),
            self.axis_name,
            ranks,
            mesh,
            self.activation,
            bool(_compat.varying_axes(arrays["x"]) | _compat.varying_axes(arrays["kernel"])),
        )
        return function(arrays)

    def _check_shapes(self, x: tuple[int, ...], kernel: tuple[int, ...], ranks: int | None) -> None:
        rows = self.in_features // (ranks or 1)
        if x[-1:] == kernel[:1] == (rows,):
            return
        got = f"got x of shape {x} and a kernel of shape {kernel}"
        if ranks is None:
            raise LayoutError(
                "LAYOUT_SHAPE",
                f"outside jax.shard_map RowParallelLinear takes all {rows} features; {got}",
                fixes=("pass the whole x to the whole module",),
            )
        raise LayoutError(
            "LAYOUT_SHAPE",
            f"on each of {ranks} ranks RowParallelLinear takes {rows} of its {self.in_features} "
            f"features; {got}",
            because="x has to be this rank's columns, and the kernel the rows for them",
            fixes=(
                f"give jax.shard_map an in_spec for x with '{self.axis_name}' last, and "
                "jaxcc.nnx.specs(module) for the module's state",
            ),
        )


def _check_mesh(mesh: Mesh, axis_name: str, in_features: int) -> None:
    ranks = mesh.shape.get(axis_name)
    if ranks is None:
        raise LayoutError(
            "LAYOUT_AXIS",
            f"RowParallelLinear runs over '{axis_name}', but the axes of its mesh are: "
            f"{', '.join(map(repr, mesh.axis_names))}",
        )
    if in_features % ranks:
        raise LayoutError(
            "LAYOUT_INDIVISIBLE",
            f"in_features of RowParallelLinear is {in_features}, which the {ranks} ranks of axis "
            f"'{axis_name}' do not divide",
            fixes=(f"pad the features to a multiple of {ranks}",),
        )


def _ranks(axis_name: str) -> int | None:
    """The group's size; None outside `shard_map`."""
    try:
        return lax.axis_size(axis_name)
    except NameError:
        return None


def _tail(
    axis_name: str | None,
    activation: Activation | None,
    x: Any,
    kernel: Any,
    bias: Any = None,
    residual: Any = None,
) -> Any:
    product = x @ kernel
    total = product if axis_name is None else label(lax.psum(product, axis_name), "total")
    if bias is not None:
        total = total + bias
    if activation is not None:
        total = activation(total)
    if residual is not None:
        total = total + residual
    return total if axis_name is None else label(total, "out")


@functools.lru_cache(maxsize=256)
def _fused(
    types: tuple[tuple[str, tuple[int, ...], Any], ...],
    axis_name: str,
    ranks: int,
    mesh: Mesh,
    activation: Activation | None,
    check_vma: bool,
) -> Callable[[dict[str, Any]], Any]:
    """The layer on one rank for these per-rank types, scheduled; unfused, with a warning, where it
    cannot be.
    """
    plain = functools.partial(_tail, axis_name, activation)

    def tail(arrays: dict[str, Any]) -> Any:
        return plain(**arrays)

    avals, layouts = {}, {}
    for name, shape, dtype in types:
        sliced = {"x": len(shape) - 1, "kernel": 0}.get(name)
        layouts[name] = Replicated if sliced is None else Sliced(sliced)
        whole = tuple(s * ranks if d == sliced else s for d, s in enumerate(shape))
        avals[name] = jax.ShapeDtypeStruct(whole, dtype)
    one_axis = AbstractMesh((ranks,), (axis_name,))
    report = check(
        tail,
        avals,
        mesh=one_axis,
        in_layouts=(layouts,),
        out_layouts=Replicated,
        check_vma=check_vma,
    )
    maps = tuple(as_map(layouts[name], (axis_name,)) for name in sorted(layouts))
    names = tuple(sorted(layouts))
    source = Source(tail, (avals,), one_axis, names, maps, tuple(report.out_layouts), check_vma)
    try:
        schedule = Schedule(source).split("total")
        if _has_epilogue(schedule):
            schedule = schedule.reorder("total.gather", after="out")
        schedule = schedule.fuse("total.scatter", ..., "total.gather", name="fused")
        return schedule.compile(mesh=mesh).local
    except ScheduleError as error:
        warn_unfused(_in_words_of_the_layer(error))
        return tail


def _in_words_of_the_layer(error: ScheduleError) -> ScheduleError:
    """The schedule's reason, for one who knows of no schedule."""
    if error.code == "SCHEDULE_NOT_POINTWISE":
        return ScheduleError(
            error.code,
            "the activation of a RowParallelLinear is not elementwise",
            fixes=("give the layer no activation and apply this one to its result",),
        )
    if error.code == "SCHEDULE_INDIVISIBLE":
        return ScheduleError(
            error.code,
            "the ranks divide neither a dimension of x but the last, nor out_features, of a "
            "RowParallelLinear",
            fixes=("make the batch or out_features a multiple of the number of ranks",),
        )
    return error


def _has_epilogue(schedule: Schedule) -> bool:
    """Whether anything follows the all-reduce."""
    return any(op.name == "out" for op in schedule.program.ops)


def specs(module: nnx.Module) -> Any:
    """PartitionSpecs of a module's state, for `jax.shard_map`'s `in_specs` (a pytree prefix of
    `nnx.state(module)`).
    """

    def spec(variable: Any) -> PartitionSpec:
        metadata = variable.get_metadata()
        layout = metadata.get("layout", Replicated)
        axes = (metadata["axis_name"],) if "axis_name" in metadata else ()
        flat = layout if isinstance(layout, LayoutMap) else as_map(layout, axes)
        return to_spec(flat, jnp.ndim(variable.get_value()))

    return jax.tree.map(
        spec, nnx.state(module), is_leaf=lambda node: isinstance(node, nnx.Variable)
    )
