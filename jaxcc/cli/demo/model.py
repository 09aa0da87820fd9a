"""A byte-level transformer in plain JAX, and the text that it learns: CPython's own help topics."""

from __future__ import annotations

from dataclasses import dataclass
from pydoc_data import topics
from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np

BYTES = 256


class Layer(TypedDict):
    """f32 scales and matrices of one block."""

    attention_scale: jax.Array
    qkv: jax.Array
    project: jax.Array
    mlp_scale: jax.Array
    up: jax.Array
    down: jax.Array


class Params(TypedDict):
    """All that is trained; the embedding is also the output matrix."""

    embed: jax.Array
    position: jax.Array
    layers: list[Layer]
    final_scale: jax.Array


@dataclass(frozen=True)
class Config:
    """Sizes of the model; the defaults give 10.8 million parameters."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 64


def init(key: jax.Array, config: Config) -> Params:
    """Random f32 parameters."""
    width, keys = config.width, iter(jax.random.split(key, 4 * config.layers + 2))

    def dense(rows: int, columns: int, gain: float = 1.0) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * (gain * rows**-0.5)

    # Branches start small, so that the residual stream's variance does not grow with depth.
    residual = (2 * config.layers) ** -0.5
    layers: list[Layer] = [
        {
            "attention_scale": jnp.ones(width),
            "qkv": dense(width, 3 * width),
            "project": dense(width, width, residual),
            "mlp_scale": jnp.ones(width),
            "up": dense(width, 4 * width),
            "down": dense(4 * width, width, residual),
        }
        for _ in range(config.layers)
    ]
    return {
        "embed": 0.02 * jax.random.normal(next(keys), (BYTES, width)),
        "position": 0.02 * jax.random.normal(next(keys), (config.context, width)),
        "layers": layers,
        "final_scale": jnp.ones(width),
    }


def _rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _block(x: jax.Array, layer: Layer, heads: int) -> jax.Array:
    batch, length, width = x.shape
    qkv = _rms_norm(x, layer["attention_scale"]) @ layer["qkv"]
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, width // heads), 2, 0)
    attended = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x = x + attended.reshape(batch, length, width) @ layer["project"]
    hidden = jax.nn.gelu(_rms_norm(x, layer["mlp_scale"]) @ layer["up"])
    return x + hidden @ layer["down"]


def loss(params: Params, text: jax.Array, config: Config) -> jax.Array:
    """Mean cross entropy, in nats, of each next byte.

    Args:
      params: from `init`.
      text: uint8[batch, context + 1].
      config: the sizes that `params` were made with.

    Returns:
      f32[], at first about log(256) = 5.55.
    """
    tokens, targets = text[:, :-1].astype(jnp.int32), text[:, 1:].astype(jnp.int32)
    x = params["embed"][tokens] + params["position"]
    for layer in params["layers"]:
        x = _block(x, layer, config.heads)
    logits = _rms_norm(x, params["final_scale"]) @ params["embed"].T
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def corpus() -> np.ndarray:
    """CPython's help topics as uint8: about half a megabyte of English and of reference grammar."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    return np.frombuffer(text.encode(), np.uint8)


def batches(seed: int, steps: int, batch: int, context: int) -> np.ndarray:
    """Random windows of the corpus: uint8[steps, batch, context + 1], the same for a seed."""
    text = corpus()
    starts = np.random.default_rng(seed).integers(0, len(text) - context, (steps, batch, 1))
    return text[starts + np.arange(context + 1)]
