"""jaxcc's own kernels, between the CPU devices of one process."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from jaxcc.comm._backends._reduction import Order, all_reduce_like_lax
from jaxcc.comm._call import Call
from jaxcc.layout import BackendError
from jaxcc.runtime import ORDERS, Groups, Tensor, fused_call, groups_of, has_kernel

_NAMES = {
    "float32": "f32",
    "float64": "f64",
    "int32": "i32",
    "int64": "i64",
    "uint32": "u32",
    "bfloat16": "bf16",
    "float16": "f16",
}


class _Host:
    name = "host"

    def refuses(self, call: Call) -> BackendError | None:
        try:
            _groups(call)
            known = has_kernel(_kernel(call))
        except BackendError as error:
            return error
        if known:
            return None
        return BackendError(
            "BACKEND_DTYPE",
            f"the host backend has no {call.op} of {call.dtype.name}",
            fixes=("use backend='xla'", f"cast to one of {', '.join(_NAMES)}"),
        )

    def all_reduce(self, x: jax.Array, call: Call) -> jax.Array:
        return all_reduce_like_lax(_reduce, x, call, ORDERS)


def _reduce(order: Order, x: jax.Array, call: Call) -> tuple[Order, jax.Array]:
    assert order is not None
    result = jax.eval_shape(lambda x: lax.psum(x, call.axes), x)
    tensor = Tensor(operands=(x,), results=(result,), outer=1, extent=x.size)
    order, [(y,)] = fused_call(_kernel(call), _groups(call), (tensor,), order, op=str(call))
    return order, y


def _kernel(call: Call) -> str:
    return f"{call.collective}.{call.op}.{_NAMES.get(call.dtype.name, call.dtype.name)}"


def _groups(call: Call) -> Groups:
    """Which devices run the call.

    Raises:
      BackendError: BACKEND_MESH if that is unknown, and what `groups_of` raises.
    """
    if call.mesh is not None:
        return groups_of(call.mesh, call.axes)
    devices = jax.devices()
    bound = jax.sharding.get_abstract_mesh()
    if not bound.size == call.ranks == len(devices):
        raise BackendError(
            "BACKEND_MESH",
            f"the host backend does not know the devices of {', '.join(map(repr, call.axes))}",
            because="inside jax.shard_map JAX does not tell them, and the group is not all devices",
            fixes=("pass mesh=, the mesh of the enclosing jax.shard_map",),
        )
    sizes = [bound.shape[axis] for axis in call.axes]
    return groups_of(jax.sharding.Mesh(np.reshape(devices, sizes), call.axes), call.axes)


HOST = _Host()
