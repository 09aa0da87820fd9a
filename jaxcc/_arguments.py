"""One call of a typed function: which arguments are arrays, which are static, and their names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from jaxcc.layout import LayoutError, annotations_of, function_name

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Call:
    """One call, as a function of positional arrays.

    Attributes:
      f: the function of `args`; the static arguments are a part of it.
      args: the arguments that are not static, as far as they were given.
      parameters: of each of `args`, the parameter it was given for, and its own name.
      static: what tells this `f` from that of another call.
    """

    f: Callable[..., Any]
    args: tuple[Any, ...]
    parameters: tuple[tuple[str, str], ...]
    static: Hashable


class Signature:
    """The parameters of a typed function, and those of them that are static."""

    def __init__(
        self,
        f: Callable[..., Any],
        static_argnums: int | Iterable[int] | None,
        static_argnames: str | Iterable[str] | None,
    ) -> None:
        self._f = f
        self._name = function_name(f)
        try:
            self._signature = inspect.signature(f)
        except (TypeError, ValueError):  # a function written in C
            self._signature = inspect.signature(lambda *args: None)
        self._parameters = self._signature.parameters
        self._static = self._static_names(static_argnums, static_argnames)

    def _static_names(
        self,
        numbers: int | Iterable[int] | None,
        names: str | Iterable[str] | None,
    ) -> frozenset[str]:
        positional = [p.name for p in self._parameters.values() if p.kind in _POSITIONAL]
        chosen = set((names,) if isinstance(names, str) else names or ())
        for number in (numbers,) if isinstance(numbers, int) else numbers or ():
            if not -len(positional) <= number < len(positional):
                raise self._error(
                    f"static_argnums names argument {number}, but there are "
                    f"{len(positional)} positional ones"
                )
            chosen.add(positional[number])
        takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in self._parameters.values())
        unknown = sorted(chosen - set(self._parameters))
        if unknown and not takes_any:
            raise self._error(
                f"static_argnames names '{unknown[0]}', which is no parameter: there are "
                + ", ".join(self._parameters)
            )
        return frozenset(chosen)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of all parameters."""
        return tuple(self._parameters)

    def is_static(self, name: str) -> bool:
        """Whether the parameter is no array."""
        return name in self._static

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call with these arguments. Defaults that it leaves out stay constants of the
        function.

        Raises:
          LayoutError: they do not fit the parameters, or a static one is not hashable.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._error(str(error)) from None
        static: list[tuple[Any, ...]] = []
        places: list[tuple[str, Any]] = []
        values: list[Any] = []
        names: list[tuple[str, str]] = []
        for parameter, member, name, value in self._members(bound.arguments):
            if name in self._static:
                static.append((name, type(value), self._hashable(name, value)))
            else:
                places.append((parameter, member))
                values.append(value)
                names.append((parameter, name))
        plain = not static and not bound.kwargs and len(values) == len(bound.args)
        f = self._f if plain else self._arranged(bound.arguments, places, names)
        return Call(f, tuple(values), tuple(names), (tuple(places), tuple(static), plain))

    def layouts(self, in_layouts: Any, call: Call) -> Any:
        """The entries of `in_layouts` for the arguments of a call, which may leave out some."""
        given = [name for _, name in call.parameters]
        if isinstance(in_layouts, dict):
            unknown = sorted(set(in_layouts) - set(self._parameters) - set(given))
            if unknown:
                raise self._error(f"in_layouts names '{unknown[0]}', which is no argument")
            return tuple(self._named(in_layouts, name, of) for of, name in call.parameters)
        every = [name for name in self._parameters if name not in self._static]
        if (
            isinstance(in_layouts, tuple)
            and len(in_layouts) == len(every) != len(given)
            and set(given) <= set(every)
        ):
            return tuple(in_layouts[every.index(name)] for name in given)
        return in_layouts

    def _named(self, in_layouts: Mapping[str, Any], name: str, parameter: str) -> Any:
        if name not in in_layouts and parameter not in in_layouts:
            raise self._error(f"in_layouts has no layout for argument '{name}'")
        return in_layouts[name if name in in_layouts else parameter]

    def _members(self, arguments: Mapping[str, Any]) -> Iterable[tuple[str, Any, str, Any]]:
        """Of each value given: the parameter, the place in its `*args` or `**kwargs`, the name and
        the value.
        """
        for parameter, value in arguments.items():
            kind = self._parameters[parameter].kind
            if kind is Parameter.VAR_POSITIONAL:
                for i, one in enumerate(value):
                    yield parameter, i, f"{parameter}[{i}]", one
            elif kind is Parameter.VAR_KEYWORD:
                for key, one in value.items():
                    yield parameter, key, key, one
            else:
                yield parameter, None, parameter, value

    def _arranged(
        self,
        given: Mapping[str, Any],
        places: list[tuple[str, Any]],
        names: list[tuple[str, str]],
    ) -> Callable[..., Any]:
        """The function of the arrays alone, in order, with everything else as it was given."""

        @functools.wraps(self._f, assigned=("__name__", "__qualname__", "__doc__", "__module__"))
        def arranged(*arrays: Any) -> Any:
            arguments: dict[str, Any] = {}
            for name, value in given.items():
                kind = self._parameters[name].kind
                listed = kind is Parameter.VAR_POSITIONAL
                keyed = kind is Parameter.VAR_KEYWORD
                arguments[name] = list(value) if listed else dict(value) if keyed else value
            for (name, member), array in zip(places, arrays, strict=True):
                if member is None:
                    arguments[name] = array
                else:
                    arguments[name][member] = array
            bound = inspect.BoundArguments(self._signature, arguments)  # pyright: ignore[reportArgumentType]
            return self._f(*bound.args, **bound.kwargs)

        own = [(parameter, _identifier(name)) for parameter, name in names]
        hints = annotations_of(self._f)
        known = [(name, parameter) for parameter, name in own] + [("return", "return")]
        arranged.__annotations__ = {name: hints[of] for name, of in known if of in hints}
        arranged.__signature__ = inspect.Signature(  # pyright: ignore[reportAttributeAccessIssue]
            [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for _, name in own]
        )
        return arranged

    def _hashable(self, name: str, value: Any) -> Any:
        try:
            hash(value)
        except TypeError:
            raise LayoutError(
                "LAYOUT_ARGUMENT",
                f"static argument '{name}' of {self._name} is {value!r}, which is not hashable",
                fixes=("pass a tuple in the place of a list, or leave it out of the static ones",),
            ) from None
        return value

    def _error(self, what: str) -> LayoutError:
        return LayoutError("LAYOUT_ARGUMENT", f"{self._name}: {what}")


def _identifier(name: str) -> str:
    return name.replace("[", "_").removesuffix("]")
