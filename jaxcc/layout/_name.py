"""`jaxcc.name`: a label for a value."""

from __future__ import annotations

from typing import Any, cast

from jax import ad_checkpoint

_label: Any = cast(Any, ad_checkpoint).checkpoint_name


def name(x: Any, name: str) -> Any:
    """`x` as it is, with a label by which schedules, their listings and
    `jaxcc.testing.assert_layout` refer to it:

        total = jaxcc.name(jax.lax.psum(x @ w, "tp"), "total")

    `jax.checkpoint`'s policies know the label, too: it is `jax.ad_checkpoint.checkpoint_name`'s.

    Args:
      x: an array, or a pytree of arrays, each of which gets the label.
      name: the label; a value that is computed twice, as in two layers, should have two.
    """
    return _label(x, name)


# Messages and help name what users import.
name.__module__ = "jaxcc"
