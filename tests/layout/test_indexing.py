"""Rules for gathers, scatters, windows and padding: what the NumPy of their samplers is worth, and
which mistakes in the rules the samplers notice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import Local, Replicated, Sliced, check
from jaxcc.layout.rules import _joint, indexing, scatter
from jaxcc.testing import _samples_index as samples
from jaxcc.testing import raises_layout, rulecheck


def arrays(sample: Any, rng: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """Random operands of a sample's shapes on a group of one."""
    return [
        rng.standard_normal(shape)
        if values is None
        else rng.integers(values.start, values.stop, shape)
        for shape, values in zip(
            sample.wholes, sample.integers or (None,) * len(sample.wholes), strict=True
        )
    ]


SCATTERS = {
    "scatter": lax.scatter,
    "scatter-add": lax.scatter_add,
    "scatter-sub": lax.scatter_sub,
    "scatter-mul": lax.scatter_mul,
    "scatter-min": lax.scatter_min,
    "scatter-max": lax.scatter_max,
}


def by_jax(op: str, params: Any, operands: Sequence[Any]) -> Any:
    """What the primitive itself makes."""
    given: Any = {"allow_negative_indices": False}
    if op == "gather":
        array, indices = operands
        return lax.gather(array, indices, **params)
    if op in SCATTERS:
        array, indices, updates = operands
        numbers, mode = params["dimension_numbers"], params["mode"]
        return SCATTERS[op](array, indices, updates, numbers, mode=mode)
    if op == "pad":
        array, value = operands
        return lax.pad(array, value, params["padding_config"])
    if op == "dynamic_slice":
        array, *starts = operands
        return lax.dynamic_slice(array, starts, params["slice_sizes"], **given)
    array, update, *starts = operands
    return lax.dynamic_update_slice(array, update, starts, **given)


@pytest.mark.parametrize("op", samples.SAMPLERS)
def test_numpy_stands_for_the_primitive(op: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng([seed, *op.encode()])
        sample = samples.SAMPLERS[op](rng)
        operands = arrays(sample, rng)
        with jax.enable_x64(True):
            expected = by_jax(op, sample.whole_params, [jnp.asarray(x) for x in operands])
        np.testing.assert_allclose(sample.run_whole(*operands), expected, rtol=1e-9, atol=1e-12)


# Rules that are broken on purpose -----------------------------------------------------------------
def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _uncounted(eqn: Any, operands: Any) -> Any:
    partial = {axis: op for operand in operands for axis, op in operand.partial.items()}
    return operands[0].scale, partial


def _unscaled(eqn: Any, x: Any, *args: Any) -> Any:
    return REDUCED(eqn, x, *args).scaled(x.scale)


def _finished(eqn: Any, x: Any, *args: Any) -> Any:
    return replace(REDUCED(eqn, x, *args), partial={})


def _any_order(eqn: Any, operand: Any, indices: Any, updates: Any, op: Any) -> Any:
    return TERMS(eqn, operand, indices, updates, "max")


def _factors(eqn: Any, operands: Any, linear: Any) -> Any:
    return {axis: op for operand in operands for axis, op in operand.partial.items()}


def _always(eqn: Any, dim: int) -> bool:
    return True


REDUCED, TERMS = scatter.reduced, scatter._terms
MUTANTS: list[tuple[str, Any, str, Any]] = [
    ("gather", indexing, "require_positions", _nothing),
    ("gather", indexing, "chosen", _uncounted),
    ("gather", indexing, "_taken_in_full", _always),
    ("scatter", scatter, "chosen", _uncounted),
    ("scatter", scatter, "_terms", _any_order),
    ("scatter-add", scatter, "require_positions", _nothing),
    ("scatter-add", scatter, "additive", _uncounted),
    ("scatter-sub", scatter, "reduced", _unscaled),
    ("scatter-add", scatter, "reduced", _finished),
    ("scatter-min", scatter, "reduced", _finished),
    ("scatter-max", scatter, "common_scale", lambda eqn, scales, positive: scales[0]),
    ("scatter-mul", scatter, "multiplicative", _factors),
    ("dynamic_slice", indexing, "require_positions", _nothing),
    ("dynamic_slice", _joint, "require_full", _nothing),
    ("dynamic_update_slice", indexing, "chosen", _uncounted),
    ("dynamic_update_slice", _joint, "require_full", _nothing),
    ("pad", indexing, "chosen", _uncounted),
    ("pad", indexing, "_blocks", lambda eqn, dim: 1),
]


@pytest.mark.parametrize(
    "op, module, name, broken", MUTANTS, ids=[f"{op}-{name}" for op, _, name, _ in MUTANTS]
)
def test_broken_rule_is_noticed(
    op: str, module: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(5):
            rulecheck(op, samples.SAMPLERS[op], n_samples=300, seed=seed)


# What a rank has of its own -----------------------------------------------------------------------
def test_tokens_of_a_ranks_own() -> None:
    def looked_up(tokens, table):
        return table[tokens]

    mesh = AbstractMesh((4,), ("tp",))
    tokens, table = (
        jax.ShapeDtypeStruct((3,), jnp.int32),
        jax.ShapeDtypeStruct((8, 12), jnp.float32),
    )
    report = check(looked_up, tokens, table, mesh=mesh, in_layouts=(Local, Replicated))
    assert report.out_layouts[0]["tp"] == Local
    with raises_layout("LAYOUT_MISMATCH", line="table[tokens]"):
        check(looked_up, tokens, table, mesh=mesh, in_layouts=(Local, Sliced(1)))


def test_a_function_applied_at_indices_is_refused() -> None:
    mesh, x = AbstractMesh((4,), ("tp",)), jax.ShapeDtypeStruct((8, 12), jnp.float32)
    with raises_layout("LAYOUT_UNSUPPORTED", line=".apply("):
        check(lambda x: x.at[:, 0].apply(jnp.sin), x, mesh=mesh, in_layouts=(Sliced(0),))
