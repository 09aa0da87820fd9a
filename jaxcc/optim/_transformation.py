"""An optax transformation that also has a fused step: reduce, update and gather a whole pytree in
one kernel call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax


class FusedTransformation(optax.GradientTransformationExtraArgs):
    """What `jaxcc.optim.adam` returns; use it as any optax transformation, or call `step`.

    All of it runs inside `jax.shard_map` over the optimizer's axis; `init` also runs outside, and
    then returns global arrays. Gradients are those of each rank's own loss (`Local`): the
    transformation averages them over the axis.
    """

    _step: Callable[..., Any]
    _specs: Callable[[], Any]

    @classmethod
    def make(
        cls,
        init: Any,
        update: Any,
        step: Callable[..., Any],
        specs: Callable[[], Any],
    ) -> FusedTransformation:
        """The transformation made of these functions."""
        made = cls(init, update)
        made._step = step
        made._specs = specs
        return made

    def step(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """New parameters and new state: `update` and `optax.apply_updates` in one.

        Args:
          grads: a pytree like `params`: this rank's gradients, not yet reduced.
          state: from `init` or the last step; on each rank 1/n of the moments.
          params: the parameters, equal on all ranks. Donate them, and the state, to the enclosing
            `jax.jit`.
        """
        return self._step(grads, state, params)

    def specs(self) -> Any:
        """PartitionSpecs of the state, a pytree prefix for `in_specs` and `out_specs`."""
        return self._specs()
