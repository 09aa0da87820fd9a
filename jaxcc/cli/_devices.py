"""Ranks for a command: virtual CPU devices, asked for before JAX starts."""

from __future__ import annotations

import os
import re

_FLAG = "--xla_force_host_platform_device_count"


def force_host_devices(count: int) -> None:
    """Makes JAX, not yet started, show `count` CPU devices; a setting for more stays."""
    flags = os.environ.get("XLA_FLAGS", "")
    given = re.search(rf"{_FLAG}=(\d+)", flags)
    if given is None:
        flags = f"{flags} {_FLAG}={count}".strip()
    elif int(given[1]) < count:
        flags = flags.replace(given[0], f"{_FLAG}={count}")
    os.environ["XLA_FLAGS"] = flags
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
