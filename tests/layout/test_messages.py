"""What a refused program's author reads."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec

from jaxcc.layout import LayoutError, Local, Partial, Replicated, Sliced, check

MESH = AbstractMesh((4,), ("tp",))


def aval(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def early(x, w, b):
    y = x @ w
    return lax.psum(y + b, "tp")


def message(f, *args, **kwargs) -> str:
    with pytest.raises(LayoutError) as error:
        check(f, *args, mesh=MESH, **kwargs)
    return str(error.value)


def test_whole_message() -> None:
    text = message(
        early, aval(4, 16), aval(16, 8), aval(8), in_layouts=(Sliced(1), Sliced(0), Replicated)
    )
    here = early.__code__.co_firstlineno
    file = early.__code__.co_filename
    assert text == (
        "[LAYOUT_COUNTED] 'b' is counted 4 times: it is Replicated over 'tp' and added to a value "
        "that is Partial(sum) over 'tp'\n"
        f"  --> {file}:{here + 2}:21 in early\n"
        f'   {here + 2} |     return lax.psum(y + b, "tp")\n'
        "      |                     ^^^^^\n"
        f"  operand 0: f32[4,8] Partial(sum)@tp, made by dot_general at {file}:{here + 1}\n"
        "  operand 1: f32[1,8] Replicated, argument 'b'\n"
        "  because: the sum over the 4 ranks adds 'b' once for each rank\n"
        "  fix: add 'b' after the sum over 'tp'\n"
        "  fix: add 'b' / jax.lax.axis_size('tp')"
    )


def test_a_scale_points_at_the_line_that_made_it() -> None:
    def twice(x):
        total = lax.psum(x, "tp")
        doubled = lax.psum(total, "tp")
        moved = doubled.T
        return moved + 0.0

    text = message(twice, aval(4, 8), in_layouts=(Partial(),))
    line = twice.__code__.co_firstlineno + 2
    assert "result 0 is 4 times what a group of one returns" in text
    assert f":{line}:" in text


def test_a_step_of_the_group_of_one_alone_has_its_line() -> None:
    block = 4

    def first(x):
        return x[:block]

    def summed(x):
        head = x[:block]
        return lax.psum(jnp.tanh(head).sum(), "tp")

    for f in (first, summed):
        text = message(f, aval(4 * block, 4), in_layouts=(Sliced(0),))
        line = f.__code__.co_firstlineno + 1
        assert f"group of one has there is made by slice at {__file__}:{line}: the program" in text
        assert f"\n  --> {__file__}:" in text and "[LAYOUT_STRUCTURE] 'x' is not" in text


def test_unselected_and_dead_values_are_not_reported() -> None:
    def dead(x):
        jnp.tanh(x @ x.T)
        return lax.psum(x @ x.T, "tp")

    check(dead, aval(4, 8), mesh=MESH, in_layouts=(Sliced(1),))


@pytest.mark.parametrize(
    "kwargs, said",
    [
        ({"in_layouts": (Sliced(0), Sliced(0))}, "does not match the structure"),
        ({"in_layouts": (Sliced(3),)}, "no dimension 3"),
        ({"in_layouts": (Sliced(0),), "out_layouts": Sliced(4)}, "no dimension 4"),
        ({"in_layouts": ("rows",)}, "not 'rows'"),
        ({"in_layouts": (Sliced(0),), "grad": 1}, "names argument 1"),
        ({"in_layouts": (Sliced(0),), "grad": 0, "grads": "all"}, "not 'summed' or 'pending'"),
        ({"in_layouts": (Sliced(0),), "structure": "ring"}, "structure is 'ring'"),
        ({"in_layouts": (Sliced(0),), "structure": "rank-dependent"}, "needs out_layouts"),
    ],
)
def test_bad_arguments_of_check(kwargs, said) -> None:
    assert said in message(lambda x: x, aval(4, 8), **kwargs)


def test_layouts_that_do_not_fit_are_shown_beside_the_values() -> None:
    def f(p):
        return {"y": p["w"], "rest": (p["w"], p["w"].sum())}

    params = {"w": aval(4, 8)}
    ins = message(f, params, in_layouts=({"v": Replicated},))
    assert "it is {'v': Replicated}, and they are {'w': f32[4,8]}" in ins
    outs = message(f, params, in_layouts=Replicated, out_layouts=(Replicated, Sliced(1)))
    assert "it is (Replicated, Sliced(1)), and they are " in outs
    assert "'y': f32[4,8]" in outs and "'rest': (f32[4,8], f32[])" in outs and "*" not in outs
    many = message(f, {f"w{i}": aval(4) for i in range(999)}, in_layouts=({"v": Replicated},))
    assert len(many) < 1000


def test_a_bare_layout_on_several_axes_is_to_name_one() -> None:
    with pytest.raises(LayoutError) as error:
        check(lambda x: x, aval(4), mesh=AbstractMesh((1, 4), ("dp", "tp")), in_layouts=Sliced(0))
    assert "on(dp=Sliced(0)) or on(tp=Sliced(0))" in error.value.findings[0].fixes[0]


def test_parentheses_after_a_layout_do_no_harm() -> None:
    assert Replicated() is Replicated and Local() is Local
    report = check(lambda x: x, aval(4), mesh=MESH, in_layouts=Local(), out_layouts=Local)
    assert report.in_layouts[0]["tp"] is Local


@pytest.mark.parametrize("mesh", [None, {}, 4])
def test_bad_mesh(mesh) -> None:
    with pytest.raises(LayoutError, match="mesh has to be"):
        check(lambda x: x, aval(4), mesh=mesh, in_layouts=(Replicated,))


def test_indivisible() -> None:
    text = message(lambda x: x, aval(4, 6), in_layouts=(Sliced(1),))
    assert "dimension 1 of x is 6, which the 4 ranks of axis 'tp' do not divide" in text


def test_captured_group_size() -> None:
    n = 4
    text = message(lambda x: x.reshape(8 // n, 3) * 2, aval(8, 3), in_layouts=(Sliced(0),))
    assert "LAYOUT_TRACE" in text and "lax.axis_size('tp')" in text


def test_report_shows_the_program() -> None:
    def f(x, w):
        y = x @ w
        return jnp.tanh(lax.psum(y, "tp"))

    report = check(f, aval(4, 16), aval(16, 8), mesh=MESH, in_layouts=(Sliced(1), Sliced(0)))
    rows = [(line.op, line.type, line.layout, line.bytes) for line in report.lines]
    assert rows == [
        ("dot_general", "f32[4,8]", "Partial(sum)@tp", 0),
        ("psum", "f32[4,8]", "Replicated", 4 * 4 * 8),
        ("tanh", "f32[4,8]", "Replicated", 0),
    ]
    lines = [line.source.line for line in report.lines if line.source]
    first = f.__code__.co_firstlineno
    assert lines == [first + 1, first + 2, first + 2]
    text = str(report)
    assert text.startswith("rank-invariant for tp=4; tp=2 (check_vma=True)")
    assert "128 B" in text


def test_reshape_that_cuts_digits_of_a_replicated_value() -> None:
    check(lambda x: jnp.tanh(x.reshape(4, 3)), aval(3, 4), mesh=MESH, in_layouts=(Replicated,))


@pytest.mark.parametrize(
    "in_layouts, said, fix",
    [
        (PartitionSpec(None, "tp"), "argument 'x' has to be a layout", "write Sliced(1)"),
        ((PartitionSpec(),), "argument 'x' has to be a layout, not P()", "write Replicated"),
        (("rows",), "argument 'x' has to be a layout, not 'rows'", "a layout is Replicated,"),
        ((Sliced,), "argument 'x' has to be a layout", "write Sliced(dim)"),
        ((Partial,), "argument 'x' has to be a layout", "write Partial()"),
        ((None,), "argument 'x' has to be a layout, not None", "write Replicated"),
        ((Replicated, Replicated), "a tuple of 2, and they are a tuple of 1 (x)", "write a tuple"),
        ([Replicated], "it is a list, and they are a tuple of 1 (x)", "write a tuple"),
        (({"a": Replicated},), "in_layouts for argument 'x' does not match", "give one layout"),
    ],
)
def test_what_is_no_layout(in_layouts, said, fix) -> None:
    text = message(lambda x: x, aval(4, 8), in_layouts=in_layouts)
    assert "LAYOUT_ARGUMENT" in text
    assert said in text and f"  fix: {fix}" in text


def test_what_is_no_layout_of_a_part_or_of_several_axes() -> None:
    mesh = AbstractMesh((2, 2), ("dp", "tp"))
    spec = PartitionSpec("tp", ("dp",))
    with pytest.raises(LayoutError) as error:
        check(lambda p: p, {"w": aval(4, 8)}, mesh=mesh, in_layouts=({"w": spec},))
    text = str(error.value)
    assert "in_layouts for argument 'p['w']' has to be" in text
    assert "write on(tp=Sliced(0), dp=Sliced(1))" in text


def test_none_is_right_for_an_argument_without_arrays() -> None:
    check(lambda x, y: x, aval(4, 8), None, mesh=MESH, in_layouts=(Sliced(0), None))


def test_what_a_library_computes_is_shown_at_the_users_line() -> None:
    def f(grads):
        return optax.tree_utils.tree_norm(grads)

    with pytest.raises(LayoutError) as error:
        check(f, {"w": aval(8, 16)}, mesh=MESH, in_layouts=(Sliced(0),), out_layouts=Replicated)
    line = error.value.findings[0].line
    assert line is not None
    assert (line.file, line.line) == (__file__, f.__code__.co_firstlineno + 1)
    assert line.within.startswith("optax") and f"inside it: {line.within}" in str(error.value)
