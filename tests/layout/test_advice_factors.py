"""What messages say of values that are multiples of a group of one's: where the factor comes from,
and only fixes with which the whole program is right, on every group."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Partial, Replicated, Sliced, check, on
from jaxcc.testing import assert_rank_invariant

DP = AbstractMesh((4,), ("dp",))
TP = AbstractMesh((4,), ("tp",))


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X, W, Y = aval(32, 16), aval(16, 8), aval(32, 8)


def message(f: Callable[..., Any], *args: Any, **how: Any) -> str:
    with pytest.raises(LayoutError) as error:
        check(f, *args, **how)
    return str(error.value)


def fixes(text: str) -> list[str]:
    return [line.removeprefix("  fix: ") for line in text.splitlines() if "  fix: " in line]


def right(f: Callable[..., Any], *args: Any, **how: Any) -> None:
    """Asserts that the program is accepted, and that it computes the same on n ranks as on one."""
    check(f, *args, **how)
    rng = np.random.default_rng()
    # Small, so that what grows through layers stays within the tolerance of f32.
    arrays = jax.tree.map(lambda x: 0.3 * rng.standard_normal(x.shape, np.float32), args)
    assert_rank_invariant(f, *arrays, **how, rtol=1e-4, atol=1e-4)


def line_of(f: Callable[..., Any], text: str) -> int:
    """The line of `f` that holds a text."""
    import inspect

    lines, start = inspect.getsourcelines(f)
    return start + next(at for at, line in enumerate(lines) if text in line)


BATCH: dict[str, Any] = dict(mesh=DP, in_layouts=(Sliced(0),), out_layouts=Replicated)


def test_a_group_size_that_is_a_literal() -> None:
    def f(x, w, n=None):
        w = lax.pcast(w, "dp", to="varying")
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return lax.psum(grads, "dp") / (n or 4)

    how: dict[str, Any] = dict(mesh=DP, in_layouts=(Sliced(0), Replicated), out_layouts=Replicated)
    text = message(f, X, W, **how)
    assert fixes(text) == [
        "write jax.lax.axis_size('dp') for 4, which is the number of ranks here alone"
    ]
    assert "in the backward pass it is divided by 64, a size of one rank, where a group" in text
    right(lambda x, w: f(x, w, lax.axis_size("dp")), X, W, **how)


def test_a_literal_factor_of_a_sum_of_what_all_ranks_hold() -> None:
    def f(x, over=0.25):
        return lax.psum(x, "dp") * over

    how: dict[str, Any] = BATCH | {"in_layouts": (Replicated,)}
    assert fixes(message(f, X, **how)) == [
        "write 1 / jax.lax.axis_size('dp') for 0.25, which is the number of ranks here alone"
    ]
    right(lambda x: f(x, 1 / lax.axis_size("dp")), X, **how)
    pending: dict[str, Any] = how | {"in_layouts": (Partial(),)}
    check(f, X, **pending)


def mean_on_one_line(x, reduce):
    return reduce(jnp.mean(x), "dp")


def mean_on_two_lines(x, reduce):
    mean = jnp.mean(x)
    return reduce(mean, "dp")


@pytest.mark.parametrize("f", [mean_on_one_line, mean_on_two_lines])
def test_a_sum_of_means(f) -> None:
    text = message(lambda x: f(x, lax.psum), X, **BATCH)
    at = f"{__file__}:{line_of(f, 'reduce(')}"
    here = "" if f is mean_on_one_line else f" at {at}"
    # The caret is under the psum, which is what is wrong; in another function it is named.
    assert "use jax.lax.pmean(..., 'dp') for the psum" in text
    assert "remove the psum" not in text and "differentiating" not in text
    assert f"psum{here}" in text or "--> " in text
    right(lambda x: f(x, lax.pmean), X, **BATCH)


def test_a_sum_that_is_divided_by_a_rank_s_own_size() -> None:
    def before(x, n=1):
        return lax.psum(x.sum() / (x.size * n), "dp")

    text = message(before, X, **BATCH)
    assert fixes(text) == [
        "use jax.lax.pmean(..., 'dp') for the psum",
        "use the whole size: multiply 128 by jax.lax.axis_size('dp')",
    ]
    assert "divided by 128, a size of one rank, where a group of one has 512" in text
    right(lambda x: before(x, lax.axis_size("dp")), X, **BATCH)
    right(lambda x: lax.pmean(x.sum() / x.size, "dp"), X, **BATCH)

    def after(h, w, n=1):
        return lax.psum(h @ w, "tp") / (h.shape[1] * n)

    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(1), Sliced(0)), out_layouts=Replicated)
    assert fixes(message(after, X, W, **how)) == [
        "use the whole size: multiply 4 by jax.lax.axis_size('tp')"
    ]
    right(lambda h, w: after(h, w, lax.axis_size("tp")), X, W, **how)


STEP: dict[str, Any] = dict(
    mesh=DP, in_layouts=(Replicated, Sliced(0), Sliced(0)), out_layouts=Replicated
)


def same(x):
    return x


def pmean(x):
    return lax.pmean(x, "dp")


def psum(x):
    return lax.psum(x, "dp")


def step(of_loss, of_grads, chain=None):
    def f(w, x, y):
        grads = jax.grad(lambda w: of_loss(jnp.mean((x @ w - y) ** 2)))(w)
        grads = of_grads(grads)
        if chain is None:
            return w - 0.1 * grads
        updates, _ = chain.update(grads, chain.init(w), w)
        return optax.apply_updates(w, updates)

    return f


LOSS_MEAN = "take jax.lax.pmean(loss, 'dp') before differentiating"


@pytest.mark.parametrize(
    "chain", [None, optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1))]
)
def test_gradients_that_jax_has_summed(chain) -> None:
    text = message(step(same, same, chain), W, X, Y, **STEP)
    assert fixes(text) == [LOSS_MEAN] and "in the backward pass" in text
    # A pmean of the gradients would change nothing.
    assert fixes(message(step(same, pmean, chain), W, X, Y, **STEP)) == [LOSS_MEAN]
    (fix,) = fixes(message(step(same, psum, chain), W, X, Y, **STEP))
    assert fix.startswith("remove the psum over 'dp'") and fix.endswith(f", and {LOSS_MEAN}")
    right(step(pmean, same, chain), W, X, Y, **STEP)


def test_gradients_of_which_jax_sums_nothing() -> None:
    how: dict[str, Any] = STEP | dict(check_vma=False)
    text = message(step(same, psum), W, X, Y, **how)
    assert [fix.partition(" at ")[0] for fix in fixes(text)] == [
        "use jax.lax.pmean(..., 'dp') for the psum"
    ]
    assert "check_vma=True" not in text and "differentiating" not in text
    right(step(same, pmean), W, X, Y, **how)


@pytest.mark.parametrize("check_vma", [True, False])
def test_a_fix_of_very_many_gradients_is_tried_for_all_of_them(check_vma: bool) -> None:
    def f(weights, x, of_loss=same, of_grads=same):
        def loss(weights):
            return of_loss(jnp.mean(sum(jnp.tanh(x @ w) for w in weights) ** 2))

        return of_grads(jax.grad(loss)(weights))

    how: dict[str, Any] = dict(
        mesh=DP,
        in_layouts=(Replicated, Sliced(0)),
        out_layouts=Replicated,
        check_vma=check_vma,
    )
    weights = [W] * 60
    text = message(f, weights, X, **how)
    assert text.count("[LAYOUT_") == 1 and "and 59 more" in text and "not tried" not in text
    (fix,) = fixes(text)
    if check_vma:
        assert fix == LOSS_MEAN
        check(partial(f, of_loss=pmean), weights, X, **how)
    else:
        assert fix.startswith("jax.lax.pmean(..., 'dp') before it is returned")
        check(partial(f, of_grads=pmean), weights, X, **how)


def test_an_operand_is_an_array_and_not_the_number_that_it_is_multiplied_with() -> None:
    text = message(step(same, psum), W, X, Y, **STEP)
    (operand,) = [line for line in text.splitlines() if line.startswith("  operand 1")]
    assert "made by psum at" in operand and "a constant" not in operand


@pytest.mark.parametrize("sizes", [(2, 2), (4, 4), (4, 2)])
def test_a_sum_over_the_wrong_axis(sizes) -> None:
    def f(x, w, axis="dp"):
        return lax.psum(x @ w, axis)

    how: dict[str, Any] = dict(
        mesh=AbstractMesh(sizes, ("dp", "tp")),
        in_layouts=(on(tp=Sliced(1)), on(tp=Sliced(0))),
        out_layouts=Replicated,
    )
    text = message(f, X, W, **how)
    assert fixes(text) == [
        "jax.lax.psum(..., 'tp') for the psum over 'dp': what is summed is Replicated over 'dp' "
        "and Partial(sum) over 'tp'"
    ]
    right(lambda x, w: f(x, w, "tp"), X, W, **how)


def mean_over(x, axis):
    return lax.psum(x.mean(), "dp") / lax.axis_size(axis)


def test_a_factor_that_only_a_smaller_group_shows() -> None:
    """The sizes of both axes cancel on the mesh itself."""
    text = message(
        lambda x: mean_over(x, "tp"),
        X,
        mesh=AbstractMesh((2, 2), ("dp", "tp")),
        in_layouts=(on(dp=Sliced(0)),),
        out_layouts=Replicated,
    )
    assert "  on dp=2, tp=1, one of the groups that are checked:\n" in text
    # A pmean would be right there, and wrong on the mesh.
    assert fixes(text) == []


@pytest.mark.parametrize("sizes", [(4, 2), (8, 2)])
def test_a_division_by_the_ranks_of_another_axis(sizes) -> None:
    how: dict[str, Any] = dict(
        mesh=AbstractMesh(sizes, ("dp", "tp")),
        in_layouts=(on(dp=Sliced(0)),),
        out_layouts=Replicated,
    )
    text = message(lambda x: mean_over(x, "tp"), X, **how)
    assert fixes(text)[0] == "jax.lax.axis_size('dp') for jax.lax.axis_size('tp')"
    assert "psum over 'tp'" not in text
    right(lambda x: mean_over(x, "dp"), X, **how)


PARALLEL: dict[str, Any] = dict(
    mesh=TP,
    in_layouts=(Replicated, Sliced(1), Sliced(0), Replicated),
    out_layouts=(Sliced(1), Sliced(0)),
)
TARGETS = X, W, aval(8, 16), X


@jax.custom_vjp
def summed_once(x):
    return lax.psum(x, "tp")


summed_once.defvjp(lambda x: (summed_once(x), None), lambda _, g: (g,))


def gradients(reduce):
    def f(x, up, down, y):
        def loss(up, down):
            hidden = jax.nn.relu(x @ up)
            return jnp.mean((reduce(hidden @ down) - y) ** 2)

        return jax.grad(loss, (0, 1))(up, down)

    return f


def test_a_gradient_of_psum_that_is_psum() -> None:
    how: dict[str, Any] = PARALLEL | dict(check_vma=False)
    f = gradients(lambda x: lax.psum(x, "tp"))
    text = message(f, *TARGETS, **how)
    assert text.count("[LAYOUT_") == 1 and "and 1 more: result 1" in text
    assert "the gradient of psum adds up what the 4 ranks of 'tp' hold alike" in text
    first, second = fixes(text)
    assert first == "run and check with check_vma=True, where JAX sums each gradient once"
    assert "the identity as its gradient" in second
    # The caret is under the psum of the forward pass.
    assert f":{line_of(test_a_gradient_of_psum_that_is_psum, 'lax.psum(x')}:" in text
    right(f, *TARGETS, **PARALLEL)
    right(gradients(summed_once), *TARGETS, **how)


@jax.custom_vjp
def copied(x):
    return x


def backward(_, g):
    return (lax.psum(g, "tp"),)


copied.defvjp(lambda x: (x, None), backward)


def test_a_sum_in_a_backward_rule_is_not_blamed_for_that_of_the_forward_pass() -> None:
    def f(reduce, x, up, down, y):
        def loss(x):
            hidden = jax.nn.relu(copied(x) @ up)
            return jnp.mean((reduce(hidden @ down) - y) ** 2)

        return jax.grad(loss)(x)

    how: dict[str, Any] = PARALLEL | dict(check_vma=False, out_layouts=Replicated)
    text = message(partial(f, lambda x: lax.psum(x, "tp")), *TARGETS, **how)
    here = line_of(
        test_a_sum_in_a_backward_rule_is_not_blamed_for_that_of_the_forward_pass, "TARGETS"
    )
    assert f"--> {__file__}:{here}:" in text
    assert any("the identity as its gradient" in fix for fix in fixes(text))
    right(partial(f, summed_once), *TARGETS, **how)


def bias_in_a_loop(loop):
    """Layers in a loop whose bias is added before the sum, or after it."""

    def f(after, x, up, down, bias):
        def layer(x, up, down, bias):
            made = jax.nn.relu(x @ up) @ down
            return x + (lax.psum(made, "tp") + bias if after else lax.psum(made + bias, "tp"))

        return loop(layer, x, up, down, bias)

    return f


def scanned(layer, x, up, down, bias):
    return lax.scan(lambda x, w: (layer(x, *w), None), x, (up, down, bias))[0]


def chosen(layer, x, up, down, bias):
    return lax.cond(bias[0, 0] > 0, lambda: layer(x, up[0], down[0], bias[0]), lambda: x)


def repeated(layer, x, up, down, bias):
    def turn(state):
        at, x = state
        return at + 1, layer(x, up[0], down[0], bias[0])

    return lax.while_loop(lambda state: state[0] < 3, turn, (0, x))[1]


@pytest.mark.parametrize("loop", [scanned, chosen, repeated])
@pytest.mark.parametrize("check_vma", [True, False])
def test_fixes_in_loops_and_branches_are_tried(loop, check_vma) -> None:
    f = bias_in_a_loop(loop)
    args = aval(4, 16), aval(3, 16, 8), aval(3, 8, 16), aval(3, 16)
    how: dict[str, Any] = dict(
        mesh=TP,
        in_layouts=(Replicated, Sliced(2), Sliced(1), Replicated),
        out_layouts=Replicated,
        check_vma=check_vma,
    )
    text = message(partial(f, False), *args, **how)
    assert "LAYOUT_COUNTED" in text and "not tried" not in text
    first, second = fixes(text)
    assert first.startswith("add ") and first.endswith("after the sum over 'tp'")
    assert second.endswith("/ jax.lax.axis_size('tp')")
    right(partial(f, True), *args, **how)


def summed_twice(again, finish, x, w, y):
    total = lax.psum(x @ w, "tp")
    total = again(total)
    return finish(total, y)


@pytest.mark.parametrize("finish", [lambda a, y: jnp.tanh(a), lambda a, y: jnp.mean((a - y) ** 2)])
def test_a_second_psum_is_the_one_that_is_named(finish) -> None:
    how: dict[str, Any] = dict(
        mesh=TP, in_layouts=(Sliced(1), Sliced(0), Replicated), out_layouts=Replicated
    )
    again = lambda x: lax.psum(x, "tp")  # noqa: E731
    text = message(partial(summed_twice, again, finish), X, W, Y, **how)
    at = f"{__file__}:{line_of(test_a_second_psum_is_the_one_that_is_named, 'again = ')}"
    assert fixes(text) == [f"remove the psum over 'tp' at {at}, or use jax.lax.pmean(..., 'tp')"]
    assert f"made by psum at {at}" in text
    right(partial(summed_twice, same, finish), X, W, Y, **how)


def test_a_second_psum_in_a_loss_and_its_gradient() -> None:
    def f(once, again, x, w, y):
        return jax.grad(lambda w: jnp.mean((again(once(x @ w)) - y) ** 2))(w)

    how: dict[str, Any] = dict(
        mesh=TP,
        in_layouts=(Sliced(1), Sliced(0), Replicated),
        out_layouts=Sliced(0),
        check_vma=False,
    )

    def tp_sum(x):
        return lax.psum(x, "tp")

    def second(x):
        return lax.psum(x, "tp")

    text = message(partial(f, tp_sum, second), X, W, Y, **how)
    (fix,) = fixes(text)
    assert "remove the psum over 'tp'" in fix and "the identity as its gradient" in fix
    right(partial(f, summed_once, same), X, W, Y, **how)


def test_a_size_is_not_said_to_be_a_sum() -> None:
    text = message(lambda x: x * x.shape[0], X, mesh=TP, in_layouts=(Sliced(0),))
    assert "multiplied by 8, a size of one rank, where a group of one has 32" in text
    assert fixes(text) == ["use the whole size: multiply 8 by jax.lax.axis_size('tp')"]
    right(lambda x: x * (x.shape[0] * lax.axis_size("tp")), X, mesh=TP, in_layouts=(Sliced(0),))


def test_a_whole_value_that_is_declared_pending() -> None:
    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Replicated,), out_layouts=Partial())
    text = message(lambda x: x / jnp.mean(x), X, **how)
    assert "every rank along 'tp' holds it, and as Partial(sum) it is added up" in text
    assert fixes(text) == [
        "divide it by jax.lax.axis_size('tp')",
        "declare result 0 Replicated over tp in out_layouts",
    ]
    right(lambda x: x / jnp.mean(x) / lax.axis_size("tp"), X, **how)


def test_a_constant_keeps_its_name_in_another_type() -> None:
    half = jax.ShapeDtypeStruct((32, 16), jnp.bfloat16), jax.ShapeDtypeStruct((16, 8), jnp.bfloat16)
    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(1), Sliced(0)), out_layouts=Replicated)
    for small in (1e-6, jnp.bfloat16(0.5) * 1):
        text = message(lambda x, w, small=small: lax.psum(x @ w + small, "tp"), *half, **how)
        assert "the constant" in text.splitlines()[0] and "convert_element_type" not in text


def test_no_more_is_said_than_is_tried() -> None:
    """A factor of three powers of the ranks: no fix is shown."""

    def f(x):
        return lax.psum(x.sum(1), "tp") * lax.axis_size("tp") ** 3

    text = message(f, X, mesh=TP, in_layouts=(Sliced(1),), out_layouts=Replicated)
    assert fixes(text) == [] and "64 times what a group of one returns" in text
