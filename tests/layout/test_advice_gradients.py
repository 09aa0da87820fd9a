"""What is said of gradients, loops and groups, where a number alone names no cause: each cure that
is shown, applied, passes."""

import re
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

import jaxcc
from jaxcc.layout import LayoutError, Partial, Replicated, Sliced, check, on

TP = AbstractMesh((4,), ("tp",))


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


X, UP, DOWN = aval(8, 16), aval(16, 32), aval(32, 16)


def error_of(f: Any, *args: Any, **how: Any) -> LayoutError:
    with pytest.raises(LayoutError) as error:
        check(f, *args, **how)
    return error.value


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (2, 4), (4, 2)])
@pytest.mark.parametrize("wrong", ["dp", "tp"])
def test_the_axis_at_fault_is_named_also_among_axes_of_one_size(
    sizes: tuple[int, int], wrong: str
) -> None:
    """The loss is a mean over one axis only; on the other JAX sums the gradient too often."""
    right = "tp" if wrong == "dp" else "dp"

    def loss(x, w, mean_over):
        whole = lax.all_gather(x @ w, wrong, axis=1, tiled=True)
        return lax.pmean((whole**2).mean(), mean_over)

    how: dict[str, Any] = dict(
        mesh=AbstractMesh(sizes, ("dp", "tp")),
        in_layouts=(on(**{right: Sliced(0)}), on(**{wrong: Sliced(1)})),
        out_layouts=Replicated,
        grad=(0, 1),
    )
    args = aval(24, 16), aval(16, 24)
    said = str(error_of(lambda x, w: loss(x, w, right), *args, **how))
    assert f"pmean(loss, '{wrong}')" in said
    assert f"pmean(loss, '{right}')" not in said
    check(lambda x, w: loss(x, w, ("dp", "tp")), *args, **how)


def deep(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return (x**2).mean()


WIDTHS = (16, 8, 8, 24, 8)
PARAMS = [aval(m, n) for m, n in zip(WIDTHS, WIDTHS[1:], strict=False)]


@pytest.mark.parametrize("check_vma", [False, True])
def test_one_bug_of_many_gradients_is_told_once(check_vma: bool) -> None:
    def gradients(params, x):
        return jax.grad(deep)(params, x)

    how: dict[str, Any] = dict(
        mesh=TP,
        in_layouts=(Replicated, Sliced(0)),
        out_layouts=Replicated,
        check_vma=check_vma,
    )
    error = error_of(gradients, PARAMS, X, **how)
    assert [one.result for one in error.findings] == [f"result {at}" for at in range(4)]
    assert str(error).count("[LAYOUT_") == 1
    assert "\n  and 3 more: result 1; result 2; result 3" in str(error)


def test_results_that_are_wrong_in_other_ways_are_told_apart() -> None:
    def two(x):
        return x.sum(0), x.max(0), (lax.pmean(x.sum(0), "tp"))

    error = error_of(two, X, mesh=TP, in_layouts=Sliced(0), out_layouts=Replicated)
    assert str(error).count("[LAYOUT_") == 3 and " more: " not in str(error)


def test_gradients_that_are_not_summed_before_an_optimizer() -> None:
    """What mends all weights alike is shown, and of another shape once more."""

    def step(params, x):
        grads = jax.grad(deep)(params, x)
        return jax.tree.map(lambda p, g: p - g / (1 + jnp.abs(g)), params, grads)

    how: dict[str, Any] = dict(
        mesh=TP, in_layouts=(Replicated, Sliced(0)), out_layouts=Replicated, check_vma=False
    )
    same = [aval(16, 16)] * 3
    for params in (same, PARAMS):
        text = str(error_of(step, params, X, **how))
        assert text.count("[LAYOUT_") == text.count("fix: jax.lax.pmean(..., 'tp') before abs") == 1
    assert " and 3 more: f32[8,8] " in text


def test_gradients_that_only_check_vma_mends() -> None:
    def layer(x, up, down):
        return lax.psum(jax.nn.gelu(x @ up) @ down, "tp")

    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Replicated, Sliced(1), Sliced(0)), grad=(1, 2))
    error = error_of(layer, X, UP, DOWN, **how, check_vma=False)
    assert all(len(f.fixes) == 1 and "check_vma=True" in f.fixes[0] for f in error.findings)
    check(layer, X, UP, DOWN, **how, check_vma=True)


