"""JAX's coordination service, through which processes find one another.

Importing this imports no JAX: a launcher has no use for it, and ranks start while it would load.
"""

from __future__ import annotations

import os
from typing import Any

# A rank that is stopped, in a debugger or by Ctrl-Z, is not dead. Who starts ranks sees them die.
HEARTBEAT_S = 24 * 60 * 60


def serve(address: str, ranks: int) -> Any:
    """Starts the service of a group at `address`; it ends with the object that is returned.

    A rank that dies takes no other rank with it.
    """
    # What it logs, at levels below an error, is that it starts, listens and ends.
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    return _jax.get_distributed_runtime_service(
        address, ranks, heartbeat_timeout=HEARTBEAT_S, recoverable=True
    )
