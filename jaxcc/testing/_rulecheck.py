"""Holds a layout rule's claims against arrays: random relations, the operation per rank and whole,
and the claim."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import jaxcc.layout.rules as rules
from jaxcc.layout._digits import CutError
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import (
    Equation,
    Refused,
    Side,
    collective_of,
    computing_rule_of,
    shape_rule_of,
)
from jaxcc.layout._turns import straightened, turned_back
from jaxcc.testing import (
    _samples_along,
    _samples_combinators,
    _samples_index,
    _samples_trailing,
    _samples_window,
)
from jaxcc.testing import _samples_collective as collectives
from jaxcc.testing import _samples_compute as computing
from jaxcc.testing import _samples_move as moving
from jaxcc.testing._claims import Array, arrays_of, holds
from jaxcc.testing._sample import Sample

assert rules.__name__  # Imported for what it registers.

Sampler = Callable[[np.random.Generator], Sample]


@dataclass(frozen=True)
class RuleCheck:
    """How many samples a rule accepted, all of them truly, and how many it refused."""

    accepted: int
    refused: int


def rulecheck(
    op: str, sampler: Sampler | None = None, *, n_samples: int = 200, seed: int = 0
) -> RuleCheck:
    """Checks the layout rule of `op` on random equations.

    Args:
      op: the primitive's name.
      sampler: makes an equation; by default that of jaxcc's own rules.
      n_samples: how many equations.
      seed: of the random numbers.

    Raises:
      AssertionError: a claim is false, or the rule refuses everything.
    """
    sampler = sampler or SAMPLERS[op]
    rng = np.random.default_rng([seed, zlib.crc32(op.encode())])
    accepted = refused = 0
    for _ in range(n_samples):
        sample = _passed_on(sampler(rng), rng)
        try:
            claimed = _claims(op, sample)
        except (Refused, CutError):
            refused += 1
            continue
        problem = _problem(op, sample, claimed, rng)
        if problem:
            raise AssertionError(
                f"the rule of {op} claims {claimed}\n  of {sample.relations}\n  with "
                f"{dict(sample.params)} on "
                f"{dict(sample.sizes)}, whole {sample.wholes}: {problem}"
            )
        accepted += 1
    if accepted * 50 < n_samples:
        raise AssertionError(f"the rule of {op} refuses {refused} of {n_samples} equations")
    return RuleCheck(accepted, refused)


def _claims(op: str, sample: Sample) -> list[Relation]:
    collective, shape = collective_of(op), shape_rule_of(op)
    if shape is not None:
        (x,) = sample.relations
        assert sample.out_shape is not None
        return [replace(x, dims=tuple(shape(sample.params, x.dims, sample.out_shape)))]
    eqn = Equation(op, sample.sizes, _side(sample, at_n=True), _side(sample, at_n=False))
    if collective is not None and collective.turns:
        return [collective.relate(eqn, sample.relations[0])]
    turned, relations = straightened(eqn, sample.relations)
    rule = collective.relate if collective is not None else computing_rule_of(op)
    assert rule is not None, f"{op} has no rule"
    made = rule(eqn, *relations)
    results = [made] if isinstance(made, Relation) else list(made)
    return [turned_back(turned, one) for one in results]


def _passed_on(sample: Sample, rng: np.random.Generator) -> Sample:
    """The sample where, now and then, ranks hold one another's blocks, mostly of all operands."""
    axis = list(sample.sizes)[int(rng.integers(len(sample.sizes)))]
    if rng.random() < 0.9:
        return sample
    turn = tuple(int(rank) for rank in rng.permutation(sample.sizes[axis]))
    if turn == tuple(range(len(turn))):
        return sample
    relations = tuple(
        replace(x, turned={axis: turn}, tie=None)
        if axis in x.ranks and not x.by_rank and rng.random() < 0.9
        else x
        for x in sample.relations
    )
    return replace(sample, relations=relations)


