"""What goes wrong is an error with a stable code; the interpreter and the group stay usable."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from jaxcc.layout import BackendError
from jaxcc.runtime import Tensor, _native, fused_call, groups_of, load_kernel

MESH = Mesh(np.array(jax.devices())[:2], ("x",))


def all_reduce(x: jax.Array, kernel: str = "all_reduce.sum.f32") -> Any:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    tensors = [Tensor((x,), (result,), 1, x.size)]
    [(y,)] = fused_call(kernel, groups_of(MESH, "x"), tensors, op="all_reduce")
    return y


def on_ranks(f: Any, *args: Any) -> Any:
    run = jax.shard_map(f, mesh=MESH, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    return jax.block_until_ready(jax.jit(run)(*args))


def check_still_works() -> None:
    x = np.arange(2000, dtype=np.float32)
    y = on_ranks(all_reduce, x)
    np.testing.assert_array_equal(y, np.tile(x[:1000] + x[1000:], 2))


def raw_call(x: jax.Array, **changes: Any) -> jax.Array:
    """The FFI target itself, with attributes that fused_call would not give."""
    attributes: dict[str, Any] = dict(
        kernel="all_reduce.sum.f32",
        op="all_reduce",
        devices=np.array([0, 1], np.int64),
        ranks=np.int64(2),
        outbox=np.int64(1 << 18),
        team=np.int64(2),
        targets=np.array([], np.int64),
        scalars=np.int64(0),
        kinds=np.array([1, 1, 0, 1], np.int64),
        reach=np.array([1, 1], np.int64),
        geometry=np.array([1, x.size, 32, 0, 0], np.int64),
    )
    order = jnp.zeros((1,), jnp.uint32)
    shapes = (
        jax.ShapeDtypeStruct(order.shape, order.dtype),
        jax.ShapeDtypeStruct(x.shape, x.dtype),
    )
    place = lax.axis_index("x")
    return jax.ffi.ffi_call("jaxcc_fused", shapes)(order, place, x, **(attributes | changes))[1]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"kernel": "gone"}, "BACKEND_KERNEL"),
        ({"devices": np.array([2, 3], np.int64)}, "BACKEND_MESH"),
        ({"devices": np.array([0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"devices": np.array([0, -1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"devices": np.array([0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"ranks": np.int64(33)}, "BACKEND_ARGUMENT"),
        ({"ranks": np.int64(0)}, "BACKEND_ARGUMENT"),
        ({"team": np.int64(0)}, "BACKEND_ARGUMENT"),
        ({"team": np.int64(3)}, "BACKEND_ARGUMENT"),
        ({"targets": np.array([0, -1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"targets": np.array([1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"team": np.int64(1), "targets": np.array([0, 0], np.int64)}, "two teams send to team 0"),
        ({"kinds": np.array([2, 1, 0, 1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"kinds": np.array([1, 0, 0, 1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"kinds": np.array([1, 1, 1, 1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"kinds": np.array([1, 1, -1, 1], np.int64)}, "BACKEND_ARGUMENT"),
        ({"kinds": np.array([1, 1, 0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"kinds": np.array([1, 1, 0, 3], np.int64)}, "BACKEND_ARGUMENT"),
        ({"kinds": np.array([1, 1, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1, 9999, 5000, 0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1 << 40, 1 << 40, 1, 0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1 << 40, 1, 1 << 40, 0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1, -4, 0, 0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1, 32, -16, 0, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1, 32, 15, 0, 0], np.int64)}, "more than 2 blocks of 15"),
        ({"geometry": np.array([1, 32, 16, 1, 0], np.int64)}, "BACKEND_ARGUMENT"),
        ({"geometry": np.array([1, 32, 16, 0, 1], np.int64)}, "BACKEND_ARGUMENT"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(changes: dict[str, Any], code: str) -> None:
    check_still_works()
    with pytest.raises(jax.errors.JaxRuntimeError, match=code):
        on_ranks(lambda x: raw_call(x, **changes), np.ones(64, np.float32))
    check_still_works()


def test_ranks_that_come_to_different_collectives_all_fail() -> None:
    def diverge(x: jax.Array) -> jax.Array:
        small = lambda x: jnp.tile(all_reduce(x[:7])[:1], x.size)  # noqa: E731
        return lax.cond(lax.axis_index("x") == 0, all_reduce, small, x)

    with pytest.raises(
        jax.errors.JaxRuntimeError,
        match="BACKEND_MISMATCH.*collective 2 in jit.diverge.*collective 1 in jit.diverge",
    ):
        on_ranks(diverge, np.ones(1000, np.float32))
    check_still_works()


ABSENT = """
import test_errors as t, jax, numpy as np
from jax import lax
def lone(x):
    return lax.cond(lax.axis_index("x") == 0, t.all_reduce, lambda x: x, x)
