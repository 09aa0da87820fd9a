"""The codes of optimizers."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcc.layout._codes import Entry

OPTIM_CODES: Mapping[str, Entry] = {
    "OPTIM_ARGUMENT": Entry(
        "an optimizer's step got arrays that do not belong together",
        "Gradients, parameters and state are pytrees of one structure. A gradient has its "
        "parameter's shape; the state holds this rank's flat slice of each, as init made it.",
    ),
    "OPTIM_AXIS": Entry(
        "the optimizer's mesh axis does not exist here",
        "Its step reduces gradients over a mesh axis, so it runs inside jax.shard_map over a mesh "
        "that has it. init also runs outside, given the mesh.",
    ),
    "OPTIM_SUMMED": Entry(
        "a gradient has been summed over the ranks before the optimizer sums it",
        "Under jax.shard_map with check_vma=True, JAX sums the gradient of a value that is equal "
        "on all ranks. jaxcc's optimizers fuse that sum with their update, so they take each "
        "rank's own gradient: differentiate by parameters that are cast with jax.lax.pcast(params, "
        "axis_name, to='varying'), and pass the parameters themselves to step.",
    ),
    "OPTIM_UNSUPPORTED": Entry(
        "an optimizer does what cannot be done on slices",
        "jaxcc.optim.fuse keeps of each state array, and of each gradient, only this rank's flat "
        "slice. It follows work on single elements, and reductions of a whole parameter to a "
        "number; a reduction over one dimension, a matrix product or a transposition needs more "
        "than a slice. Such optimizers run unfused: jax.lax.pmean(grads, axis_name), then their "
        "own update.",
    ),
}
