"""Blocks that go round the ranks of an axis, and attention over a sequence that they hold in
blocks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxcc import _compat
from jaxcc.comm._combinators import numbers, require_axis, sliced_over
from jaxcc.comm._combinators_primitive import primitive
from jaxcc.layout import LayoutError

# JAX has types for some of its functions only.
_jax: Any = jax
_jnp: Any = jnp
_lax: Any = lax

_ring_p: Any = _compat.identity_primitive("jaxcc_ring", lambda params, _: params)
"""Marks the blocks that go round, which the checker does not follow."""


def ring(body: Callable[[Any, Any, jax.Array], Any], init: Any, blocks: Any, axis_name: str) -> Any:
    """Folds `body(carry, block, rank)` over all ranks' blocks, a rank's own first, each passed on
    from rank to rank.

    On a group of one, `body` is called once with the whole. That is the same only if `body` merges
    blocks in a way that depends neither on their order nor on their size, which the checker cannot
    know: it refuses the result (LAYOUT_RANK_DEPENDENT), unless `check` is given
    structure="rank-dependent", which runs the program. For attention, see `ring_attention`.

    Args:
      body: gives the next carry, of the types of the one before; `rank` is whose block it is.
      init: the carry before the first block, a pytree.
      blocks: the rank's own, a pytree.
      axis_name: mesh axis.
    """
    require_axis("ring", axis_name)
    leaves, tree = _jax.tree.flatten(blocks)
    varying = sliced_over(axis_name, *map(jnp.asarray, leaves))
    own = [_ring_p.bind(x, axis_name=axis_name) for x in varying]
    return _round(body, init, _jax.tree.unflatten(tree, own), axis_name)


def _round(body: Callable[..., Any], carry: Any, blocks: Any, axis_name: str) -> Any:
    ranks, rank = _lax.axis_size(axis_name), _lax.axis_index(axis_name)
    carry = body(carry, blocks, rank)
    if ranks == 1:
        return carry

    def turn(step: jax.Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        passed = _passed_on(state[1], axis_name)
        return body(state[0], passed, (rank - step) % ranks), passed

    return _lax.fori_loop(1, ranks, turn, (carry, blocks))[0]


def _passed_on(blocks: Any, axis_name: str) -> Any:
    ranks = _lax.axis_size(axis_name)
    return _lax.ppermute(blocks, axis_name, [(r, (r + 1) % ranks) for r in range(ranks)])


def ring_attention(
    q: Any, k: Any, v: Any, axis_name: str, *, causal: bool = False, scale: float | None = None
) -> jax.Array:
    """`jax.nn.dot_product_attention` over a sequence that is sliced over `axis_name`; the result is
    sliced as `q` is.

    No rank holds more than its own queries and one block of keys and values, which go round the
    ranks; the softmax is merged block by block. It is differentiable in reverse mode, once; the
    backward pass sends keys, values and their gradients round. Half types add up in float32.

    Args:
      q: per rank (..., queries / ranks, heads, size).
      k: per rank (..., keys / ranks, heads, size).
      v: as `k`, perhaps of another size.
      axis_name: mesh axis.
      causal: a query sees no keys that come after it.
      scale: of the products; 1 / sqrt(size) by default.

    Raises:
      LayoutError: LAYOUT_AXIS, LAYOUT_ARGUMENT.
    """
    require_axis("ring_attention", axis_name)
    operands = [numbers("ring_attention", x) for x in (q, k, v)]
    _require_fit(*operands)
    size = operands[0].shape[-1]
    how = _How(axis_name, bool(causal), float(1 / math.sqrt(size) if scale is None else scale))
    return _attention(how, *sliced_over(axis_name, *operands))


@dataclass(frozen=True)
class _How:
    axis_name: str
    causal: bool
    scale: float


def _require_fit(q: jax.Array, k: jax.Array, v: jax.Array) -> None:
    shapes = f"q {q.shape}, k {k.shape}, v {v.shape}"
    fit = q.ndim == k.ndim == v.ndim >= 3 and k.shape[:-1] == v.shape[:-1]
    fit = fit and q.shape[:-3] == k.shape[:-3] and q.shape[-2:] == k.shape[-2:]
    if not fit or 0 in k.shape[-3:]:
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"ring_attention: the shapes {shapes} do not fit",
            because="they are (..., sequence, heads, size), with the same heads in each",
            fixes=("repeat the heads of k and v, if queries share them (jax.numpy.repeat)",),
        )
    if not (q.dtype == k.dtype == v.dtype and jnp.issubdtype(q.dtype, jnp.floating)):
        raise LayoutError(
            "LAYOUT_ARGUMENT",
            f"ring_attention needs one floating-point type, not {q.dtype}, {k.dtype}, {v.dtype}",
        )


@functools.partial(_jax.custom_vjp, nondiff_argnums=(0,))
def _attention(how: _How, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return _forward(how, q, k, v)[0]


def _forward(how: _How, *operands: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    out, logs = _attention_p.bind(
        *operands, axis_name=how.axis_name, causal=how.causal, scale=how.scale
    )
    return out, (*operands, out, logs)


def _backward(how: _How, kept: tuple[jax.Array, ...], cotangent: jax.Array) -> tuple[Any, ...]:
    made = _attention_back_p.bind(
        *kept, cotangent, axis_name=how.axis_name, causal=how.causal, scale=how.scale
    )
    return tuple(made)


_attention.defvjp(_forward, _backward)


def _products(
    q: jax.Array, k: jax.Array, of: Any, *, axis_name: str, causal: bool, scale: float
) -> jax.Array:
    """Scaled products of the rank's queries and the keys of rank `of`: (..., heads, query, key)."""
    logits = scale * _jnp.einsum("...qhd,...khd->...hqk", q, k)
    if not causal:
        return logits
    queries = _lax.axis_index(axis_name) * q.shape[-3] + jnp.arange(q.shape[-3])
    keys = of * k.shape[-3] + jnp.arange(k.shape[-3])
    return jnp.where(keys <= queries[:, None], logits, -jnp.inf)


