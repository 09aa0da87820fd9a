"""Flax nnx modules inside a per-rank function, as they are: data parallel, and with the heads of
attention and the hidden units of an MLP sliced."""

import jax
import jax.numpy as jnp
import optax
import pytest
from abstract_state import by_path, stacked, whole
from flax import nnx
from jax import lax
from programs import S0, S1, S2, Programs, R, f32, i32, mask

from jaxcc.layout import LayoutError, Sliced, check

WIDTH, HIDDEN, HEADS, ROWS = 8, 16, 4, 12
X = f32(8, 6, WIDTH)
IDS = i32(8, 6, below=ROWS)
SEED = i32(below=9)


def rngs():
    return nnx.Rngs(0)


class MLP(nnx.Module):
    def __init__(self, hidden=HIDDEN):
        self.up = nnx.Linear(WIDTH, hidden, rngs=rngs())
        self.down = nnx.Linear(hidden, WIDTH, use_bias=False, rngs=rngs())

    def __call__(self, x):
        return self.down(nnx.gelu(self.up(x)))


def split(make):
    """The graph of a module, and its state as arguments."""
    graph, state = nnx.split(nnx.eval_shape(make))
    return graph, whole(state)


def own(make):
    """The graph of a rank's module."""
    return nnx.split(nnx.eval_shape(make))[0]


MODULES = {
    "linear": lambda: nnx.Linear(WIDTH, 4, rngs=rngs()),
    "linear_bf16": lambda: nnx.Linear(WIDTH, 4, dtype=jnp.bfloat16, rngs=rngs()),
    "linear_general": lambda: nnx.LinearGeneral((6, WIDTH), (2, 4), axis=(-2, -1), rngs=rngs()),
    "einsum": lambda: nnx.Einsum("btd,dhk->bthk", (WIDTH, 2, 4), (2, 4), rngs=rngs()),
    "layer_norm": lambda: nnx.LayerNorm(WIDTH, rngs=rngs()),
    "layer_norm_exact": lambda: nnx.LayerNorm(WIDTH, use_fast_variance=False, rngs=rngs()),
    "rms_norm": lambda: nnx.RMSNorm(WIDTH, rngs=rngs()),
    "group_norm": lambda: nnx.GroupNorm(WIDTH, 4, rngs=rngs()),
    "instance_norm": lambda: nnx.InstanceNorm(WIDTH, rngs=rngs()),
    "batch_norm": lambda: nnx.BatchNorm(WIDTH, axis_name="tp", rngs=rngs()),
    "batch_norm_average": lambda: nnx.BatchNorm(WIDTH, use_running_average=True, rngs=rngs()),
    "spectral_norm": lambda: nnx.SpectralNorm(nnx.Linear(WIDTH, 4, rngs=rngs()), rngs=rngs()),
    "weight_norm": lambda: nnx.WeightNorm(nnx.Linear(WIDTH, 4, rngs=rngs()), rngs=rngs()),
    "attention": lambda: nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs()),
    "attention_norm": lambda: nnx.MultiHeadAttention(
        HEADS, WIDTH, normalize_qk=True, decode=False, rngs=rngs()
    ),
    "conv": lambda: nnx.Conv(WIDTH, 4, (3,), rngs=rngs()),
    "conv_groups": lambda: nnx.Conv(
        WIDTH, 8, (3,), strides=2, padding="VALID", feature_group_count=2, rngs=rngs()
    ),
    "conv_causal": lambda: nnx.Conv(WIDTH, 4, (3,), padding="CAUSAL", rngs=rngs()),
    "conv_transposed": lambda: nnx.ConvTranspose(WIDTH, 4, (3,), strides=2, rngs=rngs()),
    "mlp": MLP,
    "sequential": lambda: nnx.Sequential(
        nnx.Linear(WIDTH, HIDDEN, rngs=rngs()),
        nnx.relu,
        nnx.Dropout(0.5, deterministic=True),
        nnx.LayerNorm(HIDDEN, rngs=rngs()),
        nnx.Linear(HIDDEN, WIDTH, rngs=rngs()),
    ),
    "lora": lambda: nnx.LoRALinear(WIDTH, 4, lora_rank=2, rngs=rngs()),
    "prelu": nnx.PReLU,
    "lstm": lambda: nnx.RNN(nnx.LSTMCell(WIDTH, 4, rngs=rngs())),
    "lstm_optimized": lambda: nnx.RNN(nnx.OptimizedLSTMCell(WIDTH, 4, rngs=rngs())),
    "gru": lambda: nnx.RNN(nnx.GRUCell(WIDTH, 4, rngs=rngs()), reverse=True),
    "bidirectional": lambda: nnx.Bidirectional(
        nnx.RNN(nnx.SimpleCell(WIDTH, 4, rngs=rngs())),
        nnx.RNN(nnx.GRUCell(WIDTH, 4, rngs=rngs())),
    ),
}
# JAX refuses their scans under check_vma=True, since they start from zeros that no rank varies.
RECURRENT = ("lstm", "lstm_optimized", "gru", "bidirectional")


