"""What one rank of a group holds: a reduction that only the root has, and its broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jax import lax

from jaxcc.program._ir import Op, Operand, Program, rename


def on_root(x: Any, axis: str | Sequence[str], root: int) -> Any:
    """`x` on the root, and zeros on the other ranks of `axis`, one axis or several."""
    # What others hold may be NaN, so it is selected away.
    return jnp.where(lax.axis_index(axis) == root, x, jnp.zeros((), x.dtype))


def from_root(x: Any, axis: str | Sequence[str], root: int) -> Any:
    """The root's `x` on every rank of `axis`, bit for bit, whatever the others hold."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(from_root(x.real, axis, root), from_root(x.imag, axis, root))
    if jnp.issubdtype(x.dtype, jnp.floating):
        # As a sum of floats, -0.0 would arrive as 0.0.
        bits = lax.bitcast_convert_type(x, getattr(jnp, f"uint{jnp.finfo(x.dtype).bits}"))
        return lax.bitcast_convert_type(from_root(bits, axis, root), x.dtype)
    # Sums of short integers and of booleans are not to be had everywhere.
    short = x.dtype == jnp.bool_ or jnp.iinfo(x.dtype).bits < 32
    sent = on_root(x.astype(jnp.uint32) if short else x, axis, root)
    return lax.psum(sent, axis).astype(x.dtype)


def everywhere(program: Program) -> Program:
    """The program with every rank computing what otherwise only a root does.

    Its derivative is that of the program: of what other ranks hold before a broadcast, which may be
    infinite or NaN, there is none.
    """
    ops: list[Op] = []
    spread: dict[str, Operand] = {}
    for given in program.ops:
        (op,) = rename([given], spread)
        if op.kind == "broadcast" and op.params:
            spread[op.outputs[0]] = op.inputs[0]
        elif op.kind == "reduce" and op.params:
            ops.append(replace(op, kind="all_reduce"))
        else:
            ops.append(op)
    outputs = tuple(spread.get(x, x) if isinstance(x, str) else x for x in program.outputs)
    return program.with_ops(ops, outputs=outputs)
