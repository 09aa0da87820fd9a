"""Programs of every family of operations: right ones are accepted and compute the same on 1, 2 and
4 ranks; wrong ones are refused with the message that names the cure."""

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
from jaxcc.testing import assert_rank_invariant

R, S0, S1, S2, P = Replicated, Sliced(0), Sliced(1), Sliced(2), Partial()
MESH = AbstractMesh((4,), ("tp",))


@dataclass(frozen=True)
class Case:
    """A program with its whole arguments (a shape, or a function of random numbers that makes one),
    and layouts.

    `code` and `hint` are what a refusal has to say; none is expected without them.
    """

    f: Callable[..., Any]
    args: tuple[Any, ...]
    ins: tuple[Any, ...]
    outs: Any
    code: str = ""
    hint: str = ""

    def arrays(self) -> list[Any]:
        rng = np.random.default_rng(list(self.f.__name__.encode()))
        return [
            arg(rng) if callable(arg) else rng.standard_normal(arg).astype(np.float32)
            for arg in self.args
        ]

    def check(self, check_vma: bool = True) -> Any:
        avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.arrays()]
        return check(
            self.f,
            *avals,
            mesh=MESH,
            in_layouts=self.ins,
            out_layouts=self.outs,
            check_vma=check_vma,
        )

    def run(self) -> None:
        assert_rank_invariant(
            self.f,
            *self.arrays(),
            mesh=MESH,
            in_layouts=self.ins,
            out_layouts=self.outs,
            rtol=2e-4,
            atol=2e-4,
        )


RIGHT: list[Case] = []
WRONG: list[Case] = []


def right(args: Any, ins: Any, outs: Any) -> Callable[[Any], Any]:
    def add(f: Any) -> Any:
        RIGHT.append(Case(f, args, ins, outs))
        return f

    return add


def wrong(args: Any, ins: Any, outs: Any, code: str, hint: str) -> Callable[[Any], Any]:
    def add(f: Any) -> Any:
        WRONG.append(Case(f, args, ins, outs, code, hint))
        return f

    return add


def key(rng: Any) -> Any:
    return jax.random.key(int(rng.integers(1000)))


def keys(rng: Any) -> Any:
    return jax.random.split(key(rng), 8)


def group_sizes(rng: Any) -> Any:
    return np.array([5, 0, 7], np.int32)


def positive(*shape: int) -> Any:
    return lambda rng: rng.uniform(0.5, 2.0, shape).astype(np.float32)


# Convolutions and windows.

IMAGE, KERNEL = (8, 4, 6, 5), (8, 4, 3, 3)


def conv(x, k, **params):
    return lax.conv_general_dilated(x, k, (1, 1), "SAME", **params)


@right((IMAGE, KERNEL), (S0, R), S0)
def conv_of_a_rank_s_images(x, k):
    return conv(x, k)


@right((IMAGE, KERNEL), (R, S0), S1)
def conv_to_a_rank_s_channels(x, k):
    return conv(x, k)


@right((IMAGE, KERNEL, (4, 8, 3, 3)), (R, S0, S1), R)
def convs_through_sliced_channels(x, k, k2):
    return lax.psum(conv(jax.nn.relu(conv(x, k)), k2), "tp")


@wrong((IMAGE, KERNEL, (4, 8, 3, 3)), (R, S0, S1), R, "LAYOUT_RESULT_PARTIAL", "jax.lax.psum")
def convs_without_the_sum(x, k, k2):
    return conv(jax.nn.relu(conv(x, k)), k2)


@wrong(((4, 4, 8, 5), KERNEL), (S2, R), S2, "LAYOUT_NEEDS_WHOLE_DIM", "halo exchange")
def conv_over_sliced_rows(x, k):
    return conv(x, k)


@right((IMAGE, (8, 1, 3, 3)), (S1, S0), S1)
def depthwise_conv_of_a_rank_s_channels(x, k):
    return conv(x, k, feature_group_count=x.shape[1])


@right((IMAGE, (8, 1, 3, 3)), (S1, S0), S0)
def gradient_of_a_depthwise_kernel(x, k):
    def loss(k):
        return (conv(x, k, feature_group_count=x.shape[1]) ** 2).sum()

    return jax.grad(loss)(k)


@right((IMAGE, (8, 1, 3, 3)), (S1, S0), S1)
def gradient_of_a_depthwise_image(x, k):
    def loss(x):
        return (conv(x, k, feature_group_count=x.shape[1]) ** 2).sum()

    return jax.grad(loss)(x)


