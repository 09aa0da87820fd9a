"""Layouts from annotations: `x: Annotated[Float[Array, "b d"], Sliced(1)]`.

jaxtyping's names stand for whole sizes and bind across the arguments and the result. Only the
annotation's text is read, so jaxtyping itself is not imported.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import jax

from jaxcc.layout._errors import LayoutError
from jaxcc.layout._layouts import Layout, LayoutMap, Replicated, class_fixes
from jaxcc.layout._trace import function_name, positional_parameters

# JAX has types for some of its parameters only.
_jax: Any = jax
_tree_util: Any = jax.tree_util

Size = int | tuple[int, ...]
"""Of a dimension, or of all that a name such as `*batch` stands for."""

_UNEVALUABLE = (NameError, TypeError, AttributeError, SyntaxError)


def layouts_from_annotations(f: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
    """The layouts that `f`'s annotations state: by parameter, and of the result (None if it has
    none).

    A parameter without a layout is left out. A result that is a `tuple[...]` gives a tuple.

    Raises:
      LayoutError: LAYOUT_ANNOTATION for a class, such as Sliced, in the place of a layout.
    """
    hints = annotations_of(f)
    parameters = {
        name: layout
        for name, hint in hints.items()
        if name != "return" and (layout := _layout_of(hint, f"parameter '{name}'")) is not None
    }
    return parameters, _result_layouts(hints.get("return"))


def bind_annotations(f: Callable[..., Any], args: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
    """`(in_layouts, out_layouts)` for positional `args`.

    Raises:
      LayoutError: LAYOUT_ANNOTATION if the parameter of an argument with arrays states no layout.
    """
    parameters, result = layouts_from_annotations(f)
    names = _argument_parameters(f, len(args))
    for name, arg in zip(names, args, strict=True):
        if name not in parameters and jax.tree.leaves(arg):
            raise LayoutError(
                "LAYOUT_ANNOTATION",
                f"parameter '{name}' of {function_name(f)} states no layout",
                fixes=(
                    f"annotate it: {name}: Annotated[Array, Replicated]",
                    "or pass in_layouts=",
                ),
            )
    return tuple(parameters.get(name, Replicated) for name in names), result


def bind_shapes(f: Callable[..., Any], args: Sequence[Any]) -> dict[str, Size]:
    """The sizes that jaxtyping's names have for these arguments, whose shapes are whole ones.

    Raises:
      LayoutError: LAYOUT_SHAPE if a shape does not fit its annotation, or a name has two sizes.
    """
    hints = annotations_of(f)
    bound: dict[str, Size] = {}
    names = _argument_parameters(f, len(args))
    for arg, name in zip(args, names, strict=True):
        dims = _dimensions(hints.get(name))
        paths, _ = _tree_util.tree_flatten_with_path(arg)
        for path, leaf in paths if dims is not None else ():
            what = f"argument '{name}{_tree_util.keystr(path)}'"
            _bind(bound, dims or [], tuple(leaf.shape), what)
    return bound


def stated_types(f: Callable[..., Any]) -> dict[str, jax.ShapeDtypeStruct]:
    """The whole types of the parameters whose annotations state every size, by parameter."""
    types: dict[str, jax.ShapeDtypeStruct] = {}
    for name, hint in annotations_of(f).items():
        dims = _dimensions(hint)
        sizes = [dim.rpartition("=")[2] for dim in dims or ()]
        if dims is not None and name != "return" and all(size.isdigit() for size in sizes):
            types[name] = jax.ShapeDtypeStruct([int(size) for size in sizes], _dtype(hint))
    return types


def _dtype(hint: Any) -> Any:
    """The dtype of a jaxtyping annotation; of those that it allows, the one that JAX prefers."""
    allowed: Any = getattr(_array_hint(hint), "dtypes", ())
    usual = ("float32", "int32", "uint32", "bool", "complex64")
    named = cast(tuple[str, ...], allowed if isinstance(allowed, (tuple, list)) else ())
    if "prng_key" in named:
        return _jax.eval_shape(_jax.random.key, 0).dtype
    return next((one for one in usual if one in named), named[0] if named else "float32")


def check_result_shapes(
    f: Callable[..., Any], args: Sequence[Any], results: Sequence[tuple[int, ...]]
) -> None:
    """Holds the whole shapes of the result's leaves against `f`'s annotation of it.

    Raises:
      LayoutError: LAYOUT_SHAPE if one does not fit.
    """
    bound = bind_shapes(f, args)
    hints = _members(annotations_of(f).get("return"))
    if len(hints) != len(results):
        return
    for index, (hint, shape) in enumerate(zip(hints, results, strict=True)):
        dims = _dimensions(hint)
        if dims is not None:
            _bind(bound, dims, shape, f"result {index}" if len(hints) > 1 else "the result")


def annotations_of(f: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function that can be evaluated, by parameter.

    Others, which name something that is imported for type checkers only or is local to where the
    function is written, are left out.
    """
    while isinstance(f, functools.partial):
        f = cast(Callable[..., Any], f.func)
    try:
        return get_type_hints(f, include_extras=True)
    except _UNEVALUABLE:
        pass
    found: dict[str, Any] = {}
    for name, one in dict(getattr(f, "__annotations__", {})).items():
        alone = SimpleNamespace(__annotations__={name: one})
        names = getattr(inspect.unwrap(f), "__globals__", {})
        with contextlib.suppress(*_UNEVALUABLE):
            found |= get_type_hints(alone, globalns=names, include_extras=True)
    return found


