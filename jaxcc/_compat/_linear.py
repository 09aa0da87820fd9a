"""Functions with derivatives of both modes and batching of their own, which JAX has no form of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
from jax.interpreters import ad, batching, mlir

from jaxcc._compat._jaxprs import Primitive

# JAX has types for some of its functions only.
_ad: Any = ad
_batching: Any = batching
_mlir: Any = mlir


@dataclass(frozen=True, eq=False)
class Transforms:
    """What a function of one array becomes.

    Attributes:
      batched: its results for operands that lie along a new first dimension.
      tangent: that of the result, for the operand's; the function is linear, or this raises.
      transposed: the operand's cotangent, for the result's.
    """

    batched: Callable[[jax.Array], jax.Array]
    tangent: Callable[[jax.Array], jax.Array]
    transposed: Callable[[jax.Array], jax.Array]


def with_transforms(f: Callable[[Any], Any], transforms: Transforms, x: jax.Array) -> jax.Array:
    """`f(x)`, which is traced once, in one equation."""
    return FUNCTION.bind(x, jaxpr=jax.make_jaxpr(f)(x), transforms=transforms)[0]


def _run(x: Any, *, jaxpr: Any, transforms: Transforms) -> Any:
    return jax.extend.core.jaxpr_as_fun(jaxpr)(x)


def _type(x: Any, *, jaxpr: Any, transforms: Transforms) -> Any:
    return jaxpr.out_avals, jaxpr.effects


def _batch(values: Any, dims: Any, *, jaxpr: Any, transforms: Transforms) -> Any:
    (x,), (dim,) = values, dims
    return [transforms.batched(jax.numpy.moveaxis(x, dim, 0))], [0]


def _derive(primals: Any, tangents: Any, *, jaxpr: Any, transforms: Transforms) -> Any:
    (x,), (tangent,) = primals, tangents
    y = FUNCTION.bind(x, jaxpr=jaxpr, transforms=transforms)
    return y, [transforms.tangent(tangent)]


def _transpose(cotangents: Any, x: Any, *, jaxpr: Any, transforms: Transforms) -> Any:
    (cotangent,) = cotangents
    if isinstance(cotangent, ad.Zero):
        return [None]
    return [transforms.transposed(cotangent)]


FUNCTION = Primitive("jaxcc_function")
FUNCTION.multiple_results = True
FUNCTION.def_impl(_run)
FUNCTION.def_effectful_abstract_eval(_type)
_mlir.register_lowering(FUNCTION, _mlir.lower_fun(_run, multiple_results=True))
_batching.primitive_batchers[FUNCTION] = _batch
_ad.primitive_jvps[FUNCTION] = _derive
_ad.primitive_transposes[FUNCTION] = _transpose