def test_gradients_that_are_summed_already() -> None:
    def loss(x, w):
        return lax.pmean(((x @ w) ** 2).mean(), "tp")

    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(0), Replicated), grad=1)
    (finding,) = error_of(loss, X, UP, **how, grads="pending").findings
    assert len(finding.fixes) == 1 and "grads='summed'" in finding.fixes[0]
    check(loss, X, UP, **how, grads="summed")


def test_a_cure_of_the_flags_is_shown_only_where_it_cures() -> None:
    def loss(x, w):
        return ((x @ w) ** 2).mean()

    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Replicated, Replicated), grad=1)
    error = error_of(lambda x, w: lax.psum(loss(x, w), "tp") / 4, X, UP, **how)
    assert "check_vma=True, where" not in str(error) and "grads='summed'" not in str(error)


def test_a_sum_that_a_scan_carries_unfinished() -> None:
    def layers(x, up, down, finish):
        def body(x, w):
            return x + finish(jax.nn.gelu(x @ w[0]) @ w[1]), None

        return lax.scan(body, x, (up, down))[0]

    args = X, aval(3, 16, 32), aval(3, 32, 16)
    how: dict[str, Any] = dict(
        mesh=TP, in_layouts=(Replicated, Sliced(2), Sliced(1)), out_layouts=Replicated
    )
    for check_vma, code in ((True, "LAYOUT_TRACE"), (False, "LAYOUT_COUNTED")):
        error = error_of(
            lambda x, u, d: layers(x, u, d, lambda y: y), *args, **how, check_vma=check_vma
        )
        assert error.code == code
        assert "jax.lax.psum(" in error.findings[0].fixes[0]
        check(
            lambda x, u, d: layers(x, u, d, lambda y: lax.psum(y, "tp")),
            *args,
            **how,
            check_vma=check_vma,
        )


@pytest.mark.parametrize("at", ["dp", "tp"])
def test_the_axis_whose_size_is_a_python_constant(at: str) -> None:
    def f(x, w):
        return (x @ w) * jnp.ones((6, 1) if at == "dp" else (8,))

    how: dict[str, Any] = dict(
        mesh=AbstractMesh((4, 4), ("dp", "tp")),
        in_layouts=(on(dp=Sliced(0)), on(tp=Sliced(1))),
    )
    said = str(error_of(f, aval(24, 16), UP, **how))
    assert f"jax.lax.axis_size('{at}')" in said


def test_a_permutation_of_a_fixed_number_of_ranks() -> None:
    def turn(x, n):
        return lax.ppermute(x, "tp", [(k, (k + 1) % n) for k in range(n)])

    def sum_of_turns(x, n):
        total = x
        for _ in range(n - 1):
            x = turn(x, n)
            total = total + x
        return total

    how: dict[str, Any] = dict(
        mesh=TP, in_layouts=(Sliced(0),), out_layouts=Sliced(0), structure="rank-dependent"
    )
    error = error_of(lambda x: sum_of_turns(x, 4), aval(8, 4), **how)
    assert error.code == "LAYOUT_TRACE" and "axis_size('tp')" in str(error)
    whole: dict[str, Any] = how | dict(in_layouts=(Replicated,), out_layouts=Replicated)
    check(lambda x: turn(x, lax.axis_size("tp")), aval(8, 4), **whole)


def test_a_result_that_is_pending_over_two_axes() -> None:
    how: dict[str, Any] = dict(
        mesh=AbstractMesh((2, 2), ("dp", "tp")),
        in_layouts=(on(dp=Sliced(0), tp=Sliced(1)),),
        out_layouts=Replicated,
    )
    said = str(error_of(lambda x: x.sum(), X, **how))
    assert "fix: jax.lax.psum(..., ('dp', 'tp')) before it is returned" in said
    check(lambda x: lax.psum(x.sum(), ("dp", "tp")), X, **how)


