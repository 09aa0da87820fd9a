"""Which operands nobody needs any longer once an equation has run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from jaxcc._compat._jaxprs import IDENTITIES, Literal, op_name

# XLA gives the results of these the buffer of their operand.
_VIEWS = IDENTITIES | {"bitcast_convert_type", "expand_dims", "reshape", "squeeze", "transpose"}

Operands = frozenset[int]
"""Numbers of operands, of an equation or a jaxpr."""


def last_uses(jaxpr: Any, owned: Operands) -> list[Operands]:
    """Of each equation of `jaxpr` the operands whose buffers hold nothing that is read later.

    A guess where XLA's choice of buffers decides; one that is wrong costs a copy that XLA makes.

    Args:
      jaxpr: any.
      owned: numbers of its operands that nobody reads after it has run.
    """
    root: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        if op_name(eqn) in _VIEWS:
            for result, operand in zip(eqn.outvars, eqn.invars, strict=False):
                root[result] = _root(root, operand)
    lasting = {v for number, v in enumerate(jaxpr.invars) if number not in owned}
    needed = {*lasting, *jaxpr.constvars, *(_root(root, v) for v in jaxpr.outvars)}
    dying: list[Operands] = []
    for eqn in reversed(jaxpr.eqns):
        roots = [_root(root, v) for v in eqn.invars]
        times = Counter(roots)
        dying.append(
            frozenset(
                number
                for number, r in enumerate(roots)
                if r is not None and r not in needed and times[r] == 1
            )
        )
        needed.update(roots)
    return dying[::-1]


def _root(root: dict[Any, Any], variable: Any) -> Any:
    """The variable whose buffer this one has; None for a literal."""
    return None if isinstance(variable, Literal) else root.get(variable, variable)
