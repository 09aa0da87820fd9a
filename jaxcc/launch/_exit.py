"""What a rank still has to do when its program ends."""

from __future__ import annotations

import atexit
import sys

import jax

from jaxcc import _compat


def finish_at_exit() -> None:
    """Lets what still runs when the program ends come to its end, and says if that is an error.

    JAX drops such errors with the results that have them; a peer may wait for what is dropped.
    """
    atexit.register(_finish)


def _finish() -> None:
    if not _compat.backend_started():
        return
    errors: dict[str, None] = {}
    # Results that are ready were the program's to look at.
    for array in [array for array in jax.live_arrays() if not array.is_ready()]:
        try:
            array.block_until_ready()
        except Exception as error:
            errors[str(error)] = None
    for text in errors:
        print(
            f"jaxcc: rank {jax.process_index()}: work that still ran when the program ended "
            f"failed: {text}",
            file=sys.stderr,
        )
