"""Settings of the environment."""

from __future__ import annotations

import math
import os

_TIMEOUT = "JAXCC_TIMEOUT_S"


def timeout_s() -> float:
    """How long ranks wait for one another.

    Raises:
      BackendError: BACKEND_SETTING if the variable is no number of seconds.
    """
    text = os.environ.get(_TIMEOUT, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds > 0 or math.isinf(seconds):
        from jaxcc.layout import BackendError

        raise BackendError("BACKEND_SETTING", f"{_TIMEOUT} is {text!r}, not seconds")
    return seconds
