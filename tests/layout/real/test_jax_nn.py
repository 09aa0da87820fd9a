"""`jax.nn` and `jax.scipy.special` inside a per-rank function, as they are."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax, nn
from jax.scipy import special
from programs import S0, S1, S2, Case, Programs, R, f32, i32, mask

from jaxcc.layout import LayoutError

PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong

ELEMENTWISE = {
    "relu": nn.relu,
    "relu6": nn.relu6,
    "sigmoid": nn.sigmoid,
    "log_sigmoid": nn.log_sigmoid,
    "softplus": nn.softplus,
    "sparse_plus": nn.sparse_plus,
    "sparse_sigmoid": nn.sparse_sigmoid,
    "soft_sign": nn.soft_sign,
    "silu": nn.silu,
    "mish": nn.mish,
    "gelu": nn.gelu,
    "gelu_exact": lambda x: nn.gelu(x, approximate=False),
    "elu": nn.elu,
    "celu": nn.celu,
    "selu": nn.selu,
    "leaky_relu": nn.leaky_relu,
    "hard_tanh": nn.hard_tanh,
    "hard_sigmoid": nn.hard_sigmoid,
    "hard_silu": nn.hard_silu,
    "squareplus": nn.squareplus,
    "log1mexp": lambda x: nn.log1mexp(1 + x * x),
    "gammaln": lambda x: special.gammaln(1 + x * x),
    "gammainc": lambda x: special.gammainc(1 + x * x, 2.0),
    "gammaincc": lambda x: special.gammaincc(1 + x * x, 2.0),
    "digamma": lambda x: special.digamma(1 + x * x),
    "polygamma": lambda x: special.polygamma(1, 1 + x * x),
    "betaln": lambda x: special.betaln(1 + x * x, 2.0),
    "betainc": lambda x: special.betainc(2.0, 3.0, nn.sigmoid(x)),
    "zeta": lambda x: special.zeta(2 + x * x, 1.0),
    "entr": lambda x: special.entr(1 + x * x),
    "xlogy": lambda x: special.xlogy(x * x, 1 + x * x),
    "xlog1py": lambda x: special.xlog1py(x, x * x),
    "rel_entr": lambda x: special.rel_entr(1 + x * x, 2 + x * x),
    "kl_div": lambda x: special.kl_div(1 + x * x, 2 + x * x),
    "logit": lambda x: special.logit(nn.sigmoid(x)),
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": lambda x: special.erfinv(jnp.tanh(x) / 2),
    "ndtr": special.ndtr,
    "ndtri": lambda x: special.ndtri(nn.sigmoid(x)),
    "log_ndtr": special.log_ndtr,
    "i0": special.i0,
    "i0e": special.i0e,
    "i1": special.i1,
    "i1e": special.i1e,
    "sinc": jnp.sinc,
    "factorial": lambda x: special.factorial(x * x),
    "multigammaln": lambda x: special.multigammaln(3 + x * x, 2),
    "spence": lambda x: special.spence(1 + x * x),
}
# JAX itself does not trace these for values that differ between ranks.
UNTRACKED = ("sinc", "spence")
ROWS = ((f32(8, 6),), (S0,))
COLUMNS = ((f32(8, 24),), (S1,))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_on_a_slice(name):
    f = ELEMENTWISE[name]
    Case(lambda x: f(x), *ROWS, S0, check_vma=name not in UNTRACKED).verify()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_gradient_on_a_slice(name):
    f = ELEMENTWISE[name]
    Case(jax.grad(lambda x: f(x).sum()), *ROWS, S0, check_vma=False).verify()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_of_a_pending_sum(name):
    def f(x, w):
        return lax.psum(ELEMENTWISE[name](x @ w), "tp")

    # x + 3 inside some of them is what counts too often.
    with pytest.raises(LayoutError, match="LAYOUT_PARTIAL_NONLINEAR|LAYOUT_COUNTED"):
        Case(f, (f32(4, 12), f32(12, 3)), (S1, S0), R, check_vma=False).verify()


@right(*ROWS, S0)
def softmax_over_whole_rows(x):
    return nn.softmax(x)


@wrong(*COLUMNS, S1, "LAYOUT_PARTIAL_NONLINEAR", "nn.softmax(x)")
def softmax_over_sliced_rows(x):
    return nn.softmax(x)


@right(*ROWS, S0)
def log_softmax_over_some_of_whole_rows(x):
    return jnp.exp(nn.log_softmax(x, where=x < 2, axis=-1))


@wrong(*COLUMNS, S1, "LAYOUT_PARTIAL_NONLINEAR", "nn.log_softmax(x)")
def log_softmax_over_sliced_rows(x):
    return nn.log_softmax(x)


@right(*ROWS, S0)
def logsumexp_over_whole_rows(x):
    return nn.logsumexp(x, axis=1, b=jnp.exp(x)) + nn.logmeanexp(x, axis=-1)


@wrong(*COLUMNS, R, "LAYOUT_PARTIAL_NONLINEAR", "nn.logsumexp(x, axis=1)")
def logsumexp_over_sliced_rows(x):
    return nn.logsumexp(x, axis=1)


@right(*COLUMNS, R)
def logsumexp_by_sums(x):
    top = lax.pmax(lax.stop_gradient(x.max(1)), "tp")
    return top + jnp.log(lax.psum(jnp.exp(x - top[:, None]).sum(1), "tp"))


@right(*ROWS, S0)
def standardized_whole_rows(x):
    return nn.standardize(x, axis=-1)


@wrong(*COLUMNS, S1, "LAYOUT_PARTIAL_NONLINEAR", "nn.standardize(x, axis=-1)")
def standardized_sliced_rows(x):
    return nn.standardize(x, axis=-1)


@right(*ROWS, S0)
def gated_whole_rows(x):
    return nn.glu(x, axis=1)


@wrong(*COLUMNS, S1, "LAYOUT_SLICE", "nn.glu(x, axis=1)")
def gated_sliced_rows(x):
    return nn.glu(x, axis=1)


@right((f32(8, 6), f32(6, 8), f32(6, 8), f32(8, 6)), (R, S1, S1, S0), R)
def swiglu(x, gate, up, down):
    return lax.psum((nn.silu(x @ gate) * (x @ up)) @ down, "tp")


@right((i32(8, below=5), i32(8, below=3)), (S0, S0), S0)
def one_hot_of_sliced_ids(ids, others):
    return nn.one_hot(ids, 5) + jnp.eye(5)[others]


# Attention: batch, tokens, heads, size.
QKV = f32(4, 8, 8, 2), f32(4, 8, 8, 2), f32(4, 8, 8, 2)
GROUPED = f32(4, 8, 8, 2), f32(4, 8, 4, 2), f32(4, 8, 4, 2)
attend = nn.dot_product_attention


@right((*QKV, mask(4, 1, 8, 8)), (S0, S0, S0, S0), S0)
def attention_by_batch(q, k, v, seen):
    return attend(q, k, v, mask=seen)


@right(QKV, (S2, S2, S2), S2)
def attention_by_heads(q, k, v):
    return attend(q, k, v, is_causal=True, scale=0.3)


@right((*QKV, f32(1, 8, 8, 8)), (S2, S2, S2, S1), S2)
def attention_by_heads_with_bias(q, k, v, bias):
    return attend(q, k, v, bias=bias)


@right((*QKV, mask(4, 1, 8, 8)), (S2, S2, S2, R), S2)
def attention_by_heads_with_mask(q, k, v, seen):
    return attend(q, k, v, mask=seen)


@right((*QKV, i32(4, below=6), i32(4, below=6)), (S0,) * 5, S0)
def attention_by_batch_with_lengths(q, k, v, queries, keys):
    return attend(q, k, v, query_seq_lengths=queries + 1, key_value_seq_lengths=keys + 1)


@right(QKV, (S0, S0, S0), S0)
def attention_in_a_window(q, k, v):
    return attend(q, k, v, is_causal=True, local_window_size=2)


@right(GROUPED, (S0, S0, S0), S0)
def grouped_attention_by_batch(q, k, v):
    return attend(q, k, v, is_causal=True)


@right(GROUPED, (S2, S2, S2), S2)
def grouped_attention_by_heads(q, k, v):
    return attend(q, k, v)


@right(QKV, (S1, R, R), S1)
def attention_by_queries(q, k, v):
    return attend(q, k, v)


@wrong(QKV, (S1, R, R), S1, "LAYOUT_RANK_INDEX", "is_causal=True")
def causal_attention_by_queries(q, k, v):
    return attend(q, k, v, is_causal=True)


@wrong(QKV, (S1, S1, S1), S1, "LAYOUT_MISMATCH", "attend(q, k, v)")
def attention_by_tokens(q, k, v):
    return attend(q, k, v)


@right(QKV, (S2, S2, S2), R, grad=(0, 1, 2))
def attention_loss(q, k, v):
    return lax.psum(jnp.sum(jax.checkpoint(attend)(q, k, v) ** 2), "tp")


SCALED = (f32(2, 8, 32), f32(2, 4, 32))


def scaled(x, w):
    ones = [jnp.ones((*side.shape[:2], 1), jnp.float8_e8m0fnu) for side in (x, w)]
    return nn.scaled_matmul(*(side.astype(jnp.float8_e4m3fn) for side in (x, w)), *ones)


@right(SCALED, (S1, R), S1)
def scaled_rows(x, w):
    return scaled(x, w)


@right(SCALED, (R, S1), S2)
def scaled_columns(x, w):
    return scaled(x, w)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case):
    case.verify()


@pytest.mark.parametrize("case", PROGRAMS.runs(), ids=str)
def test_truth(case):
    case.run()
