"""Whether two pytrees have one structure, and in which arrays they differ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from jaxcc.layout import LayoutError

_SHOWN = 3


def check_structure(what: str, given: Any, like: str, wanted: Any, fixes: tuple[str, ...]) -> None:
    """Holds the structure of a pytree against that of another.

    Raises:
      LayoutError: OPTIM_ARGUMENT, with what it lacks, and has besides.
    """
    if jax.tree.structure(given) == jax.tree.structure(wanted):
        return
    has, needs = _paths(given), _paths(wanted)
    parts: list[str] = []
    if lacking := [path for path in needs if path not in has]:
        parts.append(f"lacks {_listed(lacking)}")
    if besides := [path for path in has if path not in needs]:
        parts.append(f"has {_listed(besides)}")
    differs = " and ".join(parts) or f"is {jax.tree.structure(given)}"
    raise LayoutError(
        "OPTIM_ARGUMENT",
        f"the structure of the {what} is not that of {like}: it {differs}",
        fixes=fixes,
    )


def _paths(tree: Any) -> dict[str, None]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return dict.fromkeys(jax.tree_util.keystr(path) or "one array" for path, _ in leaves)


def _listed(paths: Iterable[str]) -> str:
    shown = list(paths)
    more = len(shown) - _SHOWN
    return ", ".join(shown[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