@wrong((IMAGE, (8, 2, 3, 3)), (S1, S1), P, "LAYOUT_", "")
def grouped_conv_whose_groups_are_cut(x, k):
    return conv(x, k, feature_group_count=x.shape[1] // k.shape[1])


def pooled(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 1, 1), "SAME")


@right((IMAGE,), (S1,), S1)
def max_pool_of_a_rank_s_channels(x):
    return pooled(x)


@right((IMAGE,), (S1,), S1)
def gradient_of_a_max_pool(x):
    return jax.grad(lambda x: (pooled(x) ** 2).sum())(x)


@right((IMAGE,), (P,), R)
def mean_pool_before_the_sum(x):
    total = lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return lax.psum(total / 4, "tp")


@wrong((IMAGE,), (P,), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def max_pool_before_the_sum(x):
    return lax.psum(pooled(x), "tp")


@wrong(((4, 4, 8, 5),), (S2,), S2, "LAYOUT_NEEDS_WHOLE_DIM", "halo exchange")
def max_pool_over_sliced_rows(x):
    return pooled(x)


# Along a dimension.

ROWS = (8, 12)


@right((ROWS,), (S0,), S0)
def top_k_of_a_rank_s_rows(x):
    values, places = lax.top_k(x, 3)
    return values * places


@wrong((ROWS,), (S1,), R, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 1")
def top_k_of_sliced_rows(x):
    return lax.top_k(x, 3)[0]


@right((ROWS, ROWS, ROWS), (S0, S0, S0), S0)
def sort_by_two_keys(x, y, z):
    return lax.sort((jnp.round(x), y, z), dimension=1, num_keys=2)[2]


@wrong((ROWS, ROWS), (S1, S1), S1, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 1")
def sort_along_a_sliced_dimension(x, y):
    return lax.sort((x, y), dimension=1, num_keys=1)[1]


@right((ROWS, ROWS), (R, P), R)
def sort_of_pending_numbers_by_one_key(x, y):
    return lax.psum(lax.sort((x, y), dimension=1, num_keys=1)[1], "tp")


@wrong((ROWS, ROWS), (P, R), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def sort_by_a_pending_key(x, y):
    return lax.psum(lax.sort((x, y), dimension=1, num_keys=1)[1], "tp")


@right((ROWS,), (S0,), S0)
def scans_of_a_rank_s_rows(x):
    return lax.cumlogsumexp(x, 1) + lax.cummax(x, 1) - lax.cummin(x, 1) + jnp.cumprod(x, 1)[:, ::-1]


@right((ROWS,), (P,), R)
def cumulative_sum_before_the_sum(x):
    return lax.psum(jnp.cumsum(x, axis=1), "tp")


@wrong((ROWS,), (P,), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def cumulative_maximum_before_the_sum(x):
    return lax.psum(lax.cummax(x, axis=1), "tp")


@wrong((ROWS,), (S0,), S0, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 0")
def cumulative_product_over_ranks(x):
    return jnp.cumprod(x, axis=0)


@right((ROWS,), (S0,), S0)
def statistics_of_a_rank_s_rows(x):
    return (
        jnp.median(x, axis=1)
        + jnp.quantile(x, 0.3, axis=1)
        + jnp.percentile(x, 70, axis=1)
        + jnp.var(x, axis=1)
        + jnp.linalg.norm(x, axis=1)
        + jax.nn.logsumexp(x, axis=1)
    )


@wrong((ROWS,), (S1,), R, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 1")
def least_over_ranks(x):
    return jnp.sort(x, axis=1)[:, 0]


@right((ROWS,), (S0,), S0)
def reduction_by_a_function(x):
    return lax.reduce(x, 1.0, lambda a, b: jnp.hypot(a, b), (1,))


@wrong((ROWS,), (S0,), R, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 0")
def reduction_by_a_function_over_ranks(x):
    return lax.reduce(x, 1.0, lambda a, b: jnp.hypot(a, b), (0,))


@wrong((ROWS,), (S0,), S0, "LAYOUT_STRUCTURE", "group's size")
def reduction_by_another_function_on_one_rank(x):
    size = float(lax.axis_size("tp"))
    return lax.reduce(x, 1.0, lambda a, b: jnp.hypot(a, b * size), (1,))


# Stacked, repeated, and seen as another type.


@right((ROWS,), (S0,), S0)
def stacked_and_taken_apart(x):
    first, second = jnp.unstack(jnp.stack([x, jnp.sin(x)], axis=1), axis=1)
    return first + second


@wrong((ROWS,), (S0,), R, "LAYOUT_STRUCTURE", "group's size")
def rows_of_a_rank_s_own(x):
    return jnp.unstack(x, axis=0)[0]


@right((ROWS,), (S0,), S0)
def tiled_along_a_whole_dimension(x):
    return jnp.tile(x, (1, 3))


@wrong((ROWS,), (S0,), S0, "LAYOUT_RESULT", "")
def tiled_along_a_sliced_dimension(x):
    return jnp.tile(x, (3, 1))


@right((ROWS,), (S0,), S0)
def bits_of_numbers(x):
    halves = lax.bitcast_convert_type(x, jnp.int16)
    return lax.bitcast_convert_type(halves[:, ::-1][:, ::-1], jnp.float32)


@wrong((ROWS,), (P,), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def bits_of_a_pending_sum(x):
    return lax.psum(lax.bitcast_convert_type(x, jnp.int32), "tp")


@right((positive(*ROWS), positive(*ROWS)), (S0, S0), S0)
def special_functions(x, y):
    special = jax.scipy.special
    return (
        special.polygamma(2, x)
        + special.zeta(x + 1, y)
        + special.betainc(x, y, 0.3)
        + special.gammainc(x, y)
        + jnp.abs(lax.complex(x, y))
    )


@wrong((positive(*ROWS),), (P,), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def special_function_of_a_pending_sum(x):
    return lax.psum(jax.scipy.special.polygamma(2, x), "tp")


# Matrices and transforms.

MATRICES = (8, 3, 3)


def definite(x):
    return x @ x.swapaxes(-1, -2) + jnp.eye(3)


@right((MATRICES,), (S0,), S0)
def factors_of_a_rank_s_matrices(x):
    a = definite(x)
    _, upper = jnp.linalg.qr(a)
    values, vectors = jnp.linalg.eigh(a)
    rebuilt = (vectors * values[:, None]) @ vectors.swapaxes(-1, -2)
    return jnp.linalg.cholesky(a) + jnp.abs(upper) + rebuilt + jnp.linalg.svdvals(a)[:, None]


@wrong((MATRICES,), (P,), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def factor_of_a_pending_sum(x):
    return lax.psum(jnp.linalg.qr(x)[1], "tp")


@right((MATRICES, (3, 8)), (S0, R), S0)
def determinants_and_solutions(x, b):
    a = definite(x)
    solved = jax.scipy.linalg.solve_triangular(jnp.linalg.cholesky(a), b[None], lower=True)
    return jnp.linalg.slogdet(a)[1] + solved.sum((1, 2))


@right(((3, 3), (3, 8)), (R, S1), S1)
def columns_of_a_solution(a, b):
    return jax.scipy.linalg.solve_triangular(jnp.tril(a) + 3 * jnp.eye(3), b, lower=True)


@right(((3, 3), (3, 8)), (R, P), R)
def solution_before_the_sum(a, b):
    lower = jnp.tril(a) + 3 * jnp.eye(3)
    return lax.psum(jax.scipy.linalg.solve_triangular(lower, b, lower=True), "tp")


@wrong(((4, 3, 3), (4, 3, 8)), (P, R), R, "LAYOUT_PARTIAL_NONLINEAR", "jax.lax.psum")
def solution_with_a_pending_matrix(a, b):
    return lax.psum(lax.linalg.triangular_solve(a, b, left_side=True), "tp")


@right(((8, 4, 6),), (S0,), S0)
def transform_of_a_rank_s_signals(x):
    return jnp.fft.irfft2(jnp.fft.rfft2(x) * 2.0) + jnp.abs(jnp.fft.fft(x))


@wrong((ROWS,), (S1,), S1, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 1")
def transform_over_ranks(x):
    return jnp.abs(jnp.fft.fft(x))


EXPERTS = ((12, 8), (3, 8, 16), (3, 16, 8), group_sizes)


@right(EXPERTS, (R, S2, S1, R), R)
def experts_with_sliced_features(x, w, w2, sizes):
    hidden = jax.nn.relu(lax.ragged_dot(x, w, sizes))
    return lax.psum(lax.ragged_dot(hidden, w2, sizes), "tp")


@wrong(EXPERTS, (R, S2, S1, R), R, "LAYOUT_RESULT_PARTIAL", "jax.lax.psum")
def experts_without_the_sum(x, w, w2, sizes):
    hidden = jax.nn.relu(lax.ragged_dot(x, w, sizes))
    return lax.ragged_dot(hidden, w2, sizes)


@wrong(EXPERTS, (S0, R, R, R), S0, "LAYOUT_NEEDS_WHOLE_DIM", "all_gather dimension 0")
def experts_of_sliced_rows(x, w, w2, sizes):
    return lax.ragged_dot(x, w, sizes)


# Random numbers.


@right((ROWS, key), (R, R), R)
def noise_with_one_key(x, key):
    first, second = jax.random.split(jax.random.fold_in(key, 3))
    noise = jax.random.normal(first, x.shape) + jax.random.gamma(second, 2.0, x.shape)
    return x + noise + jax.random.permutation(second, 12)


@right((keys,), (S0,), S0)
def noise_of_a_rank_s_keys(keys):
    return jax.vmap(lambda k: jax.random.normal(jax.random.fold_in(k, 1), (3,)))(keys)


@right((keys, positive(8, 5)), (S0, S0), S0)
def gammas_of_a_rank_s_keys(keys, shapes):
    def drawn(key, shape):
        first, second = jax.random.split(key)
        one = jax.random.gamma(first, shape[0])
        return one + jax.random.dirichlet(second, shape) + jax.random.gamma(first, 2.0, (2, 5))

    return jax.vmap(drawn)(keys, shapes)


@right((keys,), (S0,), S0)
def betas_of_a_rank_s_keys(keys):
    return jax.vmap(lambda k: jax.random.beta(k, 2.0, 3.0))(keys)


@right((ROWS, ROWS), (S1, S1), S1)
def dropout_with_a_mask_made_outside(x, mask):
    return jnp.where(mask > 0, x, 0.0) * 2.0


@wrong((ROWS, key), (S1, R), S1, "LAYOUT_RANDOM", "make the random array (or the mask)")
def dropout_of_a_rank_s_shape(x, key):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)


@wrong((ROWS, key), (S1, R), S1, "LAYOUT_RANDOM", "make the random array (or the mask)")
def gammas_of_a_rank_s_shape(x, key):
    return x * jax.random.gamma(key, 2.0, x.shape)


@wrong(((5, 12), keys), (S1, S0), S1, "LAYOUT_RANDOM", "make the random array (or the mask)")
def gammas_of_a_rank_s_keys_for_its_own_columns(x, keys):
    return jax.vmap(lambda k: jax.random.gamma(k, 2.0, x.shape))(keys).sum(0) + x


@wrong((ROWS, key), (R, R), R, "LAYOUT_RANDOM", "make the random array (or the mask)")
def noise_by_rank(x, key):
    return x + jax.random.normal(jax.random.fold_in(key, lax.axis_index("tp")), x.shape)


@wrong((ROWS, keys), (R, S0), R, "LAYOUT_", "")
def noise_with_a_rank_s_own_key(x, keys):
    return x + jax.random.normal(keys[0], x.shape)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.f.__name__)
def test_right_program_is_accepted(case: Case, check_vma: bool) -> None:
    report = case.check(check_vma)
    assert [dict(sizes) for sizes in report.sizes] == [{"tp": 4}, {"tp": 2}]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.f.__name__)
def test_right_program_computes_the_same(case: Case) -> None:
    case.run()


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.f.__name__)
def test_wrong_program_is_refused(case: Case, check_vma: bool) -> None:
    with pytest.raises(LayoutError) as error:
        case.check(check_vma)
    assert error.value.code.startswith(case.code)
    assert case.hint in str(error.value)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.f.__name__)
def test_wrong_program_computes_something_else(case: Case) -> None:
    with pytest.raises((AssertionError, ValueError, TypeError)):
        case.run()


@pytest.mark.parametrize("drawn", [jax.random.normal, lambda k, s: jax.random.gamma(k, 2.0, s)])
def test_keys_that_are_not_threefry_have_to_be_whole(drawn: Callable[..., Any]) -> None:
    """Under vmap the numbers of other kinds of key depend on the whole batch of keys."""

    def noise(keys: Any) -> Any:
        return jax.vmap(lambda k: drawn(k, (3,)))(keys)

    of = jax.random.key(0, impl="rbg").dtype
    aval = jax.ShapeDtypeStruct((8,), of)
    check(noise, aval, mesh=MESH, in_layouts=(R,))
    with pytest.raises(LayoutError, match="LAYOUT_NEEDS_WHOLE_DIM"):
        check(noise, aval, mesh=MESH, in_layouts=(S0,))


def test_numbers_of_the_device_are_refused() -> None:
    with pytest.raises(LayoutError, match="a state of its own"):
        check(
            lambda x: lax.rng_uniform(x, x + 1, (3,)),
            jax.ShapeDtypeStruct((), jnp.float32),
            mesh=MESH,
            in_layouts=(R,),
        )
