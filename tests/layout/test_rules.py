"""Every layout rule against arrays: random relations, the operation per rank and whole, and the
rule's claim."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxcc.layout import _relation, _rules
from jaxcc.layout.rules import (
    _combine,
    _joint,
    along,
    arithmetic,
    choices,
    collective,
    conv,
    dot,
    dtypes,
    elementwise,
    linalg,
    ragged,
    reduce,
    stacking,
    structure,
    window,
)
from jaxcc.testing import rulecheck
from jaxcc.testing._rulecheck import SAMPLERS
from jaxcc.testing._samples_window import convolution

# Operations without a sampler share the rule function of one that has it.
SHARED = {
    "exp": "exp2 expm1 log2 log1p logistic erfc erf_inv cos tan asin acos atan sinh cosh asinh "
    "acosh atanh lgamma digamma bessel_i0e bessel_i1e ceil population_count clz one_minus_square",
    "add": "add_any",
    "eq": "ne le gt ge eq_to lt_to le_to",
    "and": "or xor",
    "pbroadcast": "jaxcc_broadcast",
    "atan2": "nextafter shift_left shift_right_logical shift_right_arithmetic igamma igammac",
    "real": "imag conj reduce_precision",
    "argmax": "argmin",
    "qr": "eig geqrf geqp3 hessenberg lu schur tridiagonal",
    "random_fold_in": "random_clone random_seed",
    "zeta": "igamma_grad_a mulhi polygamma polynomial random_gamma_grad "
    "regularized_incomplete_beta",
    "reshape": "squeeze expand_dims",
    "copy": "copy_p pvary stop_gradient name optimization_barrier pcast reduced_vary_cast "
    "sharding_constraint mesh_cast reshard preduced",
    "psum": "unreduced_psum",
    "pmax": "unreduced_pmax",
    "pmin": "unreduced_pmin",
    "all_gather": "all_gather_reduced",
    "reduce_scatter": "unreduced_reduce_scatter",
    "vary_unreduced_cast": "vary_unreduced_cast_p",
}


@pytest.mark.parametrize("op", SAMPLERS)
def test_rule_claims_only_what_is_true(op: str) -> None:
    check = rulecheck(op, n_samples=1000)
    assert check.accepted >= 100


def test_every_rule_is_sampled() -> None:
    shared = {other: op for op, others in SHARED.items() for other in others.split()}
    for other, op in shared.items():
        for rule_of in (_rules.computing_rule_of, _rules.shape_rule_of, _rules.collective_of):
            if op != "reshape" or rule_of is _rules.shape_rule_of:
                assert rule_of(other) == rule_of(op), (other, op)
    # Programs test axis_index, and that rng_uniform is always refused.
    assert set(_rules.ruled_ops()) - set(SAMPLERS) - set(shared) == {"axis_index", "rng_uniform"}


@pytest.mark.parametrize(
    "numpy_function, jax_function",
    [(np.cbrt, lax.cbrt), (np.fmod, lax.rem), (np.flip, jnp.flip), (np.sign, lax.sign)],
)
def test_numpy_stands_for_the_primitive(numpy_function: Any, jax_function: Any) -> None:
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((2, 5, 4)).astype(np.float32)
    args = (x, y) if numpy_function is np.fmod else (x,)
    np.testing.assert_allclose(numpy_function(*args), jax_function(*args), rtol=1e-6)


@pytest.mark.parametrize("groups, batches", [(1, 1), (3, 1), (1, 2)])
def test_numpy_convolution_stands_for_jax_s(groups: int, batches: int) -> None:
    rng = np.random.default_rng(8)
    image = rng.standard_normal((4, 6, 9)).astype(np.float32)
    kernel = rng.standard_normal((12, 6 // groups, 2)).astype(np.float32)
    expected = lax.conv_general_dilated(
        jnp.asarray(image),
        jnp.asarray(kernel),
        (1,),
        "VALID",
        feature_group_count=groups,
        batch_group_count=batches,
    )
    made = convolution(image, kernel, groups, batches)
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def _without_distinct(relations: Any) -> Any:
    dims = relations[0].dims
    ranks = dict(relations[0].ranks)
    for other in relations[1:]:
        dims = tuple(_relation.unify(a, b) for a, b in zip(dims, other.dims, strict=True))
        ranks |= other.ranks
    return dims, ranks


def _sum_keeps_scale(eqn: Any, x: Any, *args: Any) -> Any:
    made = ORIGINAL_REDUCED(eqn, x, *args)
    return _relation.replace(made, scale=x.scale)


def _no_count(eqn: Any, x: Any, axis: str, op: Any) -> Any:
    return _relation.replace(ORIGINAL_FINISHED(eqn, x, axis, op), scale=x.scale)


def _drops_partial(eqn: Any, x: Any, *args: Any) -> Any:
    return _relation.replace(ORIGINAL_REDUCED(eqn, x, *args), partial={})


def _plain_add(eqn: Any, operands: Any) -> Any:
    scale = _combine.common_scale(eqn, [operand.scale for operand in operands])
    return scale, {a: op for operand in operands for a, op in operand.partial.items()}


def _any_product(eqn: Any, operands: Any, linear: Any = None) -> Any:
    return {a: op for operand in operands for a, op in operand.partial.items()}


ORIGINAL_REDUCED = reduce.reduced
ORIGINAL_FINISHED = collective.finished

MUTANTS: list[tuple[str, Any, str, Any]] = [
    ("add", _combine, "joined", _without_distinct),
    ("add", arithmetic, "additive", _plain_add),
    ("sub", arithmetic, "additive", _plain_add),
    ("mul", arithmetic, "multiplicative", _any_product),
    ("div", arithmetic, "multiplicative", _any_product),
    ("select_n", choices, "additive", _plain_add),
    ("max", arithmetic, "common_scale", lambda eqn, scales, positive=False: scales[0]),
    ("exp", elementwise, "require_unit", lambda *args: None),
    ("exp", elementwise, "_through_monotone", lambda eqn, x: dict(x.partial)),
    ("lt", choices, "require_whole", lambda *args: None),
    ("neg", elementwise, "flipped", lambda op: op),
    ("square", elementwise, "_powered", lambda scale, degree: scale),
    ("reduce_sum", reduce, "reduced", _sum_keeps_scale),
    ("reduce_max", reduce, "_require_same_part", lambda *args: None),
    ("reduce_max", reduce, "reduced", _drops_partial),
    ("cumsum", _joint, "require_full", lambda *args: None),
    ("sort", along, "ordered_scale", lambda eqn, i, x: x.scale),
    ("cummax", along, "ordered_scale", lambda eqn, i, x: x.scale),
    ("top_k", along, "require_whole", lambda *args: None),
    ("fft", _joint, "measured", lambda *args: 1.0),
    ("qr", linalg, "unit_only", lambda eqn, operands, base: base),
    ("triangular_solve", linalg, "linear_in", lambda eqn, operands, i, base: base),
    ("bitcast_convert_type", dtypes, "unit_only", lambda eqn, operands, base: base),
    ("stack", stacking, "additive", _plain_add),
    ("reduce_window_max", window, "_slid", lambda eqn: ()),
    ("select_and_scatter_add", window, "ordered_scale", lambda *args: None),
    ("conv_general_dilated", conv, "reduced", _drops_partial),
    ("conv_general_dilated", conv, "multiplicative", _any_product),
    ("ragged_dot_general", ragged, "require_unit", lambda *args: None),
    ("unstack", _joint, "require_full", lambda *args: None),
    ("dot_general", dot, "reduced", _drops_partial),
    ("dot_general", dot, "multiplicative", _any_product),
    ("psum", collective, "finished", _no_count),
    ("pmax", collective, "_REDUCTIONS", {"psum": "sum", "pmax": "sum", "pmin": "min"}),
    ("all_gather", collective, "_lead", lambda eqn, x, axis: _relation.uniform(eqn.sizes[axis])),
    ("concatenate", structure, "chosen", _plain_add),
]


@pytest.mark.parametrize(
    "op, module, name, broken", MUTANTS, ids=[f"{op}-{name}" for op, _, name, _ in MUTANTS]
)
def test_broken_rule_is_noticed(
    op: str, module: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((AssertionError, ValueError, KeyError)):
        for seed in range(5):
            rulecheck(op, n_samples=300, seed=seed)


def test_a_rule_that_refuses_everything_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(eqn: Any, *operands: Any) -> Any:
        raise _rules.Refused("LAYOUT_UNSUPPORTED", "no")

    monkeypatch.setitem(_rules._computing, "exp", refuse)
    with pytest.raises(AssertionError, match="refuses 100 of 100"):
        rulecheck("exp", n_samples=100)
