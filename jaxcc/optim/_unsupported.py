"""The error for an optimizer that cannot be fused."""

from __future__ import annotations

from typing import Any

from jaxcc.layout import LayoutError


def unsupported(what: str, line: Any = None, because: str = "") -> LayoutError:
    """OPTIM_UNSUPPORTED, with the way that needs no fusing."""
    return LayoutError(
        "OPTIM_UNSUPPORTED",
        f"this optimizer cannot be fused: {what}",
        line=line,
        because=because,
        fixes=(
            "run it unfused: grads = jax.lax.pmean(grads, axis_name); "
            "updates, state = tx.update(grads, state, params)",
        ),
    )
