"""One value through all equations of a kind, whatever functions, loops and branches hold them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import flattree as _flattree
from jax._src.core import DropVar, eval_jaxpr_p
from jax._src.named_sharding import UNSPECIFIED
from jax.sharding import PartitionSpec as P

from jaxcc._compat._jaxprs import (
    Var,
    called,
    inner_jaxprs,
    op_name,
    scan_counts,
)
from jaxcc._compat._lifetimes import Operands, last_uses
from jaxcc._compat._linear import FUNCTION
from jaxcc._compat._traces import abstract_mesh, outside_all_traces


class UnchainedError(Exception):
    """A link, or a guest, that no value can be led to; says what it is."""


Mark = Callable[[Any, int, Operands], Any]
"""(a link, its number from 1, its operands that nobody reads later) -> what it is replaced by."""


@dataclass(frozen=True)
class Links:
    """What a chain goes through, and how.

    Attributes:
      first: gives the value that the first link takes.
      is_link: whether an equation is one: its first operand becomes the first result of the link
        before it, in the order in which the program runs them.
      marked: what a link is replaced by.
      is_guest: whether an equation runs in its place in the chain though it has no such operand.
      after: of the chain's value and others, these, once the chain has come so far.
      since: of the chain's value and others, the value, once these are there.
    """

    first: Callable[[], jax.Array]
    is_link: Callable[[Any], bool]
    marked: Mark
    is_guest: Callable[[Any], bool]
    after: Callable[..., Sequence[jax.Array]]
    since: Callable[..., jax.Array]


def chained(jaxpr: Any, owned: Operands, links: Links) -> Any:
    """`jaxpr` with a chain through its links and guests; as it is if it has no links.

    Nobody reads the `owned` operands after `jaxpr`.

    Raises:
      UnchainedError: a link lies where that cannot be done.
    """
    if not _having(links.is_link)(jaxpr):
        return jaxpr
    start = jax.make_jaxpr(links.first)()
    eqns, _ = _Chain(links).through(jaxpr, start.jaxpr.outvars[0], owned)
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

    def __init__(self, links: Links) -> None:
        self._links = links
        self._numbers = itertools.count(1)
        self._has_links = _having(links.is_link)
        self._has_some = _having(lambda eqn: links.is_link(eqn) or links.is_guest(eqn))
        self.threaded = functools.cache(self._threaded)
        self._type = functools.cache(self._type_for)

    def through(self, jaxpr: Any, value: Any, owned: Operands) -> tuple[list[Any], Any]:
        """The equations with the chain, which begins at the variable `value`; and where it ends."""
        made: list[Any] = []
        for eqn, dying in zip(jaxpr.eqns, last_uses(jaxpr, owned), strict=True):
            if self._links.is_link(eqn):
                lead = self._link
            elif self._links.is_guest(eqn):
                lead = self._invited
            elif any(map(self._has_some, inner_jaxprs(eqn))):
                lead = self._inside
            else:
                made.append(eqn)
                continue
            # What a link gives others may read: where JAX runs each equation as a program, it does.
            given = lead == self._link and not isinstance(eqn.outvars[0], DropVar)
            after = eqn.outvars[0] if given else self._new(eqn)
            try:
                made += lead(eqn, value, after, dying)
                value = after
            except UnchainedError:
                # Guests alone may stay where they are, inside something.
                if lead != self._inside or any(map(self._has_links, inner_jaxprs(eqn))):
                    raise
                made.append(eqn)
        return made, value

    def _link(self, eqn: Any, value: Any, after: Any, dying: Operands) -> list[Any]:
        linked = eqn.replace(invars=[value, *eqn.invars[1:]], outvars=[after, *eqn.outvars[1:]])
        return [self._links.marked(linked, next(self._numbers), dying)]

    def _invited(self, eqn: Any, value: Any, after: Any, _: Operands) -> list[Any]:
        """A guest between what makes it wait for the chain and the chain for it."""
        numbers = [n for n, v in enumerate(eqn.invars) if _is_data(v)]
        if not numbers:
            raise UnchainedError(f"{op_name(eqn)} of random keys")
        given = [eqn.invars[n] for n in numbers]
        later = [Var(v.aval) for v in given]
        operands = dict(enumerate(eqn.invars)) | dict(zip(numbers, later, strict=True))
        results = [Var(v.aval) if isinstance(v, DropVar) else v for v in eqn.outvars]
        return [
            _traced(self._links.after, [value, *given], later),
            eqn.replace(invars=list(operands.values()), outvars=results),
            _traced(self._links.since, [value, *filter(_is_data, results)], [after]),
        ]

    def _threaded(self, jaxpr: Any, mesh: Any, owned: Operands) -> Any:
        """`jaxpr` with one more operand and result, where its part of the chain begins and ends."""
        begin = Var(self._type(mesh))
        eqns, end = self.through(jaxpr, begin, owned)
        return jaxpr.replace(
            invars=[*jaxpr.invars, begin], outvars=[*jaxpr.outvars, end], eqns=eqns
        )

    def _new(self, eqn: Any) -> Any:
        return Var(self._type(_mesh_of([eqn])))

    def _type_for(self, mesh: Any, lanes: tuple[int, ...] = ()) -> Any:
        """The type of the chain's values where `mesh` is set, as inside a shard_map; of several in
        the shape `lanes`.
        """
        with outside_all_traces(), abstract_mesh(mesh):
            return jax.make_jaxpr(lambda: _spread(self._links.first(), lanes))().out_avals[0]

    def _inside(self, eqn: Any, value: Any, after: Any, dying: Operands) -> list[Any]:
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
        elif op == "while" and (lanes := params["cond_jaxpr"].out_avals[0].shape):
            return self._in_lanes(eqn, value, after, lanes)
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
            params = {"call_jaxpr": thread(jaxpr, owned=owned)}
            given = [*(eqn.invars[number] for number in numbers), value]
            eqn = eqn.replace(primitive=eval_jaxpr_p)
        return [eqn.replace(params=params, invars=given, outvars=made)]

    def _in_lanes(self, eqn: Any, value: Any, after: Any, lanes: tuple[int, ...]) -> list[Any]:
        """A `while` under `vmap`, of which each lane ends by itself: JAX keeps what the others
        carry by a choice of whole lanes, so each has a value of the chain.
        """
        condition = eqn.params["cond_jaxpr"]
        if self._has_some(condition):
            # JAX runs it twice in a turn, beside the body.
            raise UnchainedError("a collective in the condition of a while loop under vmap")
        mesh, spread = _mesh_of([eqn]), functools.partial(_spread, lanes=lanes)
        begins, ends, before, end = (Var(self._type(mesh, lanes)) for _ in range(4))
        condition = condition.replace(invars=[*condition.invars, Var(begins.aval)])
        turn = self.threaded(eqn.params["body_jaxpr"], mesh, frozenset())
        turn = turn.replace(
            invars=[*turn.invars[:-1], begins],
            outvars=[*turn.outvars[:-1], ends],
            eqns=[
                _traced(_gathered, [begins], [turn.invars[-1]]),
                *turn.eqns,
                _traced(spread, [turn.outvars[-1]], [ends]),
            ],
        )
        return [
            _traced(spread, [value], [before]),
            eqn.replace(
                params=eqn.params | {"cond_jaxpr": condition, "body_jaxpr": turn},
                invars=[*eqn.invars, before],
                outvars=[*eqn.outvars, end],
            ),
            _traced(_gathered, [end], [after]),
        ]


def _spread(x: jax.Array, lanes: tuple[int, ...]) -> jax.Array:
    """`x` of one dimension for each lane."""
    return lax.broadcast_in_dim(x, (*lanes, *x.shape), (len(lanes),)) if lanes else x


def _gathered(x: jax.Array) -> jax.Array:
    """One of what `_spread` gave, which needs all."""
    return lax.reduce_max(x, tuple(range(x.ndim - 1)))


def _having(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Tells whether such an equation is in a jaxpr, or inside another there."""

    @functools.cache
    def has(jaxpr: Any) -> bool:
        return any(is_one(eqn) or any(map(has, inner_jaxprs(eqn))) for eqn in jaxpr.eqns)

    return has


def _is_data(variable: Any) -> bool:
    """Whether it is an array of numbers, not of keys."""
    return isinstance(variable.aval.dtype, np.dtype)


def _traced(f: Callable[..., Any], given: list[Any], made: list[Any]) -> Any:
    """`f`, which is one equation, from variables `given` to `made`."""
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in given]
    with outside_all_traces():
        (eqn,) = jax.make_jaxpr(f)(*types).jaxpr.eqns
    params = dict(eqn.params)
    if "result_avals" in params:
        params["result_avals"] = tuple(v.aval for v in made)
    return eqn.replace(params=params, invars=given, outvars=made)


def _run_by(eqn: Any) -> tuple[Any, list[int]]:
    """The jaxpr that an equation runs, and the numbers of the operands that it gets."""
    found = called(eqn)
    if found is None and op_name(eqn) in _RUN_ONLY:
        found = next(inner_jaxprs(eqn)), list(range(len(eqn.invars)))
    if found is None:
        raise UnchainedError(f"a collective inside {op_name(eqn)}")
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
