"""Right and wrong per-rank programs in pairs: what the checker decides, and what running them
shows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

from jaxcc.layout import LayoutError, Partial, Replicated, Sliced, check
from jaxcc.testing import assert_rank_invariant, raises_layout

R, S0, S1, P = Replicated, Sliced(0), Sliced(1), Partial()


@dataclass(frozen=True)
class Case:
    """A program, the whole shapes and layouts of its arguments, and the layouts of its result.

    `line` is a part of the source line that the finding `code` should point at.
    """

    f: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    ins: tuple[Any, ...]
    outs: Any
    code: str = ""
    line: str = ""

    @property
    def id(self) -> str:
        return self.f.__name__


RIGHT: list[Case] = []
WRONG: list[Case] = []


def right(shapes: Any, ins: Any, outs: Any) -> Callable[[Any], Any]:
    def add(f: Any) -> Any:
        RIGHT.append(Case(f, shapes, ins, outs))
        return f

    return add


def wrong(shapes: Any, ins: Any, outs: Any, code: str, line: str) -> Callable[[Any], Any]:
    def add(f: Any) -> Any:
        WRONG.append(Case(f, shapes, ins, outs, code, line))
        return f

    return add


ROW = ((4, 12, 24), (24, 12), (12,))
ROW_IN = (Sliced(2), S0, R)


@right(ROW, ROW_IN, R)
def bias_after_the_sum(x, w, b):
    return jax.nn.gelu(lax.psum(x @ w, "tp") + b) * 2.0


@wrong(ROW, ROW_IN, R, "LAYOUT_COUNTED", "x @ w + b")
def bias_before_the_sum(x, w, b):
    return lax.psum(x @ w + b, "tp")


@right(ROW, ROW_IN, R)
def bias_divided_before_the_sum(x, w, b):
    return lax.psum(x @ w + b / lax.axis_size("tp"), "tp")


@wrong(ROW, ROW_IN, R, "LAYOUT_SCALE", 'lax.psum(total, "tp")')
def summed_twice(x, w, b):
    total = lax.psum(x @ w, "tp")
    return lax.psum(total, "tp") + 0.0


@wrong(ROW, ROW_IN, R, "LAYOUT_SCALE", "twice + b")
def summed_twice_then_biased(x, w, b):
    twice = lax.psum(lax.psum(x @ w, "tp"), "tp")
    return twice + b


@wrong(ROW, ROW_IN, R, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.gelu(x @ w)")
def gelu_of_a_partial(x, w, b):
    return lax.psum(jax.nn.gelu(x @ w), "tp")


@wrong(ROW, ROW_IN, R, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.relu(x @ w)")
def relu_of_a_partial(x, w, b):
    return lax.psum(jax.nn.relu(x @ w), "tp")


@wrong(ROW, ROW_IN, R, "LAYOUT_RESULT_PARTIAL", "return x @ w")
def partial_returned(x, w, b):
    return x @ w


@right(ROW, ROW_IN, P)
def partial_returned_as_partial(x, w, b):
    return 2.0 * (x @ w)


@wrong(ROW, ROW_IN, P, "LAYOUT_SCALE", 'lax.psum(x @ w, "tp")')
def sum_returned_as_partial(x, w, b):
    return lax.psum(x @ w, "tp")


@wrong(ROW, ROW_IN, R, "LAYOUT_PARTIAL_NONLINEAR", "y * y")
def product_of_partials(x, w, b):
    y = x @ w
    return lax.psum(y * y, "tp")


@right(((24, 12),), (S0,), S0)
def gathered_and_scattered(x):
    whole = lax.all_gather(x, "tp", axis=0, tiled=True)
    return lax.psum_scatter(whole / lax.axis_size("tp"), "tp", scatter_dimension=0, tiled=True)


@right(((24, 12),), (S0,), R)
def gathered(x):
    return lax.all_gather(x, "tp", axis=0, tiled=True)


@right(((24, 12),), (S1,), R)
def gathered_untiled_and_moved(x):
    parts = lax.all_gather(x, "tp")
    return jnp.moveaxis(parts, 0, 1).reshape(x.shape[0], -1)


@wrong(((24, 24),), (S0,), R, "LAYOUT_RESULT", "axis=1")
def gathered_along_the_wrong_dim(x):
    side = lax.all_gather(x, "tp", axis=1, tiled=True)
    return side.reshape(-1, x.shape[1])


@right(ROW, ROW_IN, Sliced(1))
def scattered_along_dim_1(x, w, b):
    y = lax.psum_scatter(x @ w, "tp", scatter_dimension=1, tiled=True)
    return jnp.tanh(y + b)


@wrong(((24, 24), (24, 24)), (S1, S0), S1, "LAYOUT_RESULT", "scatter_dimension=0")
def scattered_along_the_wrong_dim(x, w):
    y = lax.psum_scatter(x @ w, "tp", scatter_dimension=0, tiled=True)
    return y.reshape(24, -1)


@right(((24, 12), (12, 24)), (S0, S1), S0)
def transposed_slices_line_up(a, b):
    return a + b.T


@wrong(((24, 24), (24, 24)), (S0, S1), S0, "LAYOUT_MISMATCH", "a + b.reshape")
def rows_meet_columns(a, b):
    return a + b.reshape(a.shape)


@wrong(((24, 12), (12, 24)), (S0, S1), S0, "LAYOUT_MISMATCH", "return (a @ b)")
def rows_times_columns(a, b):
    return (a @ b).sum(1)


@right(((24, 12), (12, 24)), (R, S1), S1)
def whole_times_columns(a, b):
    return jnp.tanh(a @ b)


@wrong(((24, 12), (24, 12)), (S0, S0), S0, "LAYOUT_MISMATCH", "a @ b.T @ b")
def a_bt_b(a, b):
    return a @ b.T @ b


@right(((24, 12), (24, 12)), (S0, S0), S0)
def a_times_gram(a, b):
    return a @ lax.psum(b.T @ b, "tp")


@right(((24, 12),), (S0,), R)
def mean_by_pmean(x):
    return lax.pmean(x.mean(), "tp")


@wrong(((24, 12),), (S0,), R, "LAYOUT_SCALE", "x.mean()")
def mean_by_psum(x):
    return lax.psum(x.mean(), "tp")


@right(((24, 12),), (S0,), R)
def mean_by_count(x):
    count = lax.psum(jnp.ones(x.shape).sum(), "tp")
    return lax.psum(x.sum(), "tp") / count


@wrong(((24, 12),), (S0,), R, "LAYOUT_SCALE", 'lax.pmean(x.sum(), "tp")')
def sum_by_pmean(x):
    return lax.pmean(x.sum(), "tp")


@right(((24, 12),), (S0,), R)
def rms_of_a_sliced_dim(x):
    return lax.rsqrt(lax.pmean(jnp.mean(x**2), "tp") + 1e-6)


@wrong(((24, 12),), (S1,), S1, "LAYOUT_PARTIAL_NONLINEAR", "lax.rsqrt")
def rms_of_the_local_part(x):
    mean = jnp.mean(x**2, axis=1, keepdims=True)
    return x * lax.rsqrt(mean + 1e-6)


@right(((24, 12),), (S1,), S1)
def softmax_over_a_sliced_dim(x):
    top = lax.pmax(lax.stop_gradient(x.max(1, keepdims=True)), "tp")
    e = jnp.exp(x - top)
    return e / lax.psum(e.sum(1, keepdims=True), "tp")


@wrong(((24, 12),), (S1,), S1, "LAYOUT_PARTIAL_NONLINEAR", "jax.nn.softmax")
def softmax_of_the_local_part(x):
    return jax.nn.softmax(x, axis=1)


@right(((24, 12),), (S0,), S0)
def softmax_over_a_whole_dim(x):
    return jax.nn.softmax(x, axis=1)


@right(((24, 12),), (S0,), S0)
def layer_norm_over_a_whole_dim(x):
    centred = x - x.mean(1, keepdims=True)
    return centred * lax.rsqrt(x.var(1, keepdims=True) + 1e-5)


@wrong(((24, 12),), (S1,), R, "LAYOUT_SUM_OF_SLICES", 'lax.psum(x, "tp")')
def slices_summed(x):
    return lax.psum(x, "tp")


@right(((24, 12),), (S0,), S1)
def all_to_all(x):
    return lax.all_to_all(x, "tp", 1, 0, tiled=True)


@wrong(((24, 24),), (S0,), S0, "LAYOUT_RESULT", "lax.all_to_all")
def all_to_all_returned_as_it_was(x):
    y = lax.all_to_all(x, "tp", 1, 0, tiled=True)
    return y.reshape(x.shape)


@right(((2, 24, 12),), (Sliced(1),), Sliced(1))
def batch_and_sequence_joined(x):
    flat = x.reshape(-1, x.shape[-1])
    return jnp.sin(flat).reshape(x.shape)


@right(((8, 24), (24, 72)), (R, R), R)
def fused_qkv_whole(x, w):
    q, k, v = jnp.split(x @ w, 3, axis=1)
    return q * k + v


@right(((8, 24), (24, 3, 24)), (R, Sliced(2)), S1)
def fused_qkv_sliced(x, w):
    y = jnp.einsum("bd,dch->bch", x, w)
    q, k, v = y[:, 0], y[:, 1], y[:, 2]
    return q * k + v


@wrong(((8, 24), (24, 72)), (R, S1), S1, "LAYOUT_SLICE", "jnp.split")
def packed_qkv_sliced(x, w):
    q, k, v = jnp.split(x @ w, 3, axis=1)
    return q * k + v


@right(((24, 12),), (R,), R)
def replicated_maximum(x):
    return lax.pmax(x, "tp")


@wrong(((24, 12),), (R,), R, "LAYOUT_SCALE", 'lax.psum(x, "tp")')
def sum_of_a_replicated(x):
    return lax.psum(x, "tp")


@right(((24, 12),), (P,), R)
def partial_input(x):
    return lax.psum(-3.0 * x, "tp")


@right(((24, 12),), (Partial("max"),), R)
def partial_maximum_through_exp(x):
    return lax.pmax(jnp.exp(x + 1.0), "tp")


@wrong(((24, 12),), (Partial("max"),), R, "LAYOUT_PARTIAL_NONLINEAR", 'lax.psum(x, "tp")')
def partial_maximum_summed(x):
    return lax.psum(x, "tp")


@right(((24, 12),), (S0,), R)
def norm(x):
    return jnp.sqrt(lax.psum(jnp.sum(x * x), "tp"))


@wrong(((24, 12),), (S0,), R, "LAYOUT_PARTIAL_NONLINEAR", "jnp.sqrt")
def norm_of_the_local_part(x):
    return lax.psum(jnp.sqrt(jnp.sum(x * x)), "tp")


@wrong(((24, 12), (12,)), (S0, R), S0, "LAYOUT_SCALE", "scaled + b")
def scaled_meets_plain(x, b):
    scaled = x * lax.psum(b, "tp")
    return scaled + b


@right(((24, 12), (24, 12)), (S0, S0), S0)
def where_of_slices(x, y):
    return jnp.where(x > y, x, 0.0) + jnp.concatenate([x, y], axis=1)[:, :12]


@wrong(((24,),), (S0,), S0, "LAYOUT_NEEDS_WHOLE_DIM", "jnp.cumsum")
def cumsum_of_the_local_part(x):
    return jnp.cumsum(x)


@right(((24, 12),), (S0,), S0)
def cumsum_along_a_whole_dim(x):
    return jnp.cumsum(x, axis=1) + jnp.sort(x, axis=1)[:, ::-1]


@wrong(((24,),), (S0,), S0, "LAYOUT_RANK_INDEX", "jnp.arange")
def positions_of_the_local_part(x):
    return x + jnp.arange(x.shape[0])


@wrong(((24, 12),), (R,), R, "LAYOUT_RANK_INDEX", "lax.axis_index")
def times_the_rank(x):
    return x * lax.axis_index("tp")


@wrong(((24, 12),), (R,), R, "LAYOUT_RANK_INDEX", 'lax.axis_index("tp")')
def times_the_rank_in_a_loop(x):
    return lax.fori_loop(
        0, 2, lambda i, x: x + lax.axis_index("tp") - i, lax.pcast(x, "tp", to="varying")
    )


@right(((24, 12),), (R,), R)
def loop_over_replicated_values(x):
    lax.axis_index("tp")
    return lax.fori_loop(0, 2, lambda i, x: jnp.tanh(x) + 1.0, x)


@wrong(((24, 12),), (S0,), S0, "LAYOUT_STRUCTURE", 'lax.axis_size("tp")')
def other_path_on_one_rank(x):
    return jnp.sin(x) if lax.axis_size("tp") > 1 else x


@right(((24, 12), (12, 24)), (S0, R), S0)
def gradient_of_a_replicated_weight(x, w):
    return jax.grad(lambda x: jnp.sum(jnp.tanh(x @ w)))(x)


def mesh(n: int) -> AbstractMesh:
    return AbstractMesh((n,), ("tp",))


def avals(case: Case) -> list[Any]:
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in case.shapes]


def checked(case: Case, n: int, check_vma: bool = True) -> Any:
    return check(
        case.f,
        *avals(case),
        mesh=mesh(n),
        in_layouts=case.ins,
        out_layouts=case.outs,
        check_vma=check_vma,
    )


def arrays(case: Case, n: int) -> list[Any]:
    rng = np.random.default_rng([n, *case.id.encode()])
    return [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_right_program_is_accepted(case: Case, n: int, check_vma: bool) -> None:
    report = checked(case, n, check_vma)
    assert report.sizes == (({"tp": 4}, {"tp": 2}) if n == 4 else ({"tp": 3},))


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_right_program_computes_the_same(case: Case) -> None:
    for n in (2, 3, 4):
        assert_rank_invariant(
            case.f,
            *arrays(case, n),
            mesh=mesh(n),
            in_layouts=case.ins,
            out_layouts=case.outs,
            rtol=2e-4,
            atol=2e-4,
        )


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_wrong_program_is_refused_at_its_line(case: Case, n: int, check_vma: bool) -> None:
    with raises_layout(case.code, line=case.line):
        checked(case, n, check_vma)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.id)
def test_wrong_program_computes_something_else(case: Case) -> None:
    """Each is refused for a reason: its results differ, or it does not even have one shape."""
    with pytest.raises((AssertionError, ValueError, TypeError)):
        assert_rank_invariant(
            case.f,
            *arrays(case, 4),
            mesh=mesh(4),
            in_layouts=case.ins,
            out_layouts=case.outs,
            rtol=1e-3,
            atol=1e-3,
        )


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_inferred_layouts_are_the_declared_ones(case: Case) -> None:
    report = check(case.f, *avals(case), mesh=mesh(4), in_layouts=case.ins)
    assert [layout["tp"] for layout in report.out_layouts] == [case.outs]


def test_every_finding_is_reported() -> None:
    def two_mistakes(x, w, b):
        y = x @ w
        return lax.psum(y + b, "tp"), lax.psum(jnp.tanh(y), "tp")

    with pytest.raises(LayoutError) as error:
        check(
            two_mistakes,
            *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ROW),
            mesh=mesh(2),
            in_layouts=ROW_IN,
            out_layouts=R,
        )
    codes = [finding.code for finding in error.value.findings]
    assert codes == ["LAYOUT_COUNTED", "LAYOUT_PARTIAL_NONLINEAR"]
