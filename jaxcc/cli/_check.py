"""`jaxcc check`: checks a typed function for given shapes, without running it."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax

import jaxcc
from jaxcc.cli._output import Output
from jaxcc.cli._usage import CLEAN, FINDINGS, UsageError

_ARRAY = re.compile(r"(?P<kind>[a-z]+)(?P<bits>\d*)\[(?P<shape>[\d,\s]*)\]")
_LONG = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "c": "complex", "bool": "bool"}


def check(target: str, arrays: Sequence[str], *, as_json: bool) -> int:
    """Checks `module:function` for arguments such as `f32[8,1024]`, whole shapes, in order."""
    function, avals = _find(target), [_aval(text) for text in arrays]
    output = Output(as_json)
    try:
        report = function.check(*avals)
    except jaxcc.LayoutError as error:
        output.show(str(error))
        output.document({"clean": False, "findings": [asdict(one) for one in error.findings]})
        return FINDINGS
    output.show(str(report))
    output.document({"clean": True, "findings": [], "report": str(report)})
    return CLEAN


def _find(target: str) -> Any:
    name, colon, attribute = target.partition(":")
    if not (name and colon and attribute):
        raise UsageError(f"{target!r} is not MODULE:FUNCTION, such as mymodule:step")
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(f"cannot import {name}: {error}") from None
    function = getattr(module, attribute, None)
    if function is None:
        raise UsageError(f"{name} has no {attribute}")
    if not hasattr(function, "check"):
        raise UsageError(f"{target} has no layouts; decorate it with @jaxcc.typed")
    return function


def _aval(text: str) -> jax.ShapeDtypeStruct:
    """`f32[8,1024]` as JAX prints it, or `float32[8,1024]`."""
    found = _ARRAY.fullmatch(text.replace(" ", ""))
    if found is None:
        raise UsageError(f"{text!r} is not an array type such as f32[8,1024]")
    try:
        dtype = jax.numpy.dtype(_LONG.get(found["kind"], found["kind"]) + found["bits"])
    except TypeError:
        raise UsageError(f"{text!r} does not start with a dtype such as f32") from None
    return jax.ShapeDtypeStruct([int(size) for size in found["shape"].split(",") if size], dtype)