try:
    t.on_ranks(lone, np.ones(1000, np.float32))
except jax.errors.JaxRuntimeError as error:
    print(error)
t.check_still_works()
print("works")
"""


def test_a_rank_that_does_not_come_is_named_and_the_process_goes_on() -> None:
    environment = os.environ | {"JAXCC_TIMEOUT_S": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), environment["PYTHONPATH"]]
    )
    done = subprocess.run(
        [sys.executable, "-c", ABSENT], env=environment, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    says = "[BACKEND_TIMEOUT] all_reduce (collective 1 in jit(lone)): rank 1 (device 1)"
    assert says in done.stdout
    assert "did not come within 1.0 s" in done.stdout and "look for a branch" in done.stdout
    assert done.stdout.endswith("works\n")


@pytest.mark.parametrize("text", ["not a library", ""])
def test_a_file_that_is_no_kernel_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kernel.so"
    path.write_text(text)
    with pytest.raises(BackendError, match="cannot be loaded") as caught:
        load_kernel("tests.broken", str(path))
    assert caught.value.code == "BACKEND_KERNEL"


def test_fused_call_refuses_before_it_traces() -> None:
    x = jnp.ones(4)
    result = (jax.ShapeDtypeStruct(x.shape, x.dtype),)
    one, two = Tensor((x,), result, 1, 4), Tensor((x, x), result, 1, 4)
    groups = groups_of(MESH, "x")
    with pytest.raises(BackendError, match="mesh axes here are: none") as caught:
        fused_call("all_reduce.sum.f32", groups, [one], op="test")
    assert caught.value.code == "BACKEND_AXIS"
    with pytest.raises(BackendError, match="'gone'") as caught:
        fused_call("gone", groups, [one], op="test")
    assert caught.value.code == "BACKEND_KERNEL"
    with pytest.raises(BackendError, match="equally many") as caught:
        fused_call("all_reduce.sum.f32", groups, [one, two], op="test")
    assert caught.value.code == "BACKEND_ARGUMENT"


def test_groups_need_a_mesh_of_local_devices_and_its_axes() -> None:
    abstract = AbstractMesh((2,), ("x",), axis_types=(AxisType.Auto,))
    with pytest.raises(BackendError, match="AbstractMesh has none") as caught:
        groups_of(abstract, "x")  # pyright: ignore
    assert caught.value.code == "BACKEND_NOT_LOCAL"
    for axes in ("z", ("x", "x"), ("x", "z")):
        with pytest.raises(BackendError, match="axes of the mesh") as caught:
            groups_of(MESH, axes)
        assert caught.value.code == "BACKEND_AXIS"


def test_without_the_compiled_part_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jaxcc.runtime._ffi", None)
    _native.native.cache_clear()
    try:
        assert not _native.is_built()
        with pytest.raises(BackendError, match="without its C") as caught:
            _native.has_kernel("any")
        assert caught.value.code == "BACKEND_NOT_BUILT"
    finally:
        _native.native.cache_clear()
