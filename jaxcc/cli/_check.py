"""`jaxcc check`: checks a function for given shapes and ranks, without running it."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType

import jaxcc
from jaxcc.cli._output import Output, findings_document
from jaxcc.cli._usage import CLEAN, FINDINGS, UsageError
from jaxcc.layout import JaxccError, LayoutReport, layouts_from_annotations, stated_types

_ARRAY = re.compile(r"(?P<kind>[a-z]+)(?P<bits>\d*)\[(?P<shape>(\d+(,\d+)*)?)\]", re.ASCII)
_KEY = re.compile(r"key<(?P<impl>fry|rbg|urbg)>\[(?P<shape>(\d+(,\d+)*)?)\]", re.ASCII)
_IMPLEMENTATIONS = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}
_NAMED = re.compile(r"(?P<name>[^\W\d]\w*)=(?P<type>.*)", re.DOTALL)
_LONG = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "c": "complex", "bool": "bool"}
_JAXCC = os.path.dirname(jaxcc.__file__) + os.sep
_IMPORTLIB = importlib.__file__


def check(
    target: str, arrays: Sequence[str], sizes: Mapping[str, int] | None, *, as_json: bool
) -> int:
    """Checks `module:function` for arguments such as `f32[8,1024]`, whole shapes, in order.

    Without arrays, their types come from the function's annotations; without sizes, the mesh is the
    function's own. A function that has neither parameters nor layouts is called instead, and
    returns the report of a check of its own.
    """
    found = find_target(target)
    if _takes_nothing(found):
        if arrays or sizes is not None:
            raise UsageError(
                f"{target} takes no arguments, so it is called for the report of a check of its "
                "own: leave out --mesh and the arguments' types"
            )
        run = functools.partial(_own_report, target, found)
    else:
        run = _checking(target, typed_target(target, found, sizes), arrays)
    output = Output(as_json)
    try:
        report = run()
    except jaxcc.LayoutError as error:
        output.show(str(error))
        output.document({"clean": False, "findings": findings_document(error)})
        return FINDINGS
    except (Exception, SystemExit) as error:
        if isinstance(error, JaxccError) or not _where(error):
            raise
        # What the checker adds; JAX's own note is about a traceback that is not shown.
        notes = [note for note in getattr(error, "__notes__", ()) if "traceback" not in note]
        raise UsageError("\n".join([f"{target} raises {_raised(error)}", *notes])) from None
    output.show(str(report))
    output.document({"clean": True, "findings": [], "report": report.to_json()})
    return CLEAN


def _checking(
    target: str, function: jaxcc.TypedFunction, arrays: Sequence[str]
) -> Callable[[], LayoutReport]:
    """The check of a function for these arguments."""
    bound = bound_arrays(target, function, arrays)
    return functools.partial(function.check, *bound.args, **bound.kwargs)


def bound_arrays(
    target: str, function: jaxcc.TypedFunction, arrays: Sequence[str]
) -> inspect.BoundArguments:
    """The types of the function's arguments, written as `arrays` or stated by its annotations."""
    args, kwargs = _avals(arrays)
    if not arrays:
        kwargs = _stated(target, function)
    try:
        return inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(f"{target}: {error}; {len(arrays)} given") from None


def _takes_nothing(function: Any) -> bool:
    """Whether it is a plain function that can only be called without arguments."""
    own = inspect.isfunction(function) or inspect.ismethod(function)
    plain = own and not layouts_from_annotations(function)[0]
    return plain and not inspect.signature(function).parameters


def _own_report(target: str, function: Callable[[], Any]) -> LayoutReport:
    report = function()
    if not isinstance(report, LayoutReport):
        raise UsageError(
            f"{target} takes no arguments, and returns {type(report).__name__}, not what "
            "jaxcc.check returns"
        )
    return report


def find_target(target: str) -> Any:
    """What `module:function` or `module:instance.method` names, imported from the current folder,
    too.
    """
    name, _, path = target.partition(":")
    if not all(part.isidentifier() for part in (*name.split("."), *path.split("."))):
        raise UsageError(
            f"{target!r} is not MODULE:FUNCTION, such as mymodule:step or mymodule:model.step"
        )
    sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    # Whatever the user's module raises, SystemExit too, is an answer about it.
    except (Exception, SystemExit) as error:
        is_file = isinstance(error, ModuleNotFoundError) and name.endswith(".py")
        fix = f"; a module has no .py: {name.removesuffix('.py')}:{path}" if is_file else ""
        raise UsageError(f"cannot import {name}: {_raised(error)}{fix}") from None
    found: Any = module
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
        if found is None:
            raise UsageError(f"{name} has no {path}")
    return found


