"""Random numbers and keys: functions of a key, so that every rank has to hold the key and make
numbers for the whole shape that a group of one makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxcc.layout._advice import RANDOM_FIXES, RANDOM_WHY
from jaxcc.layout._digits import whole_dim
from jaxcc.layout._relation import Relation
from jaxcc.layout._rules import Equation, Refused, layout_rule
from jaxcc.layout.rules._combine import unit_only
from jaxcc.layout.rules._joint import batched, require_full
from jaxcc.layout.rules._pointwise import pointwise
from jaxcc.layout.rules.collective import scattered


@pointwise("random_seed", "random_fold_in", "random_clone")
def _made(eqn: Equation, operands: Sequence[Relation], base: Relation) -> Relation:
    """Keys, one for each; but unsafe_rbg folds numbers into the first of many keys alone."""
    batched_keys = eqn.op == "random_fold_in" and "urbg" in str(eqn.per_rank.dtypes[0])
    if batched_keys and base.ranks:
        raise Refused(
            "LAYOUT_RANDOM",
            f"{eqn.op} makes keys of unsafe_rbg for a part of {' and '.join(base.ranks)} each",
            because="it folds all numbers of a batch into the batch's first key",
            fixes=("use keys of threefry2x32 or rbg",),
        )
    return unit_only(eqn, operands, base)


@layout_rule("random_bits", "random_split")
def _numbers(eqn: Equation, keys: Relation) -> Relation:
    """An array of numbers, or of keys, for each key."""
    _require_same_shape(eqn, eqn.per_rank.params["shape"], eqn.whole.params["shape"])
    _require_separate(eqn, keys)
    (base,) = batched(eqn, [keys], (0,))
    return unit_only(eqn, [keys], base)


@layout_rule("random_wrap", "random_unwrap")
def _words(eqn: Equation, x: Relation) -> Relation:
    """The words of a key stand along a trailing dimension of their own."""
    words = len(x.dims) - len(eqn.per_rank.out_shapes[0])
    (base,) = batched(eqn, [x], (max(words, 0),))
    return unit_only(eqn, [x], base)


@layout_rule("threefry2x32")
def _hashed(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    made = batched(eqn, operands, [0] * len(operands))
    return [unit_only(eqn, operands, base) for base in made]


@layout_rule("random_gamma")
def _gamma(eqn: Equation, keys: Relation, shape: Relation) -> Relation:
    """A number for each shape parameter: each key is split among those that it stands for."""
    lead = len(keys.dims)
    _require_same_shape(eqn, eqn.per_rank.out_shapes[0][lead:], eqn.whole.out_shapes[0][lead:])
    _require_separate(eqn, keys)
    operands = (keys, shape)
    (base,) = batched(eqn, operands, (0, len(shape.dims) - lead))
    return unit_only(eqn, operands, base)


@layout_rule("rng_bit_generator")
def _drawn(eqn: Equation, *operands: Relation) -> Sequence[Relation]:
    """Numbers of which each depends on the position in the whole array."""
    _require_same_shape(eqn, eqn.per_rank.out_shapes[-1], eqn.whole.out_shapes[-1])
    made = batched(eqn, operands, [len(x.dims) for x in operands])
    return [unit_only(eqn, operands, base) for base in made]


@layout_rule("rng_uniform")
def _drawn_by_the_device(eqn: Equation, *operands: Relation) -> Relation:
    raise Refused(
        "LAYOUT_RANDOM",
        "rng_uniform makes other random numbers on every rank",
        because="it has no key: each device draws from a state of its own",
        fixes=("draw with jax.random from a key that every rank holds",),
    )


@layout_rule("iota_2x32_shape")
def _counters(eqn: Equation) -> Sequence[Relation]:
    _require_same_shape(eqn, eqn.per_rank.params["shape"], eqn.whole.params["shape"])
    return [
        Relation(tuple(whole_dim(dim, size) for dim, size in enumerate(shape)))
        for shape in eqn.per_rank.out_shapes
    ]


@layout_rule("jaxcc_random_bits")
def _own_numbers(eqn: Equation, words: Relation) -> Sequence[Relation]:
    """The rank's block of the numbers that a group of one makes."""
    axis = str(eqn.per_rank.params["axis_name"])
    if axis not in eqn.sizes:
        raise Refused("LAYOUT_UNSUPPORTED", f"jaxcc.random over the axis of a vmap '{axis}'")
    (shape,), (whole,) = eqn.per_rank.out_shapes, eqn.whole.out_shapes
    dim = len(shape) + int(eqn.per_rank.params["dim"])
    complete = (*shape[:dim], shape[dim] * eqn.sizes[axis], *shape[dim + 1 :])
    _require_same_shape(eqn, complete, whole)
    if not words.plain_over(axis):
        raise Refused(
            "LAYOUT_RANDOM",
            f"every rank has to hold the key of jaxcc.random, and {eqn.name(0)} is {eqn.layout(0)}",
            because=RANDOM_WHY,
            fixes=(f"pass a key that is Replicated over '{axis}'",),
        )
    view = replace(eqn, per_rank=replace(eqn.per_rank, out_shapes=(complete,)))
    (base,) = batched(view, [words], (1,))
    return [scattered(eqn, unit_only(view, [words], base), axis, dim)]


def _require_same_shape(eqn: Equation, shape: Sequence[int], whole: Sequence[int]) -> None:
    if tuple(shape) != tuple(whole):
        raise Refused(
            "LAYOUT_RANDOM",
            f"{eqn.op} makes random numbers of shape {shape} on n ranks and {whole} on one",
            because=RANDOM_WHY,
            fixes=RANDOM_FIXES,
        )


def _require_separate(eqn: Equation, keys: Relation) -> None:
    """Of a sliced array of keys each must be used as if it were alone, which JAX promises for
    threefry only."""
    if "fry" not in str(eqn.per_rank.dtypes[0]):
        for dim in range(len(keys.dims)):
            require_full(eqn, keys, dim)
