"""What users mix up about states, master copies and meshes is named, with the way out."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fused import fused, on_ranks, randoms
from oracles import mesh_of

import jaxcc

PARAMS: Any = randoms(np.random.default_rng(), {"a": (3, 4), "b": (5,)})
OTHER = {"a": PARAMS["a"], "b": PARAMS["b"][:4]}
LESS = {"a": PARAMS["a"]}
ADAM: Any = optax.adam(1e-2)
TX = fused(ADAM, 2)
WIDE = fused(ADAM, 2, master=jnp.float32)


def message(f: Callable[[], Any], kind: type[jaxcc.JaxccError] = jaxcc.LayoutError) -> str:
    with pytest.raises(kind) as caught:
        f()
    assert caught.value.findings[0].fixes
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "load"),
    [
        ("[0].mu['b'] is f32[4]; these parameters have f32[5]", lambda: (ADAM.init(OTHER), PARAMS)),
        ("[0].mu['b'] is f32[5]; these parameters have f32[4]", lambda: (ADAM.init(PARAMS), OTHER)),
        ("it lacks [0].mu['b'], [0].nu['b']", lambda: (ADAM.init(LESS), PARAMS)),
        ("it has [0].mu['b'], [0].nu['b']", lambda: (ADAM.init(PARAMS), LESS)),
        ("and has [0].trace['a']", lambda: (optax.sgd(0.1, 0.9).init(PARAMS), PARAMS)),
        (
            "[0].count is f32[]; these parameters have i32[]",
            lambda: (jax.tree.map(jnp.float32, ADAM.init(PARAMS)), PARAMS),
        ),
        (
            "[0].mu['a'] is i32[3,4]; these parameters have f32[3,4]",
            lambda: (ADAM.init(jax.tree.map(np.int32, PARAMS)), PARAMS),
        ),
        ("it lacks [0].count", lambda: (tuple(map(vars_of, ADAM.init(PARAMS))), PARAMS)),
        ("a master copy", lambda: (WIDE.save_form(WIDE.init(PARAMS), PARAMS), PARAMS)),
    ],
)
def test_a_state_that_is_loaded_for_other_parameters(text: str, load: Any) -> None:
    said = message(lambda: TX.load_form(*load()))
    assert "[OPTIM_ARGUMENT]" in said and text in said


def vars_of(state: Any) -> Any:
    """A NamedTuple as a reader of files that knows no classes gives it."""
    return state._asdict()


@pytest.mark.parametrize(
    ("text", "save"),
    [
        ("[0].mu['b'] is f32[6]; these parameters have f32[4]", lambda: (TX.init(PARAMS), OTHER)),
        ("[0].mu['b'] is f32[4]; these parameters have f32[5]", lambda: (TX.init(OTHER), PARAMS)),
        ("it lacks [0].mu['b'], [0].nu['b']", lambda: (TX.init(LESS), PARAMS)),
        ("[0].mu['a'] is f32[3,4]", lambda: (ADAM.init(PARAMS), PARAMS)),
        ("it lacks [0].count", lambda: (WIDE.init(PARAMS), PARAMS)),
    ],
)
def test_a_state_that_is_saved_for_other_parameters(text: str, save: Any) -> None:
    said = message(lambda: TX.save_form(*save()))
    assert "[OPTIM_ARGUMENT]" in said and text in said


def test_states_with_and_without_a_master_copy() -> None:
    assert "it lacks .master['a']" in message(lambda: WIDE.save_form(TX.init(PARAMS), PARAMS))
    step = on_ranks(WIDE, mesh_of(2, "dp"), PARAMS)
    grads = jax.tree.map(lambda p: np.stack([p, p]), PARAMS)
    widened = WIDE.init(PARAMS)._replace(inner=TX.init(OTHER))
    assert "['b']: the slices in the state" in message(lambda: step(grads, widened, PARAMS))


@pytest.mark.parametrize("master", ["float33", jnp.int32, bool, jnp.float64, jnp.complex64, 3])
def test_a_master_copy_of_another_kind(master: Any) -> None:
    said = message(lambda: fused(ADAM, 2, master=master))
    assert "[OPTIM_ARGUMENT] master is" in said


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("'adam' is no optax transformation", lambda: jaxcc.optim.fuse("adam", axis_name="dp")),
        ("is no optax transformation", lambda: jaxcc.optim.fuse(optax.adam, axis_name="dp")),
        ("is fused already", lambda: jaxcc.optim.fuse(TX, axis_name="dp")),
        ("mesh is 'dp'", lambda: jaxcc.optim.adam(1e-2, axis_name="dp", mesh="dp")),
        ("['n'] is int32, not floating", lambda: TX.init({"n": jnp.arange(3)})),
        ("['k'] is key<fry>, not floating", lambda: TX.init({"k": jax.random.key(0)})),
    ],
)
def test_what_is_no_transformation_mesh_or_parameter(text: str, make: Any) -> None:
    said = message(make)
    assert "[OPTIM_ARGUMENT]" in said and text in said


@pytest.mark.parametrize("other", [1, 4])
def test_a_mesh_of_another_size(other: int) -> None:
    grads = jax.tree.map(lambda p: np.stack([p] * other), PARAMS)
    here = fused(ADAM, other)
    step = on_ranks(TX, mesh_of(other, "dp"), PARAMS)
    said = message(lambda: step(grads, here.init(PARAMS), PARAMS))
    assert f"mesh has 2 ranks along 'dp', and the enclosing jax.shard_map {other}" in said


def test_a_state_of_another_group() -> None:
    here = fused(ADAM, 1)
    step = on_ranks(here, mesh_of(1, "dp"), PARAMS)
    grads = jax.tree.map(lambda p: p[None], PARAMS)
    said = message(lambda: step(grads, TX.init(PARAMS), PARAMS))
    assert "the slices in the state have shape" in said and "tx.load_form here" in said
