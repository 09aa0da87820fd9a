"""Every error code of jaxcc: what it means, and for layouts a wrong program beside the right
one."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from jaxcc.layout._codes import Entry
from jaxcc.layout._codes_layout import LAYOUT_CODES
from jaxcc.layout._codes_optim import OPTIM_CODES
from jaxcc.layout._codes_run import RUN_CODES

EXAMPLE_SETUP = """\
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh

import jaxcc
from jaxcc import Local, Partial, Replicated, Sliced, check

mesh = AbstractMesh((4,), ("tp",))
x = jax.ShapeDtypeStruct((8, 16), jnp.float32)  # whole shapes
w = jax.ShapeDtypeStruct((16, 8), jnp.float32)
b = jax.ShapeDtypeStruct((8,), jnp.float32)
"""
"""What every example of the catalogue starts with."""

CODES: Mapping[str, Entry] = {**LAYOUT_CODES, **OPTIM_CODES, **RUN_CODES}


def explain(code: str) -> str:
    """The entry of `code` as text.

    Raises:
      KeyError: there is no such code.
    """
    entry = CODES[code]
    parts = [f"{code}: {entry.title}", textwrap.fill(entry.explanation, 100)]
    if entry.wrong:
        parts += [f"Wrong:\n\n{textwrap.indent(entry.wrong, '    ').rstrip()}"]
        parts += [f"Right:\n\n{textwrap.indent(entry.right, '    ').rstrip()}"]
    return "\n\n".join(parts)