def training_of(graph):
    """The mean loss of a sliced batch, its gradient and the module's new state."""

    def train(state, x):
        module = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(
            lambda module: lax.pmean(jnp.mean(jnp.square(module(x))), "tp")
        )(module)
        return value, lax.pmean(grads, "tp"), nnx.state(module)

    return train


def check_training(make, check_vma):
    graph, state = split(make)
    return check(
        training_of(graph),
        state,
        X,
        mesh={"tp": 4},
        in_layouts=(R, S0),
        out_layouts=R,
        check_vma=check_vma,
    )


CORE = ("linear", "layer_norm", "batch_norm", "attention", "mlp")
MODES = [
    *((name, name not in RECURRENT) for name in MODULES),
    *((name, False) for name in CORE),
]


@pytest.mark.parametrize("name, check_vma", MODES)
def test_data_parallel(name, check_vma):
    """Every rank ends with the loss, the gradient and the state of a group of one."""
    check_training(MODULES[name], check_vma)


def test_recurrence_from_zeros():
    """The error is JAX's own words."""
    with pytest.raises(LayoutError, match="LAYOUT_TRACE.*carry input and carry output"):
        check_training(MODULES["gru"], True)


def test_batch_norm_of_own_rows():
    """Without an axis name each rank takes the mean of its own rows."""
    with pytest.raises(LayoutError, match="LAYOUT_PARTIAL_NONLINEAR"):
        check_training(lambda: nnx.BatchNorm(WIDTH, rngs=rngs()), True)


PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
BOTH = {"modes": (True, False)}

# Embeddings ---------------------------------------------------------------------------------------

EMBED, TABLE = split(lambda: nnx.Embed(ROWS, WIDTH, rngs=rngs()))


@right((TABLE, IDS), (R, S0), (R, R), **BOTH)
def tied_embedding(state, ids):
    def loss(state):
        table = nnx.merge(EMBED, state)
        logits = table.attend(table(ids))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, ids)
        return lax.pmean(losses.mean(), "tp")

    value, grads = jax.value_and_grad(loss)(state)
    return value, lax.pmean(grads, "tp")


@right((TABLE, IDS), (S1, R), S2)
def embedding_by_columns(state, ids):
    return nnx.merge(EMBED, state)(ids)


@right((TABLE, IDS), (S0, R), R)
def embedding_by_rows(state, ids):
    table = nnx.merge(EMBED, state)
    size = table.embedding.shape[0]
    own_ids = ids - lax.axis_index("tp") * size
    inside = (own_ids >= 0) & (own_ids < size)
    rows = table(jnp.where(inside, own_ids, 0))
    return lax.psum(jnp.where(inside[..., None], rows, 0), "tp")


@wrong((TABLE, IDS), (S0, R), R, "LAYOUT_RANK_INDEX", "")
def embedding_by_rows_with_all_ids(state, ids):
    return lax.psum(nnx.merge(EMBED, state)(ids), "tp")


# Attention ----------------------------------------------------------------------------------------


def attention(heads=HEADS, *, bias=False, batch=None):
    """Of `heads` heads; with a cache for decoding a batch."""
    module = nnx.MultiHeadAttention(
        heads,
        WIDTH,
        qkv_features=2 * heads,
        out_features=WIDTH,
        use_bias=bias,
        decode=batch is not None,
        rngs=rngs(),
    )
    if batch is not None:
        module.init_cache((batch, 6, WIDTH))
    return module


