"""Softmax and its kin, and the lookup of rows, over a dimension that the ranks of an axis hold in
blocks.

The checker proves these step by step, and their gradients. These are as JAX has them for
`jax.lax.psum`: under check_vma=False, what is passed back to a result that all ranks hold counts
once for each of them, and the checker refuses it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc.comm._combinators import looked_up, operand, owned
from jaxcc.layout import LayoutError

# JAX has types for some of its functions only.
_jax: Any = jax
_jnp: Any = jnp
_lax: Any = lax


def logsumexp(x: Any, axis_name: str, *, axis: int = -1, keepdims: bool = False) -> jax.Array:
    """`jax.nn.logsumexp(x, axis)` of an array whose dimension `axis` is sliced over `axis_name`;
    the same on every rank.

    A row of only -inf gives -inf.
    """
    array, dim = operand("logsumexp", x, axis_name, axis)
    dtype, array = _wide(array)
    top, _, total = _parts(array, axis_name, dim)
    result = jnp.log(total) + top
    return (result if keepdims else result.squeeze(dim)).astype(dtype)


def softmax(x: Any, axis_name: str, *, axis: int = -1) -> jax.Array:
    """`jax.nn.softmax(x, axis)` of an array whose dimension `axis` is sliced over `axis_name`;
    sliced as `x` is."""
    array, dim = operand("softmax", x, axis_name, axis)
    dtype, array = _wide(array)
    _, powers, total = _parts(array, axis_name, dim)
    return (powers / total).astype(dtype)


def log_softmax(x: Any, axis_name: str, *, axis: int = -1) -> jax.Array:
    """`jax.nn.log_softmax(x, axis)` of an array whose dimension `axis` is sliced over `axis_name`;
    sliced as `x` is."""
    array, dim = operand("log_softmax", x, axis_name, axis)
    dtype, array = _wide(array)
    top, _, total = _parts(array, axis_name, dim)
    return (array - top - jnp.log(total)).astype(dtype)


def cross_entropy(
    logits: Any, labels: Any, axis_name: str, *, label_smoothing: float = 0.0
) -> jax.Array:
    """The cross-entropy of each row of `logits`, whose last dimension, the vocabulary, is sliced
    over `axis_name`; the same on every rank.

    As `optax.softmax_cross_entropy_with_integer_labels` on the whole logits. No rank holds a whole
    row.

    Args:
      logits: per rank (..., vocabulary / ranks).
      labels: (...), integers that count the whole vocabulary. One outside of it has the logit 0.
      axis_name: mesh axis.
      label_smoothing: this part of the probability is spread evenly over the vocabulary.
    """
    array, dim = operand("cross_entropy", logits, axis_name)
    wanted = _integers("cross_entropy", labels, array.shape[:-1])
    dtype, array = _wide(array)
    top, _, total = _parts(array, axis_name, dim)
    spread = (jnp.log(total) + top).squeeze(dim)
    own = looked_up(array, wanted[..., None], axis_name, dim).squeeze(dim)
    loss = spread - own
    if label_smoothing:
        mean = _lax.pmean(array.mean(dim), axis_name)
        loss = (1 - label_smoothing) * loss + label_smoothing * (spread - mean)
    return loss.astype(dtype)


def embed(ids: Any, table: Any, axis_name: str) -> jax.Array:
    """The rows of `table` that `ids` name, where the rows are sliced over `axis_name`; the same on
    every rank.

    An id outside the whole table, or below 0, gives a row of zeros, on any number of ranks. (NumPy
    counts negative ids from the end, and `jax.numpy.take` gives NaN.)

    Args:
      ids: integers, of any shape, the same on every rank.
      table: per rank (rows / ranks, ...).
      axis_name: mesh axis.
    """
    rows, _ = operand("embed", table, axis_name, 0, ordered=False)
    wanted = _integers("embed", ids, None)
    mine, here = owned(wanted, rows.shape[0], axis_name)
    found = rows[here]
    mask = mine.reshape(*mine.shape, *[1] * (rows.ndim - 1))
    return _lax.psum(jnp.where(mask, found, jnp.zeros_like(found)), axis_name)


def _wide(array: jax.Array) -> tuple[Any, jax.Array]:
    """The dtype of the result, and the array in the one to compute in: half types add up in
    float32."""
    dtype = _jax.eval_shape(jnp.exp, array).dtype
    return dtype, array.astype(_jnp.promote_types(dtype, jnp.float32))


def _parts(array: jax.Array, axis_name: str, dim: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The whole row's maximum (0 if it is infinite), exp(array - maximum) and its sum over the
    row."""
    fixed = lax.stop_gradient(array)
    top = _lax.pmax(fixed.max(dim, keepdims=True, initial=-jnp.inf), axis_name)
    top = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
    powers = jnp.exp(array - top)
    return top, powers, _lax.psum(powers.sum(dim, keepdims=True), axis_name)


def _integers(name: str, x: Any, shape: tuple[int, ...] | None) -> jax.Array:
    array = jnp.asarray(x)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise LayoutError(
            "LAYOUT_ARGUMENT", f"{name} looks up integers, and these are {array.dtype}"
        )
    if shape is not None and array.shape != shape:
        raise LayoutError(
            "LAYOUT_ARGUMENT", f"{name} has labels of shape {array.shape} for rows of shape {shape}"
        )
    return array
