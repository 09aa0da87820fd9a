"""jaxcc: layouts, schedules and fused collectives for parallel JAX programs.

If jaxcc accepts a program, it computes the same on one rank and on N.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from jax.ad_checkpoint import checkpoint_name

from jaxcc import _compat
from jaxcc._typed import TypedFunction as TypedFunction
from jaxcc._typed import typed as typed
from jaxcc._version import __version__ as __version__
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
from jaxcc.layout import on as on
from jaxcc.layout import register_layout_rule as register_layout_rule
from jaxcc.schedule import Schedule as Schedule
from jaxcc.schedule import UnfusedWarning as UnfusedWarning

name = checkpoint_name
"""`jaxcc.name(x, "total")` labels a value; schedules and listings refer to it by the label."""

# Messages and help name what users import.
for _public in (
    *(BackendError, CodegenError, JaxccError, LayoutError, ScheduleError, TableError),
    *(LayoutReport, Schedule, TypedFunction, UnfusedWarning, Partial, Sliced),
):
    _public.__module__ = "jaxcc"

# Imported when first used: they need more packages, or more time.
_ROOMS = ("comm", "nnx", "optim", "testing")

_HERE = os.path.dirname(os.path.abspath(__file__))
_compat.hide_from_user_lines(
    *(
        os.path.join(_HERE, room)
        for room in ("layout", "program", "schedule", "codegen", "runtime", "comm", "optim", "nnx")
    )
)


def __getattr__(attribute: str) -> Any:
    if attribute in _ROOMS:
        return importlib.import_module(f"jaxcc.{attribute}")
    raise AttributeError(f"module 'jaxcc' has no attribute {attribute!r}")