def typed_target(
    target: str, function: Any, sizes: Mapping[str, int] | None
) -> jaxcc.TypedFunction:
    """The function with its layouts, over a mesh of these sizes or over its own."""
    if not isinstance(function, jaxcc.TypedFunction):
        if not callable(function):
            raise UsageError(f"{target} is no function: its type is {type(function).__qualname__}")
        if not layouts_from_annotations(function)[0]:
            raise UsageError(
                f"{target} has no layouts; annotate its parameters with Annotated[..., Sliced(0)], "
                "or decorate it with @jaxcc.typed"
            )
        function = jaxcc.typed()(function)
    if "self" in inspect.signature(function).parameters:
        raise UsageError(
            f"{target} has no instance for its parameter 'self'; name the method of an instance in "
            "the module, such as mymodule:model.step"
        )
    if sizes is not None:
        axis_types = (AxisType.Auto,) * len(sizes)
        return function.over(AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types))
    try:
        assert function.mesh is not None
    except jaxcc.LayoutError:
        raise UsageError(f"{target} has no mesh; give one, for example --mesh tp=4") from None
    return function


def _stated(target: str, function: jaxcc.TypedFunction) -> dict[str, jax.ShapeDtypeStruct]:
    """The types that the annotations of all parameters without a default state."""
    types = stated_types(function)
    for name, parameter in inspect.signature(function).parameters.items():
        variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in types and parameter.default is parameter.empty and not variable:
            raise UsageError(
                f"{target}: the annotation of '{name}' does not say its sizes; give the type of "
                'every argument, for example "f32[8,1024]"'
            )
    return types


def _avals(
    arrays: Sequence[str],
) -> tuple[list[jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
    """The positional arguments, and those that are written `name=f32[8]`."""
    args: list[jax.ShapeDtypeStruct] = []
    kwargs: dict[str, jax.ShapeDtypeStruct] = {}
    for text in arrays:
        named = _NAMED.fullmatch(text)
        if named is not None:
            kwargs[named["name"]] = _aval(named["type"])
        elif kwargs:
            raise UsageError(f"{text!r} has no name, but stands after one that has")
        else:
            args.append(_aval(text))
    return args, kwargs


def _raised(error: BaseException) -> str:
    """The exception's type and message, where it was raised, and what may help, in one line."""
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    frame, hint = _frame(error), ""
    told = f"{what} {frame.line if frame else ''}".lower()
    if "device" in told or "mesh" in told:
        hint = f"; of devices there are {jax.device_count()} here: --ranks N makes N on the CPU"
    return f"{what}{_where(error)}{hint}"


def _where(error: BaseException) -> str:
    """` (file.py:line)`, the innermost line of the user's that the error passed; empty if none."""
    frame = _frame(error)
    return "" if frame is None else f" ({os.path.relpath(frame.filename)}:{frame.lineno})"


def _frame(error: BaseException) -> traceback.FrameSummary | None:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", _JAXCC)) and frame.filename != _IMPORTLIB
    ]
    own = [frame for frame in frames if frame.filename.startswith(os.getcwd() + os.sep)] or frames
    return own[-1] if own else None


def _aval(text: str) -> jax.ShapeDtypeStruct:
    """`f32[8,1024]` as JAX prints it, or `float32[8,1024]`."""
    key = _KEY.fullmatch(text.replace(" ", ""))
    if key is not None:
        make = functools.partial(jax.random.key, impl=_IMPLEMENTATIONS[key["impl"]])
        return jax.ShapeDtypeStruct(_sizes(key["shape"]), jax.eval_shape(make, 0).dtype)
    found = _ARRAY.fullmatch(text.replace(" ", ""))
    if found is None:
        raise UsageError(f"{text!r} is not an array type such as f32[8,1024]")
    try:
        dtype = jax.numpy.dtype(_LONG.get(found["kind"], found["kind"]) + found["bits"])
        usual = jax.dtypes.canonicalize_dtype(dtype)
        # NumPy has dtypes that JAX has not.
        jax.numpy.result_type(usual)
    except TypeError:
        raise UsageError(f"{text!r} does not start with a dtype such as f32") from None
    if usual != dtype:
        raise UsageError(f"{text!r} has 64-bit values, which JAX turns off: set JAX_ENABLE_X64=1")
    return jax.ShapeDtypeStruct(_sizes(found["shape"]), dtype)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]
