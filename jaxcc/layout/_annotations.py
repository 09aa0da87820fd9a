"""Layouts from annotations: `x: Annotated[Float[Array, "b d"], Sliced(1)]`.

jaxtyping's names stand for whole sizes and bind across the arguments and the result. Only the
annotation's text is read, so jaxtyping itself is not imported.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import jax

from jaxcc.layout._errors import LayoutError
from jaxcc.layout._layouts import Layout, LayoutMap, Local, Partial, Replicated, class_fixes

AnyLayout = Layout | LayoutMap


def layouts_from_annotations(f: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The layouts that `f`'s annotations state: by parameter, and of the result (None if it has
    none).

    A parameter without a layout is left out. A result that is a `tuple[...]` gives a tuple.

    Raises:
      LayoutError: LAYOUT_ANNOTATION for a class, such as Sliced, in the place of a layout.
    """
    hints = _hints(f)
    parameters = {
        name: layout
        for name, hint in hints.items()
        if name != "return" and (layout := _layout_of(hint, f"parameter '{name}'")) is not None
    }
    return parameters, _result_layouts(hints.get("return"))


def bind_annotations(f: Callable[..., Any], args: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """`(in_layouts, out_layouts)` for positional `args`, whose shapes must fit the annotations.

    Raises:
      LayoutError: LAYOUT_ANNOTATION if a parameter states no layout, LAYOUT_SHAPE if a shape does
        not fit.
    """
    parameters, result = layouts_from_annotations(f)
    names = _argument_parameters(f, len(args))
    missing = [name for name in names if name not in parameters]
    if missing:
        raise LayoutError(
            "LAYOUT_ANNOTATION",
            f"parameter '{missing[0]}' of {_name(f)} states no layout",
            fixes=(
                f"annotate it: {missing[0]}: Annotated[Array, Replicated]",
                "or pass in_layouts= to jaxcc.typed",
            ),
        )
    bind_shapes(f, args)
    return tuple(parameters[name] for name in names), result


def bind_shapes(f: Callable[..., Any], args: Sequence[Any]) -> dict[str, int]:
    """The sizes that jaxtyping's names have for these arguments.

    Raises:
      LayoutError: LAYOUT_SHAPE if a shape does not fit its annotation, or a name has two sizes.
    """
    hints = _hints(f)
    bound: dict[str, int] = {}
    for name, arg in zip(_argument_parameters(f, len(args)), args, strict=True):
        hint = hints.get(name)
        for leaf in jax.tree.leaves(arg) if _dimensions(hint) is not None else ():
            _bind(bound, hint, tuple(leaf.shape), f"argument '{name}'")
    return bound


def check_result_shapes(
    f: Callable[..., Any], args: Sequence[Any], results: Sequence[tuple[int, ...]]
) -> None:
    """Holds the whole shapes of the result's leaves against `f`'s annotation of it.

    Raises:
      LayoutError: LAYOUT_SHAPE if one does not fit.
    """
    result = _hints(f).get("return")
    if result is None:
        return
    hints = _members(result)
    if len(hints) != len(results):
        return
    bound = bind_shapes(f, args)
    for index, (hint, shape) in enumerate(zip(hints, results, strict=True)):
        if _dimensions(hint) is not None:
            _bind(bound, hint, shape, f"result {index}" if len(hints) > 1 else "the result")


def _hints(f: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(f, include_extras=True)
    except (NameError, TypeError):
        # An annotation that names something imported for type checkers only; it cannot hold a
        # layout.
        return {}


def _name(f: Callable[..., Any]) -> str:
    return getattr(f, "__name__", "the function")


def _argument_parameters(f: Callable[..., Any], count: int) -> list[str]:
    parameters = list(inspect.signature(f).parameters.values())
    names: list[str] = []
    for index in range(count):
        names.append(parameters[min(index, len(parameters) - 1)].name)
    return names


def _layout_of(hint: Any, what: str = "the result") -> AnyLayout | None:
    if get_origin(hint) is not Annotated:
        return None
    for kind in get_args(hint)[1:]:
        if isinstance(kind, type) and issubclass(kind, Layout):
            raise LayoutError(
                "LAYOUT_ANNOTATION",
                f"{what} is annotated with the class {kind.__name__}, not with a layout",
                fixes=class_fixes(kind),
            )
    return next((m for m in get_args(hint)[1:] if isinstance(m, (Layout, LayoutMap))), None)


def _members(result: Any) -> tuple[Any, ...]:
    return get_args(result) if get_origin(result) is tuple else (result,)


def _result_layouts(result: Any) -> Any:
    layouts = tuple(_layout_of(member) for member in _members(result))
    if not layouts or any(layout is None for layout in layouts):
        return None
    return layouts if get_origin(result) is tuple else layouts[0]


def _dimensions(hint: Any) -> list[str] | None:
    """The dimensions of a jaxtyping annotation, or None if `hint` is none."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    text = getattr(inner, "dim_str", None)
    return text.split() if isinstance(text, str) else None


def _bind(bound: dict[str, int], hint: Any, shape: tuple[int, ...], what: str) -> None:
    dims = _dimensions(hint) or []
    stacked = _stacked(_layout_of(hint))
    many = [i for i, dim in enumerate(dims) if dim == "..." or dim.startswith("*")]
    if many:
        tail = len(dims) - many[0] - 1
        pairs = [*zip(dims, shape[: many[0]], strict=False)]
        pairs += zip(dims[len(dims) - tail :], shape[len(shape) - tail :], strict=False)
        fits = len(shape) >= len(dims) - 1
    else:
        # A global Local or Partial array starts with a dimension for the ranks.
        own = shape[stacked:] if len(shape) == len(dims) + stacked else shape
        pairs = list(zip(dims, own, strict=False))
        fits = len(own) == len(dims)
    if not fits:
        raise LayoutError(
            "LAYOUT_SHAPE", f"{what} has shape {shape}, but its annotation is '{' '.join(dims)}'"
        )
    for dim, size in pairs:
        _bind_one(bound, dim, size, shape, what)


def _bind_one(
    bound: dict[str, int], dim: str, size: int, shape: tuple[int, ...], what: str
) -> None:
    name = dim.removeprefix("#")
    broadcasts = dim.startswith("#") and size == 1
    if name.startswith("_") or broadcasts:
        return
    if name.isdigit():
        expected = int(name)
    elif name.isidentifier():
        expected = bound.setdefault(name, size)
    else:
        return
    if expected != size:
        raise LayoutError(
            "LAYOUT_SHAPE",
            f"{what} has shape {shape}: dimension '{name}' is {size}, but {expected} "
            + ("in its annotation" if name.isdigit() else "elsewhere"),
        )


def _stacked(layout: AnyLayout | None) -> int:
    if layout is None or layout == Replicated:
        return 0
    if isinstance(layout, LayoutMap):
        return len(layout.stacked_axes())
    return int(isinstance(layout, Partial) or layout == Local)
