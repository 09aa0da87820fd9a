"""One value through all equations of a kind, whatever functions, loops and branches hold them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jax._src import flattree as _flattree
from jax._src.core import DropVar, eval_jaxpr_p
from jax._src.interpreters import mlir as _mlir
from jax._src.named_sharding import UNSPECIFIED
from jax.sharding import PartitionSpec as P

from jaxcc._compat._jaxprs import Var, called, inner_jaxprs, op_name, scan_counts
from jaxcc._compat._lifetimes import Operands, last_uses
from jaxcc._compat._linear import FUNCTION
from jaxcc._compat._traces import abstract_mesh, outside_all_traces


class UnchainedError(Exception):
    """An equation that holds links, of a kind that no value can be led through."""


Mark = Callable[[Any, int, Operands], Any]
"""(a link, its number from 1, its operands that nobody reads later) -> the link, changed."""


def before_lowering(rewrite: Callable[[str, Any, Operands], Any]) -> None:
    """Lets `rewrite` change every program that is compiled from now on: it gets the name, the jaxpr
    and the numbers of the operands that are donated.

    It sees what JAX made of the user's functions: differentiated, batched, with the jaxprs of
    nested `jit`s, which are traced once and then found in caches.
    """
    lower = _mlir.lower_jaxpr_to_module

    @functools.wraps(lower)
    def lowered(name: str, jaxpr: Any, **kwargs: Any) -> Any:
        given = kwargs["donated_args"][kwargs["num_const_args"] :]
        donated = frozenset(number for number, is_donated in enumerate(given) if is_donated)
        return lower(name, rewrite(name, jaxpr, donated), **kwargs)

    _mlir.lower_jaxpr_to_module = lowered


def chained(
    jaxpr: Any,
    owned: Operands,
    is_link: Callable[[Any], bool],
    first: Callable[[], jax.Array],
    marked: Mark,
) -> Any:
    """`jaxpr` with a chain through the equations that `is_link` tells.

    The first operand of a link becomes the first result of the link before it, in the order in
    which the program runs them; that of the first link becomes what `first` gives. Each link is
    replaced by what `marked` gives for it. Nobody reads the `owned` operands after `jaxpr`.

    Raises:
      UnchainedError: a link lies where that cannot be done.
    """
    chain = _Chain(is_link, first, marked)
    if not chain.has_links(jaxpr):
        return jaxpr
    start = jax.make_jaxpr(first)()
    eqns, _ = chain.through(jaxpr, start.jaxpr.outvars[0], owned)
    return jaxpr.replace(eqns=[*start.jaxpr.eqns, *eqns])


# Parameters of `jit` and `remat` with something for each operand or result, and that of the chain.
_OF_EACH_OPERAND = {
    "in_shardings": UNSPECIFIED,
    "out_shardings": UNSPECIFIED,
    "in_layouts": None,
    "out_layouts": None,
    "donated_invars": False,
    "prevent_cse": False,
}

# What has only to be run where programs are compiled, and other meaning elsewhere.
_RUN_ONLY = frozenset({"composite", "custom_vmap_call", "linear_call", FUNCTION.name})


class _Chain:
    """One chaining. Jaxprs that several equations share stay shared."""

    def __init__(
        self,
        is_link: Callable[[Any], bool],
        first: Callable[[], jax.Array],
        marked: Mark,
    ) -> None:
        self._is_link = is_link
        self._first = first
        self._marked = marked
        self._numbers = itertools.count(1)
        self.has_links = functools.cache(self._has_links)
        self.threaded = functools.cache(self._threaded)
        self._type = functools.cache(self._type_for)

    def _has_links(self, jaxpr: Any) -> bool:
        return any(map(self._holds, jaxpr.eqns))

    def _holds(self, eqn: Any) -> bool:
        return self._is_link(eqn) or any(map(self.has_links, inner_jaxprs(eqn)))

    def through(self, jaxpr: Any, value: Any, owned: Operands) -> tuple[list[Any], Any]:
        """The equations with the chain, which begins at the variable `value`; and where it ends."""
        made: list[Any] = []
        for eqn, dying in zip(jaxpr.eqns, last_uses(jaxpr, owned), strict=True):
            if not self._holds(eqn):
                made.append(eqn)
                continue
            if self._is_link(eqn):
                result, *others = eqn.outvars
                after = self._new(eqn) if isinstance(result, DropVar) else result
                linked = eqn.replace(invars=[value, *eqn.invars[1:]], outvars=[after, *others])
                linked = self._marked(linked, next(self._numbers), dying)
            else:
                after = self._new(eqn)
                linked = self._inside(eqn, value, after, dying)
            made.append(linked)
            value = after
        return made, value

    def _threaded(self, jaxpr: Any, mesh: Any, owned: Operands) -> Any:
        """`jaxpr` with one more operand and result, where its part of the chain begins and ends."""
        begin = Var(self._type(mesh))
        eqns, end = self.through(jaxpr, begin, owned)
        return jaxpr.replace(
            invars=[*jaxpr.invars, begin], outvars=[*jaxpr.outvars, end], eqns=eqns
        )

    def _new(self, eqn: Any) -> Any:
        return Var(self._type(_mesh_of([eqn])))

    def _type_for(self, mesh: Any) -> Any:
        """The type of the chain's values where `mesh` is set, as inside a shard_map."""
        with outside_all_traces(), abstract_mesh(mesh):
            return jax.make_jaxpr(self._first)().out_avals[0]

    def _inside(self, eqn: Any, value: Any, after: Any, dying: Operands) -> Any:
        """`eqn`, which holds links, with the chain through it, from `value` to `after`."""
        op, params = op_name(eqn), dict(eqn.params)
        given, made = [*eqn.invars, value], [*eqn.outvars, after]
        thread = functools.partial(self.threaded, mesh=_mesh_of([eqn]))
        if op == "scan":
            constants, carried, walked = scan_counts(eqn)
            here = constants + carried
            # Each turn has what it is given for itself, but for the constants.
            turn = thread(params["jaxpr"], owned=_from(constants, params["jaxpr"]))
            params["jaxpr"] = turn.replace(
                invars=_moved(turn.invars, here), outvars=_moved(turn.outvars, carried)
            )
            params["ft_in"] = _groups(constants, carried + 1, walked)
            params["ft_out"] = _groups(carried + 1, len(eqn.outvars) - carried)
            given, made = _moved(given, here), _moved(made, carried)
        elif op == "shard_map":
            inside = _mesh_of(params["jaxpr"].eqns)
            params["jaxpr"] = self.threaded(params["jaxpr"], mesh=inside, owned=dying)
            params["in_specs"] = (*params["in_specs"], P())
            params["out_specs"] = (*params["out_specs"], P())
        elif op == "while":
            body = params["body_jaxpr"]
            params["body_jaxpr"] = thread(body, owned=_from(params["body_nconsts"], body))
            # The condition has one result only: its links come before those of the body by data.
            condition = thread(params["cond_jaxpr"], owned=frozenset())
            params["cond_jaxpr"] = condition.replace(outvars=condition.outvars[:1])
        elif op == "cond":
            owned = frozenset(number - 1 for number in dying if number)
            params["branches"] = tuple(thread(jaxpr, owned=owned) for jaxpr in params["branches"])
        elif op in ("jit", "remat"):
            params["jaxpr"] = thread(params["jaxpr"], owned=dying)
            for name, of_value in _OF_EACH_OPERAND.items():
                if isinstance(params.get(name), tuple):
                    params[name] += (of_value,)
        else:
            jaxpr, numbers = _run_by(eqn)
            owned = frozenset(k for k, number in enumerate(numbers) if number in dying)
            return eqn.replace(
                primitive=eval_jaxpr_p,
                params={"call_jaxpr": thread(jaxpr, owned=owned)},
                invars=[*(eqn.invars[number] for number in numbers), value],
                outvars=made,
            )
        return eqn.replace(params=params, invars=given, outvars=made)


def _run_by(eqn: Any) -> tuple[Any, list[int]]:
    """The jaxpr that an equation runs, and the numbers of the operands that it gets."""
    found = called(eqn)
    if found is None and op_name(eqn) in _RUN_ONLY:
        found = next(inner_jaxprs(eqn)), list(range(len(eqn.invars)))
    if found is None:
        raise UnchainedError(op_name(eqn))
    return found


def _from(first: int, jaxpr: Any) -> Operands:
    """The jaxpr's operands from number `first` on."""
    return frozenset(range(first, len(jaxpr.invars)))


def _moved(items: list[Any], place: int) -> list[Any]:
    """The items with the last one at `place`."""
    return [*items[:place], items[-1], *items[place:-1]]


def _groups(*lengths: int) -> Any:
    """How the operands or results of a scan are divided."""
    return _flattree.pack(tuple(map(_flattree.nones, lengths)))


def _mesh_of(eqns: Iterable[Any]) -> Any:
    """The mesh that is set where these equations lie, without which types are not alike."""
    variables = (v for eqn in eqns for v in (*eqn.outvars, *eqn.invars))
    return next(v.aval.sharding.mesh for v in variables if hasattr(v.aval, "sharding"))
