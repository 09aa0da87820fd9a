"""Per-rank functions as primitives of their own, which the checker has layout rules for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir

from jaxcc import _compat
from jaxcc.layout import LayoutError

# JAX has types for some of its functions only.
_jax: Any = jax
_ad: Any = ad
_batching: Any = batching
_mlir: Any = mlir

Derivative = Callable[..., tuple[Sequence[Any], Sequence[Any]]]
"""(primals, tangents, **parameters) -> the results and their tangents."""


def primitive(
    name: str,
    run: Callable[..., Sequence[Any]],
    *,
    jvp: Derivative | None = None,
    transpose: Callable[..., Sequence[Any]] | None = None,
) -> Any:
    """A primitive that stands for a function with collectives inside.

    In a trace it is one equation, which a layout rule relates as a whole; when it runs it is `run`.

    Args:
      name: of the combinator; traces call it `jaxcc_` and this.
      run: the results for operands and parameters. One of the parameters is `axis_name`, an axis or
        several; those that
        say dimensions count them from the last, so that `vmap`, which adds one in front, leaves
        them as they are.
      jvp: its derivative; without one it is an error to ask for it.
      transpose: instead, for a linear function: (cotangents, operand, **parameters) -> the
        operand's cotangent.
    """
    made = _compat.traced_primitive(f"jaxcc_{name}", functools.partial(_types, run))
    made.multiple_results = True
    _mlir.register_lowering(made, _mlir.lower_fun(run, multiple_results=True))
    _batching.fancy_primitive_batchers[made] = functools.partial(_batched, made, run)
    if transpose is not None:
        _ad.deflinear2(made, transpose)
    else:
        _ad.primitive_jvps[made] = jvp or functools.partial(_no_derivative, name)
    return made


def _no_derivative(name: str, *_: Any, **__: Any) -> Any:
    raise LayoutError(
        "LAYOUT_UNSUPPORTED",
        f"comm.{name.removesuffix('_back')} has no derivative of this order",
        because="it would communicate in a way of its own, for which there is no layout rule",
        fixes=("put jax.lax.stop_gradient around its operand, if none is meant to pass",),
    )


def _types(run: Callable[..., Sequence[Any]], *operands: Any, **params: Any) -> list[Any]:
    jaxpr = _jax.make_jaxpr(functools.partial(run, **params))(*operands)
    return [var.aval for var in jaxpr.jaxpr.outvars]


def _batched(
    made: Any,
    run: Callable[..., Sequence[Any]],
    axis: Any,
    values: Sequence[Any],
    dims: Sequence[int | None],
    **params: Any,
) -> tuple[Sequence[Any], Sequence[int | None]]:
    """The rule for `vmap` over `axis`."""
    axes = params["axis_name"]
    if axis.name in ((axes,) if isinstance(axes, str) else axes):
        # The lanes are the ranks.
        lanes = _jax.vmap(
            functools.partial(run, **params),
            in_axes=tuple(dims),
            axis_name=axis.name,
            axis_size=axis.size,
        )
        results = lanes(*values)
        return results, [0] * len(results)
    if all(dim is None for dim in dims):
        results = made.bind(*values, **params)
        return results, [None] * len(results)
    leading = [
        _batching.bdim_at_front(x, dim, axis.size) for x, dim in zip(values, dims, strict=True)
    ]
    results = made.bind(*leading, **params)
    return results, [0] * len(results)
