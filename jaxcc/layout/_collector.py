"""Python's collector of cyclic garbage, at rest while a program is traced and walked."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Generator


@contextlib.contextmanager
def collector_at_rest() -> Generator[None]:
    """Keeps the collector from looking through what is made inside.

    A trace and a walk make a great many objects that all live on, and looking through them again
    and again, and through all that JAX holds, costs as much as making them. What is garbage is
    collected after. Of several threads the last that found the collector running sets it going
    again.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
