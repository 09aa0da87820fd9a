"""Every primitive that public functions of JAX bind has a layout rule, or is refused by design."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax as _lax
from jax.scipy import linalg as scipy_linalg
from jax.scipy import special

import jaxcc.layout.rules as rules
from jaxcc import _compat
from jaxcc.layout._rules import ruled_ops

assert rules.__name__  # Imported for what it registers.

# Which primitives JAX binds changes from version to version.
pytestmark = pytest.mark.every_case

# What the walk follows itself, without a rule for the name.
WALKED = {
    *(*_compat.CALLS, "custom_lin", "shard_map", "scan", "while", "cond"),
    *("call_hi_primitive", "custom_linear_solve"),
}

# What has no rule, and why not. The checker refuses it by name, unless it is a function without
# effects of what every rank holds alike.
REFUSED = {
    "dce_sink": "an effect on what the compiler removes",
    "debug_callback": "an effect on the host",
    "debug_print": "an effect on the host",
    "empty": "its elements are whatever the memory held",
    "io_callback": "an effect on the host",
    "pure_callback": "a function of the host, of which nothing is known",
    "ffi_call": "foreign code; jaxcc.register_layout_rule gives it a rule",
    "select_and_scatter": "its functions of the user's have no public form",
    "platform_index": "other code on another platform",
    "composite": "a library may put other code in its place",
    "create_token": "orders effects",
    "custom_vmap_call": "other code under vmap",
    "scaled_dot": "a product of numbers in blocks that share a scale",
    "linear_call": "its transpose is a function of its own",
}

# JAX takes NumPy arrays wherever it says Array.
lax: Any = _lax
X = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(3, 4)
N = np.arange(12, dtype=np.int32).reshape(3, 4)
B = N > 5
Z = X + 1j * X
M = np.eye(4, dtype=np.float32) * 3 + 0.1
V = X[0]
KEY = jax.random.key(0)
IMAGE, KERNEL = np.ones((2, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32)
EXAMPLES: tuple[tuple[Any, ...], ...] = (
    (X,), (X, X), (N, N), (M,), (M, M), (V, V), ([X, X],), (KEY, (3,)), (KEY, X), (X, 2), (N, 3),
    (X, X, X), (B, B), (3,),
)  # fmt: skip
NAMESPACES = {
    "jax.lax": lax,
    "jax.lax.linalg": lax.linalg,
    "jax.numpy": jnp,
    "jax.numpy.linalg": jnp.linalg,
    "jax.numpy.fft": jnp.fft,
    "jax.nn": jax.nn,
    "jax.random": jax.random,
    "jax.scipy.special": special,
    "jax.scipy.linalg": scipy_linalg,
}

# Functions that none of the examples fits.
CALLS: dict[str, Callable[..., Any]] = {
    "approx_max_k": lambda: lax.approx_max_k(X, 2),
    "bitcast_convert_type": lambda: lax.bitcast_convert_type(X, jnp.int16),
    "cholesky_update": lambda: lax.linalg.cholesky_update(M, V),
    "clamp": lambda: lax.clamp(0.2, X, 0.5),
    "complex": lambda: lax.complex(X, X),
    "concatenate": lambda: lax.concatenate([X, X], 0),
    "conv": lambda: lax.conv_general_dilated(IMAGE, KERNEL, (1, 1), "SAME"),
    "conv_gradient": lambda: jax.grad(lambda k: lax.conv(IMAGE, k, (1, 1), "SAME").sum())(KERNEL),
    "cum": lambda: [f(X, 1) for f in (lax.cumsum, lax.cumprod, lax.cummax, lax.cummin)],
    "cumlogsumexp": lambda: lax.cumlogsumexp(X, 1),
    "dot_general": lambda: lax.dot_general(X, X, (((1,), (1,)), ((0,), (0,)))),
    "dynamic_slice": lambda: lax.dynamic_slice(X, (N[0, 0], N[0, 1]), (2, 2)),
    "dynamic_update_slice": lambda: lax.dynamic_update_slice(X, X[:1], (N[0, 0], N[0, 1])),
    "fft": lambda: jnp.fft.irfft(jnp.fft.rfft(X)),
    "gamma_gradient": lambda: jax.grad(lambda a: jax.random.gamma(KEY, a))(2.0),
    "householder_product": lambda: lax.linalg.householder_product(M, V),
    "igamma_gradient": lambda: jax.grad(lambda a: special.gammainc(a, 0.3))(2.0),
    "lu_pivots_to_permutation": lambda: lax.linalg.lu_pivots_to_permutation(N[0] % 4, 4),
    "max_pool": lambda: jax.grad(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME").sum()
    )(X),
    "max_pool_tangent": lambda: jax.jvp(
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "SAME"), (X,), (X,)
    ),
    "min_pool": lambda: lax.reduce_window(X, jnp.inf, lax.min, (2, 2), (1, 1), "SAME"),
    "ormqr": lambda: lax.linalg.ormqr(M, V, M),
    "pad": lambda: lax.pad(X, 0.0, ((1, 1, 0), (0, 0, 1))),
    "polygamma": lambda: special.polygamma(2, X),
    "product_pool": lambda: lax.reduce_window(X, 1.0, lax.mul, (2, 2), (1, 1), "SAME"),
    "ragged_dot": lambda: lax.ragged_dot(X, np.ones((2, 4, 5), np.float32), np.array([1, 2])),
    "reduce": lambda: lax.reduce(X, 0.0, lambda a, b: jnp.hypot(a, b), (0,)),
    "reduce_xor": lambda: lax.reduce_xor(N, (0,)),
    "rng": lambda: lax.rng_bit_generator(np.zeros(4, np.uint32), (3,)),
    "rng_uniform": lambda: lax.rng_uniform(0.0, 1.0, (3,)),
    "scatters": lambda: [
        getattr(jnp.zeros(4).at[N[0]], how)(V) for how in ("add", "mul", "max", "min", "set")
    ],
    "sort": lambda: lax.sort((X, N), num_keys=2),
    "sum_pool": lambda: lax.reduce_window(X, 0.0, lax.add, (2, 2), (1, 1), "SAME"),
    "symmetric_product": lambda: lax.linalg.symmetric_product(M, M),
    "tile": lambda: jnp.tile(X, (2, 3)),
    "top_k": lambda: lax.top_k(X, 2),
    "triangular_solve": lambda: lax.linalg.triangular_solve(M, X.T, left_side=True),
    "tridiagonal_solve": lambda: lax.linalg.tridiagonal_solve(V, V, V, X.T),
    "unstack": lambda: jnp.unstack(X),
    "while": lambda: lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, X),
}


def primitives(jaxpr: Any) -> Iterator[str]:
    """The primitives of a trace and of the jaxprs in it, but not of what a primitive with a rule
    holds inside."""
    for eqn in _compat.open_jaxpr(jaxpr).eqns:
        op = _compat.op_name(eqn)
        yield op
        if op not in ruled_ops():
            for inner in _compat.inner_jaxprs(eqn):
                yield from primitives(inner)


def bound(f: Callable[..., Any], args: tuple[Any, ...]) -> set[str]:
    """What a function binds, with its arrays as tracers; nothing if it does not take them."""
    dynamic = [i for i, a in enumerate(args) if isinstance(a, (np.ndarray, jax.Array, list))]

    def of(*arrays: Any) -> Any:
        given = dict(zip(dynamic, arrays, strict=True))
        f(*(given.get(i, arg) for i, arg in enumerate(args)))

    try:
        return set(primitives(jax.make_jaxpr(of)(*(args[i] for i in dynamic))))
    except Exception:  # noqa: BLE001 - whatever a function says to arguments that do not fit
        return set()


def functions(namespace: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(namespace):
        f = getattr(namespace, name)
        if not name.startswith("_") and callable(f) and not isinstance(f, type):
            yield name, f


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMESPACES)
def test_every_primitive_of_a_namespace_is_known(name: str) -> None:
    missing: dict[str, str] = {}
    traced = 0
    for function, f in functions(NAMESPACES[name]):
        found = next(filter(None, (bound(f, args) for args in EXAMPLES)), set[str]())
        traced += bool(found)
        missing |= dict.fromkeys(found - set(ruled_ops()) - WALKED - set(REFUSED), function)
    assert not missing
    assert traced >= 3


@pytest.mark.parametrize("name", CALLS)
def test_every_primitive_of_a_call_is_known(name: str) -> None:
    def run() -> None:
        CALLS[name]()

    found = set(primitives(jax.make_jaxpr(run)()))
    assert found
    assert found - set(ruled_ops()) - WALKED - set(REFUSED) == set()
