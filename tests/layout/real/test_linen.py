"""Flax linen modules inside a per-rank function, as they are: data parallel, and with the heads of
attention and the hidden units of an MLP sliced; lifted scan, remat and vmap."""

import jax
import jax.numpy as jnp
import pytest
from abstract_state import by_path, whole
from flax import linen as nn
from jax import lax
from programs import S0, S1, S2, Programs, R, f32, i32, mask

from jaxcc.layout import LayoutError, Sliced, check

WIDTH, HIDDEN, HEADS, ROWS = 8, 16, 4, 12
X = f32(8, 6, WIDTH)
IDS = i32(8, 6, below=ROWS)
SEED = i32(below=9)


class MLP(nn.Module):
    hidden: int = HIDDEN

    @nn.compact
    def __call__(self, x):
        hidden = nn.gelu(nn.Dense(self.hidden, name="up")(x))
        return nn.Dense(WIDTH, use_bias=False, name="down")(hidden)


class Block(nn.Module):
    """A residual block; over the ranks of an axis each has its part of the hidden units."""

    axis: str | None = None

    @nn.compact
    def __call__(self, x, _=None):
        normed = nn.LayerNorm()(x)
        if self.axis is None:
            return x + MLP(name="mlp")(normed), None
        y = MLP(HIDDEN // lax.axis_size(self.axis), name="mlp")(normed)
        return x + lax.psum(y, self.axis), None


def layers(axis=None, *, remat=False):
    block = nn.remat(Block) if remat else Block
    return nn.scan(block, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)(axis)


def variables(module, x=X):
    """The variables of a module as arguments."""
    return whole(
        jax.eval_shape(lambda: module.init(jax.random.key(0), jnp.zeros(x.shape, x.dtype)))
    )


MODULES = {
    "dense": nn.Dense(4),
    "dense_bf16": nn.Dense(4, dtype=jnp.bfloat16),
    "dense_general": nn.DenseGeneral((2, 4), axis=(-2, -1)),
    "einsum": nn.Einsum((WIDTH, 2, 4), "btd,dhk->bthk"),
    "layer_norm": nn.LayerNorm(),
    "rms_norm": nn.RMSNorm(),
    "group_norm": nn.GroupNorm(4),
    "instance_norm": nn.InstanceNorm(),
    "batch_norm": nn.BatchNorm(False, axis_name="tp"),
    "batch_norm_average": nn.BatchNorm(True),
    "weight_norm": nn.WeightNorm(nn.Dense(4)),
    "attention": nn.MultiHeadDotProductAttention(HEADS),
    "attention_norm": nn.MultiHeadAttention(HEADS, normalize_qk=True),
    "conv": nn.Conv(4, (3,)),
    "conv_local": nn.ConvLocal(4, (3,)),
    "conv_transposed": nn.ConvTranspose(4, (3,), (2,)),
    "mlp": MLP(),
    "sequential": nn.Sequential(
        [nn.Dense(HIDDEN), nn.relu, nn.Dropout(0.5, deterministic=True), nn.Dense(WIDTH)]
    ),
    "prelu": nn.PReLU(),
    "scan": layers(),
    "scan_of_remat": layers(remat=True),
    "vmap": nn.vmap(
        nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=1, out_axes=1
    )(4),
    "lstm": nn.RNN(nn.LSTMCell(4)),
    "lstm_optimized": nn.RNN(nn.OptimizedLSTMCell(4), reverse=True),
    "gru": nn.RNN(nn.GRUCell(4)),
}
# JAX refuses their scans under check_vma=True, since they start from zeros that no rank varies.
RECURRENT = ("lstm", "lstm_optimized", "gru")


def check_training(module, check_vma):
    """The mean loss of a sliced batch, its gradient and the module's new state."""

    def train(given, x):
        def loss(params):
            y, state = module.apply({**given, "params": params}, x, mutable=["batch_stats"])
            squares = [jnp.mean(jnp.square(leaf)) for leaf in jax.tree.leaves(y)]
            return lax.pmean(squares[0], "tp"), state

        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(given["params"])
        return value, lax.pmean(grads, "tp"), state

    return check(
        train,
        variables(module),
        X,
        mesh={"tp": 4},
        in_layouts=(R, S0),
        out_layouts=R,
        check_vma=check_vma,
    )


CORE = ("dense", "layer_norm", "batch_norm", "attention", "mlp")
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
        check_training(nn.BatchNorm(False), True)


@pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated")
def test_self_attention():
    check_training(nn.SelfAttention(HEADS), True)


PROGRAMS = Programs(modes=(True,))
right, wrong = PROGRAMS.right, PROGRAMS.wrong
BOTH = {"modes": (True, False)}

# Embeddings ---------------------------------------------------------------------------------------

EMBED = nn.Embed(ROWS, WIDTH)
TABLE = variables(EMBED, IDS)


@right((TABLE, IDS), (R, S0), (R, R), **BOTH)
def tied_embedding(table, ids):
    def loss(table):
        logits = jnp.asarray(EMBED.apply(table, EMBED.apply(table, ids), method="attend"))
        own = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
        return -lax.pmean(own.mean(), "tp")

    value, grads = jax.value_and_grad(loss)(table)
    return value, lax.pmean(grads, "tp")


@right((TABLE, IDS), (R, S0), S0)
def embedding_of_sliced_ids(table, ids):
    return EMBED.apply(table, ids)


@right((TABLE, IDS), ({"params": {"embedding": S1}}, R), S2)
def embedding_by_columns(table, ids):
    return nn.Embed(ROWS, WIDTH // lax.axis_size("tp")).apply(table, ids)


# Attention ----------------------------------------------------------------------------------------

ATTENTION = nn.MultiHeadDotProductAttention(HEADS, use_bias=False)
HELD = variables(ATTENTION)
DECODER = nn.MultiHeadDotProductAttention(HEADS, use_bias=False, decode=True)
CACHED = variables(DECODER)


def by_heads(path, leaf):
    if "cache_index" in path:
        return R
    if "cached" in path:
        return S2
    return S0 if "out" in path else S1


def by_batch(path, leaf):
    return S0 if "cached" in path else R


def own_heads(**options):
    """The module of a rank's heads."""
    n = lax.axis_size("tp")
    return nn.MultiHeadDotProductAttention(
        HEADS // n, qkv_features=WIDTH // n, out_features=WIDTH, use_bias=False, **options
    )


def cache(layout):
    return {"cache": by_path(layout, CACHED["cache"])}


@right((HELD, X, mask(8, 1, 6, 6)), (R, S0, S0), S0)
def attention_with_mask(params, x, seen):
    return ATTENTION.apply(params, x, mask=nn.combine_masks(seen, nn.make_causal_mask(x[..., 0])))


@right((HELD, X), (by_path(by_heads, HELD), R), R, **BOTH)
def attention_by_heads(params, x):
    return lax.psum(own_heads().apply(params, x), "tp")


@right((HELD, X), (by_path(by_heads, HELD), R), (R, by_path(by_heads, HELD)))
def attention_by_heads_gradient(params, x):
    def loss(params):
        return jnp.mean(jnp.square(lax.psum(own_heads().apply(params, x), "tp")))

    return jax.value_and_grad(loss)(params)


@wrong((HELD, X), (by_path(by_heads, HELD), R), R, "LAYOUT_RESULT_PARTIAL", "")
def attention_by_heads_not_summed(params, x):
    return own_heads().apply(params, x)


@right((CACHED, f32(8, 1, WIDTH)), (by_path(by_batch, CACHED), S0), (S0, cache(by_batch)))
def decoding_by_batch(given, x):
    return DECODER.apply(given, x, mutable=["cache"])


@right((CACHED, f32(8, 1, WIDTH)), (by_path(by_heads, CACHED), R), (R, cache(by_heads)))
def decoding_by_heads(given, x):
    y, state = own_heads(decode=True).apply(given, x, mutable=["cache"])
    return lax.psum(y, "tp"), state


# MLP, normalization and dropout -------------------------------------------------------------------


def by_hidden(path, leaf, dim=0):
    if "LayerNorm" in path:
        return R
    return Sliced(dim if "down" in path or "bias" in path else dim + 1)


UNITS = variables(MLP())
UNITS_IN = by_path(by_hidden, UNITS)
LAYERS = variables(layers())
LAYERS_IN = by_path(lambda path, leaf: by_hidden(path, leaf, 1), LAYERS)
SCALES = variables(nn.LayerNorm())


@right((UNITS, X), (UNITS_IN, R), R, **BOTH)
def mlp_by_hidden_units(params, x):
    return lax.psum(MLP(HIDDEN // lax.axis_size("tp")).apply(params, x), "tp")


@wrong((UNITS, f32(WIDTH), X), (UNITS_IN, R, R), R, "LAYOUT_COUNTED", "")
def mlp_with_the_bias_in_the_sum(params, bias, x):
    given = params["params"]
    hidden = nn.Dense(HIDDEN // lax.axis_size("tp")).apply({"params": given["up"]}, x)
    down = {"kernel": given["down"]["kernel"], "bias": bias}
    return lax.psum(nn.Dense(WIDTH).apply({"params": down}, hidden), "tp")


@right((LAYERS, X), (LAYERS_IN, R), R, **BOTH)
def scanned_layers(params, x):
    return layers("tp").apply(params, x)[0]


@right((LAYERS, X), (LAYERS_IN, R), (R, LAYERS_IN))
def rematerialized_layers_gradient(params, x):
    def loss(params):
        y, _ = layers("tp", remat=True).apply(params, x)
        return jnp.mean(jnp.square(y))

    return jax.value_and_grad(loss)(params)


@right((SCALES, X), ({"params": {"scale": S0, "bias": S0}}, S2), S2, **BOTH)
def norm_of_sliced_features(params, x):
    return nn.LayerNorm(axis_name="tp").apply(params, x)


@wrong((SCALES, X), (S0, S2), S2, "LAYOUT_PARTIAL_NONLINEAR", "")
def norm_of_a_slice_of_features(params, x):
    return nn.LayerNorm().apply(params, x)


def dropped(x, seed):
    dropout = nn.Dropout(0.5, deterministic=False)
    return dropout.apply({}, x, rngs={"dropout": jax.random.key(seed)})


@right((X, SEED), (R, R), R)
def dropout_of_what_every_rank_holds(x, seed):
    return dropped(x, seed)


@wrong((X, SEED), (S0, R), S0, "LAYOUT_RANDOM", "")
def dropout_of_a_slice(x, seed):
    return dropped(x, seed)


@pytest.mark.parametrize("case", PROGRAMS.cases, ids=str)
def test_verdict(case):
    case.verify()


COSTLY = ("rematerialized_layers_gradient", "tied_embedding", "attention_by_heads_gradient")
RUN = [case for case in PROGRAMS.runs() if case.f.__name__ not in COSTLY]


@pytest.mark.parametrize("case", RUN, ids=str)
def test_truth(case):
    case.run()
