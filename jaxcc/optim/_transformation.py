"""An optax transformation that also has a fused step: reduce, update and gather a whole pytree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import optax

from jaxcc.optim._checkpoint import load_form, save_form

if TYPE_CHECKING:
    from jaxcc.optim._fuse import Fused


class FusedTransformation(optax.GradientTransformationExtraArgs):
    """What `jaxcc.optim.fuse` returns; use it as any optax transformation, or call `step`.

    `step` and `update` run inside `jax.shard_map` over the optimizer's axis; `init` also outside,
    and then returns global arrays. Gradients are those of each rank's own loss (`Local`): the
    transformation averages them over the axis. `jaxcc.check` takes a training step whole: it sees
    reduce-scatters, all-reduces and all-gathers where the step has kernels.
    """

    _fused: Fused

    @classmethod
    def make(cls, fused: Fused) -> FusedTransformation:
        """The transformation of these functions."""

        def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            return fused.update(updates, state, params, extra)

        made = cls(lambda params: fused.form.init(params, fused.mesh), update)
        made._fused = fused
        return made

    def step(self, grads: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        """New parameters and new state: `update` and `optax.apply_updates` in one.

        Args:
          grads: a pytree like `params`: this rank's gradients, not yet reduced.
          state: from `init` or the last step; on each rank 1/n of the arrays like parameters.
          params: the parameters, equal on all ranks. Donate them, and the state, to the enclosing
            `jax.jit`.
          extra: what optax's `update` takes by keyword, equal on all ranks.
        """
        return self._fused.step(grads, state, params, extra)

    def specs(self, params: Any = None) -> Any:
        """PartitionSpecs of the state for `in_specs` and `out_specs`: a pytree prefix, or with
        `params`, or their types, one for each array.
        """
        return self._fused.form.specs(params)

    def layouts(self, params: Any = None) -> Any:
        """Layouts of the state for `in_layouts` and `out_layouts` of `jaxcc.check` and
        `jaxcc.typed`: a pytree as `specs` gives it. The state itself is `jax.eval_shape(tx.init,
        params)`, for which the mesh may be an AbstractMesh; the ranks have to divide the
        parameters' sizes.
        """
        return self._fused.form.layouts(params)

    def save_form(self, state: Any, params: Any) -> Any:
        """The global state as optax has it, of whole arrays in the parameters' shapes: a checkpoint
        for a group of any size.

        Raises:
          LayoutError: OPTIM_ARGUMENT if it is no state of this transformation for `params`.
        """
        return save_form(self._fused.form, state, params)

    def load_form(self, saved: Any, params: Any) -> Any:
        """The global state of this mesh for what `save_form` gave, or for optax's own state.

        Raises:
          LayoutError: OPTIM_ARGUMENT if it is no state of this transformation for `params`.
        """
        return load_form(self._fused.form, saved, params, self._fused.mesh())
