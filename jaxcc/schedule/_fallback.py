"""What is said, once, when a fused program must run without its kernel."""

from __future__ import annotations

import os
import warnings

from jaxcc.layout import JaxccError

_said: set[str] = set()
_LINES = 8
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


class UnfusedWarning(UserWarning):
    """A program runs with the same result but without its fused kernel."""

    __module__ = "jaxcc"


def warn_unfused(error: JaxccError) -> None:
    """Warns, once in this process for each reason, that fused operations run as separate ones."""
    if error.code in _said:
        return
    _said.add(error.code)
    finding = error.findings[0]
    fix = f" To change that: {finding.fixes[0]}." if finding.fixes else ""
    # A compiler may say much, and what matters first.
    why = finding.because.splitlines()
    shown = "\n    ".join([*why[:_LINES], *(["..."] if len(why) > _LINES else [])])
    because = f"\n  because: {shown}" if shown else ""
    warnings.warn(
        f"jaxcc runs unfused: same results, without the fused kernel's speed. "
        f"[{error.code}] {finding.what}.{fix}{because}",
        UnfusedWarning,
        skip_file_prefixes=(_OURS,),
    )