def _run(q: jax.Array, k: jax.Array, v: jax.Array, **params: Any) -> Sequence[jax.Array]:
    """The attention, and the logarithm of each query's sum of exponentials: (..., query, head)."""
    wide = _jnp.promote_types(q.dtype, jnp.float32)
    queries = q.astype(wide)

    def merge(state: Any, block: Any, of: Any) -> Any:
        keys, values = (x.astype(wide) for x in block)
        logits = _products(queries, keys, of, **params)
        here = logits.max(-1)
        top = here if state is None else jnp.maximum(state[0], here)
        # A query that has seen no key yet has -inf here.
        base = jnp.where(jnp.isfinite(top), top, 0)
        powers = jnp.exp(logits - base[..., None])
        total, out = powers.sum(-1), _jnp.einsum("...hqk,...khd->...hqd", powers, values)
        if state is None:
            return top, total, out
        less = jnp.exp(state[0] - base)
        return top, state[1] * less + total, state[2] * less[..., None] + out

    top, total, out = _round(merge, None, (k, v), params["axis_name"])
    logs = top + jnp.log(total)
    return [
        jnp.swapaxes(out / total[..., None], -3, -2).astype(q.dtype),
        jnp.swapaxes(logs, -2, -1),
    ]


def _run_back(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    out: jax.Array,
    logs: jax.Array,
    cotangent: jax.Array,
    **params: Any,
) -> Sequence[jax.Array]:
    """The gradients of queries, keys and values; those of keys and values go round with them."""
    axis_name: str = params["axis_name"]
    wide = _jnp.promote_types(q.dtype, jnp.float32)
    queries, given = q.astype(wide), cotangent.astype(wide)
    shift = jnp.swapaxes(logs, -2, -1)[..., None]
    mean = jnp.swapaxes((given * out.astype(wide)).sum(-1), -2, -1)[..., None]

    def add(sums: Sequence[Any], block: Sequence[Any], of: Any) -> tuple[Any, ...]:
        keys, values = (x.astype(wide) for x in block)
        weights = jnp.exp(_products(queries, keys, of, **params) - shift)
        slopes = _jnp.einsum("...qhd,...khd->...hqk", given, values) - mean
        slopes = params["scale"] * weights * slopes
        return (
            sums[0] + _jnp.einsum("...hqk,...khd->...qhd", slopes, keys),
            sums[1] + _jnp.einsum("...hqk,...qhd->...khd", slopes, queries),
            sums[2] + _jnp.einsum("...hqk,...qhd->...khd", weights, given),
        )

    ranks, rank = _lax.axis_size(axis_name), _lax.axis_index(axis_name)
    sums = add([jnp.zeros_like(x, wide) for x in (q, k, v)], (k, v), rank)

    def turn(step: jax.Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        (to_queries, *to_block), block = state
        to_block, block = _passed_on((to_block, block), axis_name)
        return add((to_queries, *to_block), block, (rank - step) % ranks), block

    if ranks > 1:
        sums = _lax.fori_loop(1, ranks, turn, (sums, (k, v)))[0]
        sums = (sums[0], *_passed_on(sums[1:], axis_name))
    return [one.astype(x.dtype) for one, x in zip(sums, (q, k, v), strict=True)]


_attention_p = primitive("ring_attention", _run)
_attention_back_p = primitive("ring_attention_back", _run_back)
