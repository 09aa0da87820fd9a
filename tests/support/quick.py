"""`jax.jit` for programs that run once or twice on small arrays."""

from collections.abc import Callable
from typing import Any

import jax

from jaxcc.layout._emulate import QUICK


def jit(f: Callable[..., Any], **options: Any) -> Any:
    """As `jax.jit`, without XLA's optimizations, which would be most of a test's time.

    Not for what is compared bit by bit, or with a bound in ulp: that has to hold for the code that
    users run.
    """
    return jax.jit(f, compiler_options=QUICK, **options)
