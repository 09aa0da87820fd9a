"""The optimizer's state: optax's own, with each array that has its parameter's shape as a flat
slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxcc import _compat
from jaxcc.layout import BackendError, LayoutError, Replicated, Sliced, on
from jaxcc.optim._owners import SHARED, owners_of, placeholder
from jaxcc.optim._slices import own_block, padded

AnyMesh = Mesh | AbstractMesh
"""An abstract one is enough to check a step."""


class MasterState(NamedTuple):
    """The state of `fuse(..., master=dtype)`.

    Attributes:
      master: like the parameters, this rank's flat slice of each in the master's dtype.
      inner: the transformation's state, sliced.
    """

    master: Any
    inner: Any


@dataclass(frozen=True)
class StateForm:
    """How the state of one transformation lies on the ranks.

    Attributes:
      tx: the transformation.
      axis: the mesh axis that slices are cut over.
      master: dtype of the master copy, None if there is none.
    """

    tx: optax.GradientTransformationExtraArgs
    axis: str
    master: Any = None

    def whole(self, params: Any) -> Any:
        """The state as optax has it, of whole arrays."""
        if self.master is None:
            return self.tx.init(params)
        wide = jax.tree.map(lambda p: jnp.asarray(p, self.master), params)
        return MasterState(wide, self.tx.init(wide))

    def owners(self, state: Any, params: Any) -> Any:
        """Like the state: for each array the number of the parameter that it belongs to and has the
        shape of, or SHARED. Both may be types.
        """
        if self.master is None:
            return owners_of(self.tx, state, params)
        leaves, tree = jax.tree.flatten(params)
        numbers = jax.tree.unflatten(tree, range(len(leaves)))
        return MasterState(numbers, owners_of(self.tx, state.inner, params))

    def init(self, params: Any, mesh: Callable[[], AnyMesh]) -> Any:
        """The state for these parameters: inside `shard_map` this rank's, outside the global one,
        sharded over the axis and made in place.

        Raises:
          LayoutError: OPTIM_ARGUMENT for numbers that are no floats, OPTIM_AXIS without the axis.
        """
        _check_trained(params)
        try:
            lax.axis_size(self.axis)
        except NameError:
            return self.placed(lambda p: self.whole(p), params, params, mesh())
        owners = self.owners(jax.eval_shape(self.whole, params), params)

        def sliced(params: Any) -> Any:
            return jax.tree.map(
                lambda x, owner: x if owner == SHARED else own_block(x, self.axis),
                self.whole(params),
                owners,
            )

        # One program even where every operation of a shard_map would be one.
        return jax.jit(sliced)(params)

    def placed(self, whole: Callable[[Any], Any], given: Any, params: Any, mesh: AnyMesh) -> Any:
        """The global state of whole arrays `whole(given)`; one jit, so that they never exist."""
        if self.axis not in mesh.shape:
            raise LayoutError(
                "OPTIM_AXIS",
                f"the mesh has no axis '{self.axis}'; it has {', '.join(mesh.shape)}",
            )
        ranks = mesh.shape[self.axis]
        types = jax.eval_shape(whole, given)
        owners = self.owners(types, params)

        def flat(given: Any) -> Any:
            return jax.tree.map(
                lambda x, owner: x if owner == SHARED else padded(x, ranks), whole(given), owners
            )

        shardings = jax.tree.map(lambda owner: NamedSharding(mesh, self.spec(owner)), owners)
        return jax.jit(flat, out_shardings=shardings)(_on(mesh, given))

    def layouts(self, params: Any = None) -> Any:
        """Layouts of the state: a pytree prefix, or with `params` one for each array."""
        return jax.tree.map(
            lambda spec: on(**{self.axis: Sliced(0)}) if spec == self.spec(0) else Replicated,
            self.specs(params),
            is_leaf=lambda one: isinstance(one, PartitionSpec),
        )

    def spec(self, owner: int) -> PartitionSpec:
        """How an array of the state lies on the mesh."""
        return PartitionSpec() if owner == SHARED else PartitionSpec(self.axis)

    def specs(self, params: Any = None) -> Any:
        """PartitionSpecs of the state: a pytree prefix, or with `params` one for each array.

        Raises:
          LayoutError: OPTIM_ARGUMENT if without parameters the transformation has no state.
        """
        if params is not None:
            types = jax.eval_shape(self.whole, params)
            return jax.tree.map(self.spec, self.owners(types, params))
        mark = placeholder()
        try:
            state: Any = self.tx.init(mark)
        except Exception as error:
            raise LayoutError(
                "OPTIM_ARGUMENT",
                "this transformation's state cannot be told without parameters",
                because=f"its init says {type(error).__name__}: {error}",
                fixes=("pass them, or their types: tx.specs(params)",),
            ) from error
        inner = jax.tree.map(
            lambda x: self.spec(0 if isinstance(x, type(mark)) else SHARED),
            state,
            is_leaf=lambda x: isinstance(x, type(mark)),
        )
        return inner if self.master is None else MasterState(PartitionSpec(self.axis), inner)


def _check_trained(params: Any) -> None:
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        dtype = x.dtype if hasattr(x, "dtype") else jnp.result_type(x)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise LayoutError(
                "OPTIM_ARGUMENT",
                f"{jax.tree_util.keystr(path) or 'the parameter'} is {dtype}, not floating point",
                fixes=("leave arrays that are not trained out of the pytree",),
            )


def mesh_or_current(mesh: AnyMesh | None) -> AnyMesh:
    """The mesh, or that of `jax.set_mesh`."""
    current = mesh if mesh is not None else _compat.current_mesh()
    if current.empty:
        raise BackendError(
            "BACKEND_NO_MESH",
            "a fused optimizer needs to know which devices its axis runs over",
            fixes=("pass mesh= to the optimizer, or run under `with jax.set_mesh(mesh):`",),
        )
    return current


def _on(mesh: AnyMesh, given: Any) -> Any:
    """The arrays where the mesh's devices can read them."""

    def moved(x: Any) -> Any:
        if _compat.is_tracer(x) or not isinstance(x, jax.Array):
            return x
        if isinstance(mesh, AbstractMesh):
            raise BackendError(
                "BACKEND_NO_DEVICES",
                "an AbstractMesh has no devices to hold an optimizer's state",
                fixes=("jax.eval_shape(tx.init, params) gives the state's types",),
            )
        if x.sharding.device_set == set(mesh.devices.flat):
            return x
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec()))

    return jax.tree.map(moved, given)
