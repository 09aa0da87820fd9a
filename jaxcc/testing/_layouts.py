"""`assert_layout`: the layout of an array, of results, or of values inside a program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from jaxcc import TypedFunction, layout_of
from jaxcc.layout import Layout, LayoutMap, LayoutReport, Sliced, as_map, type_texts


def assert_layout(value: Any, *args: Any, results: Any = None, **named: Any) -> None:
    """Asserts a layout, in one of three forms:

        assert_layout(array, Sliced(0))
        assert_layout(layer, x, w, results=Replicated, total=Partial())
        assert_layout(report, results=Replicated, total=Partial())

    Args:
      value: a jax array; or a typed function, or the report of `jaxcc.check`.
      *args: the array's layout; or the function's whole arguments.
      results: a layout for each leaf of the result, or one for all.
      **named: the layouts of values that the program labels, here `jaxcc.name(x, "total")`; other
        labels than Python's names go in as `**{"block/total": Partial()}`. A value that is labelled
        several times has to have the layout everywhere.

    Raises:
      AssertionError: a layout is another one; says what the value is and where it got it.
      LayoutError: the checker refuses the function.
    """
    if isinstance(value, TypedFunction | LayoutReport):
        report = value.check(*args) if isinstance(value, TypedFunction) else value
        name = getattr(value, "__name__", "the program")
        if results is None and not named:
            raise TypeError("assert_layout: give results=, or a layout for a label")
        _assert_results(name, report, results)
        _assert_named(name, report, named)
        return
    if len(args) != 1 or results is not None or named:
        raise TypeError(
            "assert_layout takes an array and its layout, a typed function and its arguments, or a "
            f"report, not {type(value).__name__} and {len(args)} arguments; decorate a function "
            "with @jaxcc.typed"
        )
    found = layout_of(value)
    expected = as_map(args[0], tuple(value.sharding.mesh.shape))
    if not _same(found, expected):
        raise AssertionError(
            f"the array is {_text(found)}, not {_text(expected)}\n"
            f"  {value.dtype}{list(value.shape)}, {value.sharding}"
        )


def _assert_results(name: str, report: LayoutReport, results: Any) -> None:
    if results is None:
        return
    found = report.out_layouts
    leaves: list[Any] = jax.tree.leaves(results)
    wanted = leaves * len(found) if isinstance(results, Layout | LayoutMap) else leaves
    if len(wanted) != len(found):
        raise AssertionError(f"{name} has {len(found)} results, not {len(wanted)}")
    for index, (layout, one) in enumerate(zip(found, wanted, strict=True)):
        expected = as_map(one, tuple(layout))
        if not _same(layout, expected):
            raise AssertionError(
                f"result {index} of {name} is {_text(layout)}, not {_text(expected)}\n{report}"
            )


def _assert_named(name: str, report: LayoutReport, named: Mapping[str, Any]) -> None:
    steps = [step for step in report.source.steps if step.op == "name"]
    labels = sorted({str(step.params["name"]) for step in steps})
    for label, one in named.items():
        if label not in labels:
            known = ", ".join(labels) or "none"
            raise AssertionError(f"{name} labels no value {label!r}; its labels: {known}")
        expected = as_map(one, tuple(report.sizes[0]))
        for slot in (step.results[0] for step in steps if step.params["name"] == label):
            found = report.source.layout(slot)
            if not isinstance(found, LayoutMap) or not _same(found, expected):
                held = report.source.held[slot]
                raise AssertionError(
                    f"{label!r} in {name} is {_text(found)}, not {_text(expected)}\n"
                    f"  {type_texts([slot])[0]}, {held.laid_out}"
                )


def _same(found: LayoutMap, expected: LayoutMap) -> bool:
    """Whether two layouts are equal, whatever the order of axes that slice no common dimension."""
    axes = {*found, *expected}
    return all(found[axis] == expected[axis] for axis in axes) and _slices(found) == _slices(
        expected
    )


def _slices(layout: LayoutMap) -> dict[int, list[str]]:
    """The axes that slice each dimension, the major one first."""
    dims: dict[int, list[str]] = {}
    for axis in layout.axes_with(Sliced):
        one = layout[axis]
        assert isinstance(one, Sliced)
        dims.setdefault(one.dim, []).append(axis)
    return dims


def _text(layout: LayoutMap | str) -> str:
    return layout if isinstance(layout, str) else layout.describe()
