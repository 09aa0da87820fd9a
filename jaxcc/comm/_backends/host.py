"""jaxcc's own kernels, between CPU devices of one process, or of several that share memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxcc._compat import current_mesh, result_type
from jaxcc.comm._backends._like_lax import run_like_lax
from jaxcc.comm._call import Call
from jaxcc.layout import BackendError
from jaxcc.runtime import (
    Groups,
    Tensor,
    fused_call,
    groups_of,
    has_reduction,
    move_call,
    register,
)

_NAMES = {
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "u8",
    "bfloat16": "bf16",
    "float16": "f16",
    "complex64": "c64",
    "complex128": "c128",
}


class _Host:
    name = "host"
    between = "all of it is done at the start: the ranks' threads do the work themselves"

    def refuses(self, call: Call) -> BackendError | None:
        try:
            register()
            _groups(call)
            known = has_reduction(_reduction(call)) if call.op else _whole_bytes(call.dtype)
        except BackendError as error:
            # Ranks might then choose differently, or the user is not told.
            if error.code in ("BACKEND_DISAGREE", "BACKEND_SETTING"):
                raise
            return error
        if known:
            return None
        what = f"{call.op} of" if call.op else "arrays of"
        return BackendError(
            "BACKEND_DTYPE",
            f"the host backend has no {what} {call.dtype.name}",
            fixes=("use backend='xla'", f"cast to one of {', '.join(_NAMES)}"),
        )

    def run(self, x: jax.Array, call: Call) -> jax.Array:
        return run_like_lax(self, x, call)

    def bare(self, x: jax.Array, call: Call) -> jax.Array:
        """The call, as moves or, where all ranks get one reduction, as a two-shot kernel."""
        result = result_type(lambda x: call.what.in_lax(x, call.group), x)
        groups, op = _groups(call), str(call)
        moves = call.what.moves(call.shape, call.ranks)
        if moves is not None:
            combine = _reduction(call) if call.op else ""
            return move_call(groups, moves, x, result, op=op, combine=combine)
        tensor = Tensor(operands=(x,), results=(result,), outer=1, extent=x.size, spare={0: 0})
        kernel = f"all_reduce.{_reduction(call)}"
        [(y,)] = fused_call(kernel, groups, (tensor,), op=op)
        return y


def _reduction(call: Call) -> str:
    return f"{call.op}.{_NAMES.get(call.dtype.name, call.dtype.name)}"


def _whole_bytes(dtype: jnp.dtype) -> bool:
    """Whether an element takes whole bytes: not keys, nor the numbers that XLA packs."""
    numbers = jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)
    return numbers and not dtype.name.endswith(("int2", "int4", "float4_e2m1fn"))


def _groups(call: Call) -> Groups:
    """Which devices run the call.

    Raises:
      BackendError: BACKEND_MESH if that is unknown, and what `groups_of` raises.
    """
    bound = jax.sharding.get_abstract_mesh()
    mesh = call.group.mesh
    if mesh is None and (current := current_mesh()).axis_names == bound.axis_names:
        mesh = current
    if mesh is not None:
        return groups_of(mesh, call.axes)
    devices = jax.devices()
    if not bound.size == call.ranks == len(devices):
        raise BackendError(
            "BACKEND_MESH",
            f"the host backend does not know the devices of {', '.join(map(repr, call.axes))}",
            because="inside jax.shard_map JAX does not tell them, and the group is not all devices",
            fixes=(
                "pass mesh=, the mesh of the enclosing jax.shard_map",
                "run under `with jax.set_mesh(mesh):`",
            ),
        )
    sizes = [bound.shape[axis] for axis in call.axes]
    return groups_of(jax.sharding.Mesh(np.reshape(devices, sizes), call.axes), call.axes)


HOST = _Host()
