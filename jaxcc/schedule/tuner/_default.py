"""The profile to rank with where none is given: one measured here, or a like machine's."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxcc.layout import TableError
from jaxcc.schedule.tuner import _store
from jaxcc.schedule.tuner._machines import CPU, DGX2, H100, H200
from jaxcc.schedule.tuner._profile import Profile, parse_profile

_BY_KIND = {"V100": DGX2, "H200": H200, "H100": H100}


def profile_for(mesh: Any) -> Profile:
    """The profile for a mesh's devices."""
    path = _store.profile_path()
    content = _store.read_json(path) if path else None
    if content is not None:
        try:
            return parse_profile(content)
        except TableError:
            pass  # another version's
    kind = str(np.asarray(mesh.devices).flat[0].device_kind)
    return next((known for name, known in _BY_KIND.items() if name in kind), CPU)


def save_profile(profile: Profile) -> str | None:
    """Keeps a measured profile for later runs on this machine; the file, None without a folder."""
    path = _store.profile_path()
    if path is None:
        return None
    _store.write_json(path, profile.to_json())
    return str(path)
