"""The profile to rank with: a chosen one, one measured here, or a like machine's."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from jaxcc.layout import TableError
from jaxcc.schedule.tuner import _store
from jaxcc.schedule.tuner._machines import CPU, DGX2, H100, H200, MACHINES
from jaxcc.schedule.tuner._profile import Profile, load_profile, parse_profile

_BY_KIND = {"V100": DGX2, "H200": H200, "H100": H100}


def find_profile(chosen: Profile | str | None, mesh: Any) -> Profile:
    """The chosen profile: itself, the name of a machine that jaxcc knows, or a file; None is that
    for the mesh.

    Raises:
      TableError: TABLE_MISSING, TABLE_PROFILE.
    """
    if chosen is None:
        return profile_for(mesh)
    if isinstance(chosen, Profile):
        return chosen
    if chosen in MACHINES:
        return MACHINES[chosen]
    if os.path.exists(chosen):
        return load_profile(chosen)
    raise TableError(
        "TABLE_MISSING",
        f"{chosen!r} is neither a machine that jaxcc knows, {', '.join(MACHINES)}, nor a file",
        fixes=("jaxcc tune --profile --json > machine.json writes one for this machine",),
    )


def profile_for(mesh: Any) -> Profile:
    """The profile for a mesh's devices."""
    path = _store.profile_path()
    content = _store.read_json(path) if path else None
    if content is not None:
        try:
            return parse_profile(content)
        except TableError:
            pass  # another version's
    device = np.asarray(mesh.devices).flat[0]
    # Other accelerators are more like a recent one than like a CPU.
    other = CPU if device.platform == "cpu" else H100
    return next((one for name, one in _BY_KIND.items() if name in device.device_kind), other)


def save_profile(profile: Profile) -> str | None:
    """Keeps a measured profile for later runs on this machine; the file, None if it cannot be
    kept.
    """
    path = _store.profile_path()
    kept = path is not None and _store.write_json(path, profile.to_json())
    return str(path) if kept else None
