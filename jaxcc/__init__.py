"""jaxcc: layouts, schedules and fused collectives for parallel JAX programs.

If jaxcc accepts a program, it computes the same on one rank and on N.

Importing jaxcc imports neither JAX nor the rooms: each name below does so when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxcc._version import __version__ as __version__

if TYPE_CHECKING:
    from jaxcc._arrays import layout_of as layout_of
    from jaxcc._arrays import put as put
    from jaxcc._malloc import malloc_environment as malloc_environment
    from jaxcc._malloc import tune_malloc as tune_malloc
    from jaxcc._typed import TypedFunction as TypedFunction
    from jaxcc._typed import typed as typed
    from jaxcc.launch._init import init as init
    from jaxcc.layout import BackendError as BackendError
    from jaxcc.layout import CodegenError as CodegenError
    from jaxcc.layout import JaxccError as JaxccError
    from jaxcc.layout import LayoutError as LayoutError
    from jaxcc.layout import LayoutReport as LayoutReport
    from jaxcc.layout import Local as Local
    from jaxcc.layout import Partial as Partial
    from jaxcc.layout import Replicated as Replicated
    from jaxcc.layout import ScheduleError as ScheduleError
    from jaxcc.layout import Sliced as Sliced
    from jaxcc.layout import TableError as TableError
    from jaxcc.layout import check as check
    from jaxcc.layout import name as name
    from jaxcc.layout import on as on
    from jaxcc.layout import register_layout_rule as register_layout_rule
    from jaxcc.layout import unsafe_assume as unsafe_assume
    from jaxcc.schedule import Schedule as Schedule
    from jaxcc.schedule import UnfusedWarning as UnfusedWarning
    from jaxcc.schedule.tuner import Tuned as Tuned

_NAMES = {
    "jaxcc._arrays": ("layout_of", "put"),
    "jaxcc._malloc": ("malloc_environment", "tune_malloc"),
    "jaxcc._typed": ("TypedFunction", "typed"),
    "jaxcc.launch._init": ("init",),
    "jaxcc.layout": (
        *("BackendError", "CodegenError", "JaxccError", "LayoutError", "ScheduleError"),
        *("LayoutReport", "Local", "Partial", "Replicated", "Sliced", "TableError"),
        *("check", "name", "on", "register_layout_rule", "unsafe_assume"),
    ),
    "jaxcc.schedule": ("Schedule", "UnfusedWarning"),
    "jaxcc.schedule.tuner": ("Tuned",),
}
_HOME = {attribute: module for module, names in _NAMES.items() for attribute in names}
__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]

_ROOMS = ("comm", "layout", "nnx", "optim", "random", "schedule", "testing")


def __getattr__(attribute: str) -> Any:
    if attribute in _ROOMS:
        return importlib.import_module(f"jaxcc.{attribute}")
    if attribute not in _HOME:
        raise AttributeError(f"module 'jaxcc' has no attribute {attribute!r}")
    found: Any = getattr(importlib.import_module(_HOME[attribute]), attribute)
    globals()[attribute] = found
    return found


def __dir__() -> list[str]:
    dunder = (each for each in globals() if each.startswith("__"))
    return sorted({*dunder, *_HOME, *_ROOMS})
