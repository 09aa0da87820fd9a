"""Programs traced from functions: what is inlined, what is named, and that running one is running
the function.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from oracles import close, mesh_of

import jaxcc
from jaxcc.layout import Local, Replicated, as_map, trace
from jaxcc.program import Program, program_of, run

F32 = jnp.float32


def program(f: Any, *shapes: tuple[int, ...], n: int = 2, check_vma: bool = True) -> Program:
    avals = [jax.ShapeDtypeStruct(s, F32) for s in shapes]
    layouts = [as_map(Local, ("tp",))] * len(shapes)
    mesh = mesh_of(n).abstract_mesh
    traced = trace(f, avals, layouts, {"tp": n}, check_vma=check_vma, mesh=mesh)
    names = [f"x{i}" for i in range(len(shapes))]
    outs = [as_map(Replicated, ("tp",))] * len(traced.outvars)
    return program_of(traced, mesh, name="f", in_names=names, in_layouts=layouts, out_layouts=outs)


def test_labels_name_operations_and_functions_are_inlined() -> None:
    @jax.jit
    def inner(y: Any) -> Any:
        return jaxcc.name(jax.nn.relu(y) + 1, "inside")

    p = program(lambda x: (inner(jaxcc.name(lax.psum(x, "tp"), "total")), x * 3), (4,))
    kinds = {op.name: op.kind for op in p.ops}
    assert kinds["total"] == "all_reduce" and kinds["inside"] == "add"
    assert not {"jit", "custom_jvp_call", "pvary", "name"} & set(kinds.values())
    (total,) = (op for op in p.ops if op.name == "total")
    assert total.line is not None and total.line.file == __file__
    assert total.params == {"axes": ("tp",), "op": "sum"}


def test_a_second_label_or_a_taken_one_is_an_operation() -> None:
    def f(x: Any) -> Any:
        a = jaxcc.name(x * 2, "a")
        return jaxcc.name(a, "b"), jaxcc.name(x + 1, "a"), jaxcc.name(x, "c")

    p = program(f, (4,))
    assert p.outputs == ("b", "a_1", "c")
    assert {op.name: op.kind for op in p.ops}["b"] == "name"


def test_what_nobody_reads_is_gone() -> None:
    p = program(lambda x: (jnp.sin(x), jnp.cos(x))[0], (4,))
    assert [op.kind for op in p.ops] == ["sin"]


@pytest.mark.parametrize("check_vma", [True, False])
def test_running_a_program_is_running_the_function(check_vma: bool) -> None:
    table = np.random.default_rng(0).normal(size=(6,)).astype(np.float32)

    def f(x: Any, y: Any) -> Any:
        gathered = lax.all_gather(x, "tp", axis=0, tiled=True).sum(0)
        scattered = lax.psum_scatter(y, "tp", scatter_dimension=0, tiled=True)
        total, largest = lax.psum((x.sum(0), y.sum(0)), "tp")[0], lax.pmax(y, "tp").max(0)
        looped = lax.fori_loop(0, 3, lambda i, c: c * 2 + table, gathered)
        branch = lax.cond(total[0] > 0, jnp.sin, jnp.cos, total)
        return looped + branch + largest, lax.psum(scattered.sum(0) * lax.axis_index("tp"), "tp")

    mesh = mesh_of(2)
    rng = np.random.default_rng(1)
    x, y = (rng.normal(size=(8, 6)).astype(np.float32) for _ in range(2))
    p = program(f, (4, 6), (4, 6), check_vma=check_vma)

    def mapped(g: Any) -> Any:
        # Only the gathered term keeps JAX from seeing that the first result is equal on all ranks.
        return jax.shard_map(
            g, mesh=mesh, in_specs=(P("tp"), P("tp")), out_specs=P("tp"), check_vma=check_vma
        )(x, y)

    def stacked(out: Any) -> Any:
        return [jnp.stack([o]) + (0 * lax.axis_index("tp")) for o in out]

    ours = mapped(lambda *a: stacked(run(p, a, check_vma=check_vma)))
    theirs = mapped(lambda *a: stacked(f(*a)))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)