def test_a_mean_and_a_sum_over_two_axes() -> None:
    how: dict[str, Any] = dict(
        mesh=AbstractMesh((2, 4), ("dp", "tp")),
        in_layouts=(on(dp=Sliced(0), tp=Sliced(1)),),
        out_layouts=Replicated,
    )
    said = str(error_of(lambda x: x.mean(0).sum(), X, **how))
    (fix,) = re.findall(r"fix: (.*) before it is returned", said)
    scope = {"jax": jax}
    check(lambda x: eval(fix.replace("...", "x.mean(0).sum()"), scope | {"x": x}), X, **how)


@pytest.mark.parametrize("op", ["argmax", "argmin", "cumsum", "cumprod", "cummax", "cummin"])
def test_a_combinator_is_named_where_there_is_one(op: str) -> None:
    import jaxcc.comm as comm

    of_lax: Any = getattr(lax, op)
    index = (jnp.int32,) if op.startswith("arg") else ()
    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(1),))
    said = str(error_of(lambda x: of_lax(x, 1, *index), X, **how))
    assert f"fix: use jaxcc.comm.{op}" in said
    assert callable(getattr(comm, op))


def test_softmax_and_a_masked_mean_of_blocks() -> None:
    said = str(error_of(lambda x: jax.nn.softmax(x), X, mesh=TP, in_layouts=(Sliced(1),)))
    assert "jaxcc.comm.softmax" in said

    def mean(x, m):
        return lax.pmean((x * m).sum() / m.sum(), "tp")

    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(0), Sliced(0)))
    assert "reduce each operand of div over 'tp'" in str(error_of(mean, X, X, **how))
    check(lambda x, m: lax.psum((x * m).sum(), "tp") / lax.psum(m.sum(), "tp"), X, X, **how)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_arguments(count: int) -> None:
    def f(x, y):
        return x + y

    error = error_of(f, *[X] * count, mesh=TP, in_layouts=Replicated)
    assert error.code == "LAYOUT_ARGUMENT" and "f(x, y) cannot be called" in str(error)


def test_a_name_that_jax_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'foo'"):
        check(lambda x: jnp.foo(x), X, mesh=TP, in_layouts=(Replicated,))  # pyright: ignore


def test_a_pytree_of_layouts_in_an_annotation() -> None:
    def f(
        p: Annotated[dict[str, Array], {"w": Sliced(1), "b": Sliced(0)}],
        x: Annotated[Array, Replicated],
    ) -> Annotated[Array, Sliced(1)]:
        return x @ p["w"] + p["b"]

    report = check(f, {"w": UP, "b": aval(32)}, X, mesh=TP)
    assert [str(one["tp"]) for one in report.in_layouts] == ["Sliced(0)", "Sliced(1)", "Replicated"]


def test_a_function_of_global_arrays() -> None:
    mesh = jax.make_mesh((2,), ("tp",))

    def f(x):
        return lax.psum(x.sum(0), "tp")

    mapped = jax.shard_map(f, mesh=mesh, in_specs=P("tp"), out_specs=P())
    how: dict[str, Any] = dict(mesh=mesh, in_layouts=(Sliced(0),))
    for one in (mapped, jax.jit(mapped)):
        assert "give check the per-rank function" in str(error_of(one, X, **how))
    typed = jaxcc.typed(mesh=mesh, in_layouts=(Sliced(0),))(f)
    for given in (how, {"mesh": mesh}):
        assert "f.check(*avals)" in str(error_of(typed, X, **given))
    typed.check(X)
    check(typed.local, X, **how)


def test_a_pending_result_that_nobody_declared_is_noted() -> None:
    def f(x, w):
        return x @ w

    how: dict[str, Any] = dict(mesh=TP, in_layouts=(Sliced(1), Sliced(0)))
    assert any("result 0: every rank's own term" in note for note in check(f, X, UP, **how).notes)
    assert not check(f, X, UP, **how, out_layouts=Partial()).notes


def test_gradients_accumulated_over_a_sliced_batch() -> None:
    def total(x):
        return lax.scan(lambda c, y: (c + y.sum(), None), jnp.float32(0), x)[0]

    def turned(x):
        return total(x.reshape(4, -1, 4))

    how: dict[str, Any] = dict(mesh=TP, check_vma=False, out_layouts=Partial())
    assert "turns as dimension 0" in str(error_of(turned, aval(32, 4), **how, in_layouts=Sliced(0)))
    check(total, aval(4, 8, 4), **how, in_layouts=Sliced(1))
