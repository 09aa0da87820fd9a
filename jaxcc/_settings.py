"""Settings of the environment."""

from __future__ import annotations

import math
import os

NAMES = frozenset(
    f"JAXCC_{name}"
    for name in "CACHE_DIR CHECK COORDINATOR CXX LAUNCHER RANK RANKS TABLE TIMEOUT_S".split()
)
"""The variables that jaxcc reads."""

_TIMEOUT = "JAXCC_TIMEOUT_S"
_USUAL_S = "300"
# The C++ part counts nanoseconds in 64 bits, and sockets' clocks end soon after.
_MOST_S = 1e9


def timeout_s() -> float:
    """How long ranks wait for one another.

    Raises:
      BackendError: BACKEND_SETTING if the variable is no number of seconds.
    """
    text = os.environ.get(_TIMEOUT) or _USUAL_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < _MOST_S:
        from jaxcc.layout import BackendError

        raise BackendError(
            "BACKEND_SETTING",
            f"{_TIMEOUT} is {text!r}, not seconds",
            fixes=(
                f"set it to a number above 0 and below {_MOST_S:g}",
                f"unset it for {_USUAL_S}",
            ),
        )
    return seconds
