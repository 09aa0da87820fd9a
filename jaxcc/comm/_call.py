"""One collective, described by what every rank of its group agrees on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxcc._compat import varying_axes
from jaxcc.layout import LayoutError

if TYPE_CHECKING:
    from jaxcc.comm._collective import Collective

AxisName = str | Sequence[str]


@dataclass(frozen=True)
class Group:
    """The ranks that run a collective together.

    Attributes:
      axes: the mesh axes that the group runs along.
      ranks: its size.
      on_devices: whether devices stand behind it: not under `vmap`, nor over an AbstractMesh made
        for a check.
      mesh: the devices, where the caller gave them; inside `jax.shard_map` JAX does not tell.
    """

    axes: tuple[str, ...]
    ranks: int
    on_devices: bool
    mesh: Mesh | None = None


@dataclass(frozen=True)
class Call:
    """A collective of one array.

    Attributes:
      what: the collective and its parameters.
      group: who runs it.
      shape: of one rank's operand.
      dtype: of the operand, after what a reduction promotes (a sum of bool counts in int32).
    """

    what: Collective
    group: Group
    shape: tuple[int, ...]
    dtype: jnp.dtype

    @property
    def collective(self) -> str:
        """Its name in `jaxcc.comm`, such as "all_reduce"."""
        return self.what.name

    @property
    def op(self) -> str:
        """How it combines the ranks' values: "sum", "max", ..; empty if it only moves them."""
        return self.what.op

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the group runs along."""
        return self.group.axes

    @property
    def ranks(self) -> int:
        """The size of the group."""
        return self.group.ranks

    @property
    def nbytes(self) -> int:
        """Bytes of one rank's operand."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def dtype_class(self) -> str:
        """The key of tuning tables: "half", "float", "complex" or "int" (which includes bool)."""
        if jnp.issubdtype(self.dtype, jnp.complexfloating):
            return "complex"
        if jnp.issubdtype(self.dtype, jnp.floating):
            return "float" if self.dtype.itemsize >= 4 else "half"
        return "int"

    def of(self, what: Collective, x: jax.Array) -> Call:
        """Another collective, of `x`, in the same group."""
        return replace(self, what=what, shape=tuple(x.shape), dtype=x.dtype)

    def __str__(self) -> str:
        dims = ",".join(map(str, self.shape))
        group = ", ".join(repr(axis) for axis in self.axes)
        return f"{self.what} of {self.dtype.name}[{dims}] over {group}"


def as_array(collective: str, operand: Any) -> jax.Array:
    """`operand` as JAX's array.

    Raises:
      LayoutError: LAYOUT_REDUCE_OP if it is none of JAX's, such as text.
    """
    try:
        return jnp.asarray(operand)
    except TypeError:
        what = getattr(operand, "dtype", type(operand).__name__)
        raise LayoutError(
            "LAYOUT_REDUCE_OP",
            f"{collective} of {what}: it holds no numbers",
            fixes=("pass an array of numbers, or a pytree of such arrays",),
        ) from None


def dtype_on_the_way(dtype: Any, group: Group) -> jnp.dtype:
    """What a backend gets for an array of `dtype`: keys as their words, packed integers as bytes,
    as XLA has few collectives of them."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jnp.dtype(jnp.uint32)
    return in_bytes(dtype) if group.on_devices else jnp.dtype(dtype)


def in_bytes(dtype: Any) -> jnp.dtype:
    """`dtype`, or the byte that holds an integer of 2 or 4 bits."""
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:
        return jnp.dtype(jnp.uint8 if jnp.issubdtype(dtype, jnp.unsignedinteger) else jnp.int8)
    return jnp.dtype(dtype)


def group_of(
    collective: str, axis_name: AxisName, mesh: Mesh | None, *, outside: bool = False
) -> Group:
    """The group along `axis_name`, where its axes are bound.

    With `outside` it may also be asked for where they are not, over `mesh`.

    Raises:
      LayoutError: LAYOUT_AXIS.
    """
    axes = _axes(collective, axis_name)
    ranks, on_devices = _ranks(collective, axes, mesh if outside else None)
    return Group(axes, ranks, on_devices, mesh)


def _axes(collective: str, axis_name: AxisName) -> tuple[str, ...]:
    axes = (axis_name,) if isinstance(axis_name, str) else axis_name
    named = isinstance(axes, Sequence) and all(isinstance(axis, str) for axis in axes)
    # XLA ends the process on an axis that is there twice.
    if not named or len(set(axes)) < len(axes):
        raise LayoutError(
            "LAYOUT_AXIS",
            f"{collective} cannot run over {axis_name!r}",
            fixes=("pass the name of a mesh axis, or a tuple of different names",),
        )
    return tuple(axes)


def _ranks(collective: str, axes: tuple[str, ...], mesh: Mesh | None) -> tuple[int, bool]:
    """The number of ranks along `axes`, and whether devices stand behind them."""
    bound = jax.sharding.get_abstract_mesh()
    try:
        ranks = math.prod(lax.axis_size(axis) for axis in axes)
    except NameError:
        here = bound.manual_axes
        if mesh is not None and not here:
            if set(axes) <= set(mesh.axis_names):
                return math.prod(mesh.shape[axis] for axis in axes), bool(axes)
            here = mesh.axis_names
        names = ", ".join(map(repr, here)) or "none"
        wanted = ", ".join(map(repr, axes))
        raise LayoutError(
            "LAYOUT_AXIS",
            f"{collective} runs over {wanted}, but the mesh axes here are: {names}",
            fixes=("call it inside jax.shard_map over a mesh that has the axis",),
        ) from None
    # A group over no axes is one rank: nothing is sent.
    on_mesh = bool(axes) and all(axis in bound.axis_names for axis in axes)
    return ranks, on_mesh and bound.abstract_device is not None


def checks_varying(axes: tuple[str, ...]) -> bool:
    """Whether the enclosing shard_map has check_vma=True, which changes the transpose of psum."""
    return bool(varying_axes(lax.axis_index(axes)))


def varying(x: jax.Array, axes: Iterable[str]) -> jax.Array:
    """`x` typed as differing between the ranks of `axes`, as JAX does to what enters a psum."""
    missing = tuple(axis for axis in axes if axis not in varying_axes(x))
    return lax.pcast(x, missing, to="varying") if missing else x