def _side(sample: Sample, *, at_n: bool) -> Side:
    """The parameters and shapes of one side; the result's shape comes from running the operation on
    zeros."""
    shapes = [r.shape for r in sample.relations] if at_n else list(sample.wholes)
    kinds = sample.boolean or (False,) * len(shapes)
    ranges = sample.integers or (None,) * len(shapes)
    lead = tuple(sample.sizes.values()) if at_n and sample.together else ()
    zeros = [
        np.ones((*lead, *shape), bool if kind else float if values is None else int)
        for shape, kind, values in zip(shapes, kinds, ranges, strict=True)
    ]
    outs: list[Array] = []
    if not _is_collective(sample):
        with np.errstate(all="ignore"):
            out = (sample.run if at_n else sample.run_whole)(*zeros)
        outs = out if isinstance(out, list) else [np.asarray(out)]
    return Side(
        sample.params if at_n else sample.whole_params,
        tuple(shapes),
        tuple(out.shape[len(lead) :] for out in outs),
        sample.dtypes or tuple(zero.dtype for zero in zeros),
        tuple(out.dtype for out in outs),
    )


def _is_collective(sample: Sample) -> bool:
    return (
        not sample.together
        and bool({"axes", "axis_name", "axis"} & set(sample.params))
        and isinstance(next(iter(sample.params.values())), (str, tuple))
        and all(isinstance(a, str) for a in np.ravel(next(iter(sample.params.values()))))
    )


def _problem(op: str, sample: Sample, claimed: list[Relation], rng: np.random.Generator) -> str:
    """What is false about a claim, or nothing."""
    kinds = sample.boolean or (False,) * len(sample.relations)
    ranges = sample.integers or (None,) * len(sample.relations)
    pairs = [
        arrays_of(
            r, whole, sample.sizes, rng, positive=sample.positive, boolean=kind, integers=values
        )
        for r, whole, kind, values in zip(
            sample.relations, sample.wholes, kinds, ranges, strict=True
        )
    ]
    with np.errstate(all="ignore"):
        if collective_of(op) is not None:
            outs = [np.asarray(sample.run(pairs[0][0]))]
        else:
            outs = _per_rank(sample, [parts for parts, _ in pairs])
        whole = sample.run_whole(*(one for _, one in pairs))
    wholes = whole if isinstance(whole, list) else [np.asarray(whole)]
    for relation, parts, one in zip(claimed, outs, wholes, strict=True):
        # The promise excludes values that are not finite, but for the infinities of maxima and
        # selections.
        if not (np.isfinite(parts).all() and np.isfinite(one).all()):
            continue
        problem = holds(relation, parts, one, sample.sizes)
        if problem:
            return problem
    return ""


def _per_rank(sample: Sample, operands: list[Array]) -> list[Array]:
    """The operation on each rank's own arrays."""
    if sample.together:
        made = sample.run(*operands)
        return made if isinstance(made, list) else [np.asarray(made)]
    ranks = list(itertools.product(*(range(n) for n in sample.sizes.values())))
    results = [sample.run(*(operand[rank] for operand in operands)) for rank in ranks]
    lists = [r if isinstance(r, list) else [np.asarray(r)] for r in results]
    lead = tuple(sample.sizes.values())
    stacks = [np.stack(parts) for parts in zip(*lists, strict=True)]
    return [stack.reshape(*lead, *stack.shape[1:]) for stack in stacks]


def _unary(function: Callable[..., Any], **kwargs: bool) -> Sampler:
    return computing.pointwise(function, 1, **kwargs)


def _binary(function: Callable[..., Any], **kwargs: bool) -> Sampler:
    return computing.pointwise(function, 2, **kwargs)


def _power(exponent: int) -> Sampler:
    return computing.with_params(_unary(lambda x: x**exponent), {"y": exponent})


