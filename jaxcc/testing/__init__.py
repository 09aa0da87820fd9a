"""Helpers for tests of programs that use jaxcc, and, in `_plugin`, the pytest plugin.

Importing this room does not import JAX, which the plugin has to configure first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcc.testing._assumptions import assert_assumptions as assert_assumptions
    from jaxcc.testing._expect import raises_layout as raises_layout
    from jaxcc.testing._invariance import assert_rank_invariant as assert_rank_invariant
    from jaxcc.testing._layouts import assert_layout as assert_layout
    from jaxcc.testing._rulecheck import RuleCheck as RuleCheck
    from jaxcc.testing._rulecheck import rulecheck as rulecheck

_HOME = {
    "RuleCheck": "_rulecheck",
    "assert_assumptions": "_assumptions",
    "assert_layout": "_layouts",
    "assert_rank_invariant": "_invariance",
    "raises_layout": "_expect",
    "rulecheck": "_rulecheck",
}
__all__ = list(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(attribute: str) -> Any:
    if attribute not in _HOME:
        raise AttributeError(f"module 'jaxcc.testing' has no attribute {attribute!r}")
    return getattr(importlib.import_module(f"jaxcc.testing.{_HOME[attribute]}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
