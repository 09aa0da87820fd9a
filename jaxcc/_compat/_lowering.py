"""A hook before programs are compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax._src.interpreters import mlir as _mlir

from jaxcc._compat._lifetimes import Operands


def before_lowering(rewrite: Callable[[str, Any, Operands], Any]) -> None:
    """Lets `rewrite` change every program that is compiled from now on: it gets the name, the jaxpr
    and the numbers of the operands that are donated.

    It sees what JAX made of the user's functions: differentiated, batched, with the jaxprs of
    nested `jit`s, which are traced once and then found in caches.
    """
    lower = _mlir.lower_jaxpr_to_module

    @functools.wraps(lower)
    def lowered(name: str, jaxpr: Any, **kwargs: Any) -> Any:
        given = kwargs["donated_args"][kwargs["num_const_args"] :]
        donated = frozenset(number for number, is_donated in enumerate(given) if is_donated)
        return lower(name, rewrite(name, jaxpr, donated), **kwargs)

    _mlir.lower_jaxpr_to_module = lowered
