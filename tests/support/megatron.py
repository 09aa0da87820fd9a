"""Megatron's conjugate pairs over the axis tp, as per-rank JAX functions.

They are written for shard_map with check_vma=False, where the transpose of psum is psum.
"""

from functools import partial

import jax
from jax import lax


@jax.custom_vjp
def copy_to(x):
    """The identity; the gradient is summed over the ranks."""
    return x


copy_to.defvjp(lambda x: (x, None), lambda _, g: (lax.psum(g, "tp"),))


@jax.custom_vjp
def reduce_from(x):
    """A sum over the ranks; every rank has its gradient already."""
    return lax.psum(x, "tp")


reduce_from.defvjp(lambda x: (lax.psum(x, "tp"), None), lambda _, g: (g,))


def own_block(x, dim):
    """This rank's block of what every rank holds."""
    size = x.shape[dim] // lax.axis_size("tp")
    return lax.dynamic_slice_in_dim(x, lax.axis_index("tp") * size, size, dim)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scatter_to(x, dim):
    """A rank's own block; the gradient is gathered."""
    return own_block(x, dim)


scatter_to.defvjp(
    lambda x, dim: (own_block(x, dim), None),
    lambda dim, _, g: (lax.all_gather(g, "tp", axis=dim, tiled=True),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def gather_from(x, dim):
    """All blocks; of the gradient, which every rank holds whole, each takes its own block."""
    return lax.all_gather(x, "tp", axis=dim, tiled=True)


gather_from.defvjp(
    lambda x, dim: (lax.all_gather(x, "tp", axis=dim, tiled=True), None),
    lambda dim, _, g: (own_block(g, dim),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def gather_from_sequence(x, dim):
    """All blocks; the gradient, of which every rank has a term, is summed and scattered."""
    return lax.all_gather(x, "tp", axis=dim, tiled=True)


gather_from_sequence.defvjp(
    lambda x, dim: (lax.all_gather(x, "tp", axis=dim, tiled=True), None),
    lambda dim, _, g: (lax.psum_scatter(g, "tp", scatter_dimension=dim, tiled=True),),
)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def reduce_scatter_to(x, dim):
    """This rank's block of the sum; the gradient is gathered."""
    return lax.psum_scatter(x, "tp", scatter_dimension=dim, tiled=True)


reduce_scatter_to.defvjp(
    lambda x, dim: (lax.psum_scatter(x, "tp", scatter_dimension=dim, tiled=True), None),
    lambda dim, _, g: (lax.all_gather(g, "tp", axis=dim, tiled=True),),
)
