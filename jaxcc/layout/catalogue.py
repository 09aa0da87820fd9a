"""Every error code of jaxcc, with a wrong program beside the right one; and pages of a guide."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Mapping
from pathlib import Path

from jaxcc.layout._codes import Entry
from jaxcc.layout._codes_control import CONTROL_CODES
from jaxcc.layout._codes_layout import LAYOUT_CODES
from jaxcc.layout._codes_optim import OPTIM_CODES
from jaxcc.layout._codes_run import RUN_CODES

EXAMPLE_SETUP = """\
import jax
import jax.numpy as jnp
import numpy as np
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

CODES: Mapping[str, Entry] = {**LAYOUT_CODES, **CONTROL_CODES, **OPTIM_CODES, **RUN_CODES}

GROUPS: Mapping[str, str] = {
    "LAYOUT": "programs and layouts that the checker refuses",
    "OPTIM": "optimizers",
    "SCHEDULE": "schedules and their verbs",
    "CODEGEN": "kernels that cannot be generated or compiled",
    "BACKEND": "backends that are absent or fail as they run",
    "TABLE": "tuning tables",
}
"""What the codes with each first word are about."""

_GUIDES = Path(__file__).parent / "guides"

GUIDES: Mapping[str, str] = {
    path.stem: path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
    for path in sorted(_GUIDES.glob("*.md"))
}
"""The pages of the guide, and their titles."""


def near(topic: str) -> list[str]:
    """The codes and pages that may have been meant by `topic`, in whichever case, the likeliest
    first: those with words from it on, then similar ones.
    """
    names = {name.upper(): name for name in (*CODES, *GUIDES)}
    wanted = topic.upper()
    inside = [name for name in names if wanted and f"_{wanted}" in f"_{name}"]
    similar = difflib.get_close_matches(wanted, names, n=5, cutoff=0.7)
    return [names[name] for name in dict.fromkeys([*inside, *similar])]


def guide(name: str) -> str:
    """A page of the guide, as Markdown; its examples come after `EXAMPLE_SETUP`.

    Raises:
      KeyError: there is no such page.
    """
    if name not in GUIDES:
        raise KeyError(name)
    return (_GUIDES / f"{name}.md").read_text("utf-8")


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