def own_attention(state, **options):
    """A rank's heads."""
    return nnx.merge(own(lambda: attention(HEADS // lax.axis_size("tp"), **options)), state)


def by_heads(path, leaf):
    if "cache_index" in path:
        return R
    if "cached" in path:
        return S2
    if "out" in path:
        return S0 if "kernel" in path else R
    return S1 if "kernel" in path else S0


GRAPH, STATE = split(attention)
HEADS_IN = by_path(by_heads, STATE)
DECODER, CACHED = split(lambda: attention(batch=8))
CACHED_IN = by_path(lambda path, leaf: S0 if "cached" in path else R, CACHED)
CACHED_HEADS = by_path(by_heads, CACHED)
_, BIASED = split(lambda: attention(bias=True))


@right((STATE, X, mask(8, 1, 6, 6)), (R, S0, S0), S0)
def attention_with_mask(state, x, seen):
    return nnx.merge(GRAPH, state)(x, mask=seen)


@right((STATE, X, X), (R, S0, S0), S0)
def cross_attention(state, x, y):
    return nnx.merge(GRAPH, state)(x, y)


@right((CACHED, f32(8, 1, WIDTH)), (CACHED_IN, S0), (S0, CACHED_IN))
def decoding_by_batch(state, x):
    module = nnx.merge(DECODER, state)
    y = module(module(x))
    return y, nnx.state(module)


@right((CACHED, f32(8, 1, WIDTH)), (CACHED_HEADS, R), (R, CACHED_HEADS))
def decoding_by_heads(state, x):
    module = own_attention(state, batch=x.shape[0])
    y = lax.psum(module(x), "tp")
    return y, nnx.state(module)


@right((STATE, X), (HEADS_IN, R), R, **BOTH)
def attention_by_heads(state, x):
    module = own_attention(state)
    return lax.psum(module(x, mask=nnx.make_causal_mask(x[..., 0])), "tp")


@right((STATE, X), (HEADS_IN, R), (R, HEADS_IN))
def attention_by_heads_gradient(state, x):
    def loss(state):
        return jnp.mean(lax.psum(own_attention(state)(x), "tp") ** 2)

    return jax.value_and_grad(loss)(state)


@wrong((STATE, X), (HEADS_IN, R), R, "LAYOUT_RESULT_PARTIAL", "")
def attention_by_heads_not_summed(state, x):
    return own_attention(state)(x)


@wrong((BIASED, X), (by_path(by_heads, BIASED), R), R, "LAYOUT_COUNTED", "")
def attention_by_heads_with_bias(state, x):
    return lax.psum(own_attention(state, bias=True)(x), "tp")


# MLP, normalization and dropout -------------------------------------------------------------------


def by_hidden(path, leaf, dim=0):
    return Sliced(dim if "down" in path or "bias" in path else dim + 1)


MLP_GRAPH, MLP_STATE = split(MLP)
MLP_IN = by_path(by_hidden, MLP_STATE)
LAYERS = stacked(MLP_STATE, 3)
LAYERS_IN = by_path(lambda path, leaf: by_hidden(path, leaf, 1), LAYERS)


@right((MLP_STATE, X), (MLP_IN, R), R, **BOTH)
def mlp_by_hidden_units(state, x):
    hidden = HIDDEN // lax.axis_size("tp")
    return lax.psum(nnx.merge(own(lambda: MLP(hidden)), state)(x), "tp")


@right((MLP_STATE, X), (MLP_IN, R), (R, MLP_IN))
def rematerialized_mlp_gradient(state, x):
    def loss(module):
        y = nnx.remat(lambda module, x: module(x))(module, x)
        return jnp.mean(lax.psum(y, "tp") ** 2)

    return nnx.value_and_grad(loss)(nnx.merge(MLP_GRAPH, state))


@right((LAYERS, X), (LAYERS_IN, R), R, **BOTH)
def scanned_layers(state, x):
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def layers(module, x):
        return x + lax.psum(module(x), "tp")

    return layers(nnx.merge(MLP_GRAPH, state), x)


@right((MLP_STATE, X, X), (R, S0, S0), (R, R), **BOTH)
def optimizer_steps(state, x, y):
    module = nnx.merge(MLP_GRAPH, state)
    optimizer = nnx.Optimizer(module, optax.adam(1e-2), wrt=nnx.Param)
    value = jnp.zeros(())
    for _ in range(2):
        value, grads = nnx.value_and_grad(
            lambda module: lax.pmean(jnp.mean((module(x) - y) ** 2), "tp")
        )(module)
        optimizer.update(module, lax.pmean(grads, "tp"))
    return value, nnx.state(module)


NORM, SCALES = split(lambda: nnx.LayerNorm(WIDTH, rngs=rngs()))
NORM_OVER_RANKS, _ = split(lambda: nnx.LayerNorm(WIDTH, axis_name="tp", rngs=rngs()))
RMS_OVER_RANKS, RMS_SCALES = split(lambda: nnx.RMSNorm(WIDTH, axis_name="tp", rngs=rngs()))


@right((SCALES, RMS_SCALES, X), (S0, S0, S2), S2, **BOTH)
def norms_of_sliced_features(layer, rms, x):
    return nnx.merge(RMS_OVER_RANKS, rms)(x) + nnx.merge(NORM_OVER_RANKS, layer)(x)


@wrong((SCALES, X), (S0, S2), S2, "LAYOUT_PARTIAL_NONLINEAR", "")
def norm_of_a_slice_of_features(state, x):
    return nnx.merge(NORM, state)(x)


def dropped(x, seed, **options):
    return nnx.Dropout(0.5, **options)(x, rngs=nnx.Rngs(jax.random.key(seed)))


@right((X, SEED), (R, R), R)
def dropout_of_what_every_rank_holds(x, seed):
    return dropped(x, seed)


@right((X, SEED), (S0, R), S0)
def dropout_of_whole_features(x, seed):
    return dropped(x, seed, broadcast_dims=(0,))


@wrong((X, SEED), (S0, R), S0, "LAYOUT_RANDOM", "")
def dropout_of_a_slice(x, seed):
    return dropped(x, seed)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case):
    case.verify()


COSTLY = ("optimizer_steps", "tied_embedding", "attention_by_heads_gradient")
RUN = [case for case in PROGRAMS.runs() if case.f.__name__ not in COSTLY]


@pytest.mark.parametrize("case", RUN, ids=str)
def test_truth(case):
    case.run()