def _argument_parameters(f: Callable[..., Any], count: int) -> list[str]:
    return [name for name, _ in positional_parameters(f, count)]


def _stated(hint: Any) -> Any:
    """The annotation itself, without `| None`."""
    if get_origin(hint) not in (Union, UnionType):
        return hint
    members = [one for one in get_args(hint) if one is not type(None)]
    return members[0] if len(members) == 1 else hint


def _layout_of(hint: Any, what: str = "the result") -> Any:
    hint = _stated(hint)
    if get_origin(hint) is not Annotated:
        return None
    for kind in get_args(hint)[1:]:
        if isinstance(kind, type) and issubclass(kind, Layout):
            raise LayoutError(
                "LAYOUT_ANNOTATION",
                f"{what} is annotated with the class {kind.__name__}, not with a layout",
                fixes=class_fixes(kind),
            )
    return next((m for m in get_args(hint)[1:] if _are_layouts(m)), None)


def _are_layouts(stated: Any) -> bool:
    """Whether an annotation's metadata is a layout, or a pytree of layouts."""
    leaves = [stated]
    if isinstance(stated, (dict, list, tuple)):
        leaves = _tree_util.tree_leaves(stated)
    return bool(leaves) and all(isinstance(leaf, (Layout, LayoutMap)) for leaf in leaves)


def _members(result: Any) -> tuple[Any, ...]:
    return get_args(result) if get_origin(result) is tuple else (result,)


def _result_layouts(result: Any) -> Any:
    layouts = tuple(_layout_of(member) for member in _members(result))
    if not layouts or any(layout is None for layout in layouts):
        return None
    return layouts if get_origin(result) is tuple else layouts[0]


def _array_hint(hint: Any) -> Any:
    """What an annotation says of the array itself, without its layout."""
    hint = _stated(hint)
    return _stated(get_args(hint)[0]) if get_origin(hint) is Annotated else hint


def _dimensions(hint: Any) -> list[str] | None:
    """The dimensions of a jaxtyping annotation, or None if `hint` is none."""
    text = getattr(_array_hint(hint), "dim_str", None)
    return text.split() if isinstance(text, str) else None


def _bind(bound: dict[str, Size], dims: Sequence[str], shape: tuple[int, ...], what: str) -> None:
    """Gives the names in `dims` their sizes; a name of several dimensions stands at most once."""
    many = next((i for i, dim in enumerate(dims) if _is_many(dim)), None)
    fits = len(shape) == len(dims) if many is None else len(shape) >= len(dims) - 1
    if not fits:
        raise LayoutError(
            "LAYOUT_SHAPE", f"{what} has shape {shape}, but its annotation is '{' '.join(dims)}'"
        )
    sizes: list[Size] = list(shape)
    if many is not None:
        end = len(shape) - (len(dims) - many - 1)
        sizes[many:end] = [shape[many:end]]
    for dim, size in zip(dims, sizes, strict=True):
        _bind_one(bound, dim, size, shape, what)


def _is_many(dim: str) -> bool:
    return dim == "..." or dim.lstrip("#_?").startswith("*")


def _bind_one(
    bound: dict[str, Size], dim: str, size: Size, shape: tuple[int, ...], what: str
) -> None:
    # `#` broadcasts, `?` differs between the leaves of a tree, `_` is not held to anything, and
    # `rows=4` is a 4 with a comment.
    name = dim.lstrip("#?*").rpartition("=")[2]
    if dim == "..." or "?" in dim or name.startswith("_") or ("#" in dim and size in (1, ())):
        return
    expected: Size
    if name.isdigit():
        expected = int(name)
    elif name.isidentifier():
        expected = bound.setdefault("*" * _is_many(dim) + name, size)
    else:
        return
    if expected != size:
        raise LayoutError(
            "LAYOUT_SHAPE",
            f"{what} has shape {shape}: dimension '{name}' is {size}, but {expected} "
            + ("in its annotation" if name.isdigit() else "elsewhere"),
        )