def _split(rng: np.random.Generator) -> Sample:
    sample = moving.cut(rng)
    dim = int(rng.integers(len(sample.wholes[0])))
    sizes: list[tuple[int, int]] = []
    for total in (sample.relations[0].shape[dim], sample.wholes[0][dim]):
        first = -(-total // 2)
        sizes.append((first, total - first))

    def run(of: tuple[int, int]) -> Callable[[Array], list[Array]]:
        return lambda a: np.split(a, [of[0]], dim)

    here, whole = sizes
    return replace(
        sample,
        params={"axis": dim, "sizes": here},
        whole_params={"axis": dim, "sizes": whole},
        run=run(here),
        run_whole=run(whole),
    )


_erf = np.vectorize(math.erf, otypes=[float])

SAMPLERS: Mapping[str, Sampler] = {
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "div": _binary(np.divide),
    "max": _binary(np.maximum),
    "min": _binary(np.minimum),
    "rem": _binary(np.fmod),
    "pow": _binary(np.power, positive=True),
    "atan2": _binary(np.arctan2),
    "lt": _binary(np.less),
    "eq": _binary(np.equal),
    "and": _binary(np.logical_and, boolean=True),
    "not": _unary(np.logical_not, boolean=True),
    "complex": _binary(lambda a, b: a + 1j * b),
    "zeta": _binary(lambda a, b: np.sin(a + b * b)),
    "random_fold_in": _binary(lambda a, b: np.sin(a + b * b)),
    "select_n": computing.select,
    "clamp": computing.pointwise(lambda low, x, high: np.minimum(np.maximum(x, low), high), 3),
    "neg": _unary(np.negative),
    "real": _unary(np.real),
    "sqrt": _unary(np.sqrt, positive=True),
    "rsqrt": _unary(lambda x: 1 / np.sqrt(x), positive=True),
    "cbrt": _unary(np.cbrt),
    "square": _unary(np.square),
    "abs": _unary(np.abs),
    "sign": _unary(np.sign),
    "is_finite": _unary(np.isfinite),
    "integer_pow": lambda rng: _power(int(rng.choice([2, 3, -1, -2])))(rng),
    "exp": _unary(np.exp),
    "tanh": _unary(np.tanh),
    "log": _unary(np.log, positive=True),
    "erf": _unary(_erf),
    "sin": _unary(np.sin),
    "floor": _unary(np.floor),
    "round": _unary(np.round),
    "convert_element_type": computing.with_params(
        _unary(lambda x: x.astype(np.float64)), {"new_dtype": np.float64}
    ),
    "reduce_sum": computing.reduction(np.sum),
    "reduce_max": computing.reduction(np.max),
    "reduce_min": computing.reduction(np.min),
    "reduce_prod": computing.reduction(np.prod),
    "reduce_or": computing.reduction(np.any, boolean=True),
    "reduce_and": computing.reduction(np.all, boolean=True),
    "dot_general": computing.dot,
    "reshape": moving.reshape,
    "transpose": moving.transpose,
    "broadcast_in_dim": moving.broadcast,
    "copy": moving.same,
    "iota": moving.iota,
    "slice": moving.cut,
    "split": _split,
    "concatenate": moving.concatenate,
    "psum": collectives.collective(collectives.all_reduce(np.sum)),
    "pmax": collectives.collective(collectives.all_reduce(np.max)),
    "pmin": collectives.collective(collectives.all_reduce(np.min)),
    "reduce_scatter": collectives.collective(collectives.reduce_scatter),
    "all_gather": collectives.collective(collectives.all_gather),
    "all_to_all": collectives.collective(collectives.all_to_all),
    "ppermute": collectives.collective(collectives.permutation),
    "pbroadcast": collectives.collective(collectives.broadcast),
    "jaxcc_on_root": collectives.collective(collectives.on_root),
    "vary_unreduced_cast": collectives.collective(collectives.unchanged),
    "jaxcc_own_slice": collectives.collective(collectives.own_slice),
    "enter_shard_map": collectives.collective(collectives.enter),
    "leave_shard_map": collectives.collective(collectives.leave),
    **_samples_along.SAMPLERS,
    **_samples_combinators.SAMPLERS,
    **_samples_index.SAMPLERS,
    **_samples_trailing.SAMPLERS,
    **_samples_window.SAMPLERS,
}
"""A sampler for each rule; operations that share one rule share its sampler."""
