"""Tuning tables: what `auto` reads from them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from ranks import mesh_of

from jaxcc import comm
from jaxcc.comm._table import default_table
from jaxcc.layout import TableError


def row(max_bytes: int | None, backend: str, us: float = 1.0) -> dict[str, Any]:
    return {"max_bytes": max_bytes, "backend": backend, "us": us}


def table_of(rows: Any, ranks: str = "2", dtype_class: str = "float", **top: Any) -> str:
    tables = {"all_reduce": {dtype_class: {ranks: rows}}}
    return json.dumps({"schema": 1, "machine": "mine", "tables": tables, **top})


def parse(rows: Any, **options: Any) -> comm.Table:
    return comm.Table.parse(table_of(rows, **options), "t.json")


def chosen(table: comm.Table | None, nbytes: int, ranks: int = 2, dtype: Any = jnp.float32) -> str:
    operand = jax.ShapeDtypeStruct((nbytes // jnp.dtype(dtype).itemsize,), dtype)
    return comm.explain("all_reduce", operand, "r", mesh=mesh_of(ranks), table=table).backend


def test_the_first_bucket_that_holds_the_message_decides() -> None:
    table = parse([row(1024, "xla"), row(4096, "host"), row(None, "xla")])
    sizes = (0, 1024, 1028, 4096, 4100, 1 << 20)
    assert [chosen(table, size) for size in sizes] == ["xla", "xla", "host", "host", "xla", "xla"]


def test_the_nearest_group_size_that_is_not_larger_decides() -> None:
    sizes = {"2": [row(None, "xla")], "4": [row(None, "host")]}
    text = json.dumps({"schema": 1, "tables": {"all_reduce": {"float": sizes}}})
    table = comm.Table.parse(text, "t.json")
    rows = [table.rows("all_reduce", "float", ranks, 8)[0].backend for ranks in (1, 2, 3, 4, 64)]
    assert rows == ["xla", "xla", "xla", "host", "host"]


def test_the_class_any_is_for_those_that_are_not_named() -> None:
    classes = {"any": {"2": [row(None, "host")]}, "half": {"2": [row(None, "xla")]}}
    text = json.dumps({"schema": 1, "tables": {"all_reduce": classes}})
    table = comm.Table.parse(text, "t.json")
    dtypes = (jnp.float32, jnp.int8, jnp.complex64, jnp.bfloat16)
    assert [chosen(table, 8, dtype=dtype) for dtype in dtypes] == ["host", "host", "host", "xla"]


def test_what_cannot_run_here_is_passed_over_and_named() -> None:
    table = parse([row(None, "mpi", 1.0), row(None, "host", 2.0), row(None, "xla", 3.0)])
    choice = comm.explain("all_reduce", jnp.ones(4), "r", mesh=mesh_of(2), table=table)
    assert choice.backend == "host"
    assert [name for name, _ in choice.skipped] == ["mpi"]
    assert "2 us in the table of mine" in str(choice)
    assert "not mpi: the mpi backend needs one device in each process" in str(choice)


def test_what_no_row_covers_goes_to_xla() -> None:
    table = parse([row(None, "host")])
    assert chosen(table, 8, dtype=jnp.int32) == "xla"
    assert chosen(parse([row(None, "mpi")]), 8) == "xla"


def test_auto_runs_what_explain_says() -> None:
    mesh = mesh_of(2)
    x = np.arange(8, dtype=np.float32)
    for backend in ("xla", "host"):
        table = parse([row(None, backend)])
        program = jax.shard_map(
            lambda v, t=table: comm.all_reduce(v, "r", mesh=mesh, table=t),
            mesh=mesh,
            in_specs=P("r"),
            out_specs=P(),
        )
        assert ("jaxcc_fused" in str(jax.make_jaxpr(program)(x))) == (backend == "host")
        np.testing.assert_array_equal(jax.jit(program)(x), x[:4] + x[4:])


def test_the_environment_names_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.json"
    monkeypatch.setenv("JAXCC_TABLE", str(path))
    for backend in ("host", "xla", "host"):
        path.write_text(table_of([row(None, backend)]))
        assert chosen(None, 8) == backend
    path.unlink()
    with pytest.raises(TableError) as caught:
        chosen(None, 8)
    assert caught.value.code == "TABLE_MISSING" and str(path) in str(caught.value)


def test_the_shipped_table() -> None:
    """It prefers our kernels within a process, and leaves one rank to XLA."""
    for ranks in (2, 4):
        for size in (4, 1 << 10, 1 << 16, 1 << 20, 1 << 24):
            assert chosen(None, size, ranks) == "host"
            times = [one.us for one in default_table().rows("all_reduce", "float", ranks, size)]
            assert times == sorted(times)
    assert chosen(None, 1 << 10, ranks=1) == "xla"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not JSON"),
        ("[]", "the table is [], not an object"),
        (table_of([row(None, "xla")], schema=2), "schema is 2"),
        (table_of([row(None, "xla")], ranks="two"), "group size 'two'"),
        (table_of([row(None, "xla")], ranks="0"), "group size '0'"),
        (table_of([row(None, "xla")], dtype_class="f32"), "dtype class 'f32'"),
        (table_of([]), "all_reduce.float.2 is not a list of rows"),
        (table_of([row(8, "xla")]), "the last row must have max_bytes null"),
        (table_of([row(8, "xla"), row(4, "xla"), row(None, "xla")]), "ascending"),
        (table_of([row(-1, "xla"), row(None, "xla")]), "max_bytes is -1"),
        (table_of([row(True, "xla"), row(None, "xla")]), "max_bytes is True"),
        (table_of([{"max_bytes": None, "backend": "xla"}]), "us is None"),
        (table_of([row(None, "xla", float("nan"))]), "us is nan"),
        (table_of(["xla"]), "'xla', not an object"),
    ],
)
def test_malformed_tables_say_where(text: str, part: str) -> None:
    with pytest.raises(TableError) as caught:
        comm.Table.parse(text, "t.json")
    assert caught.value.code == "TABLE_FORMAT"
    assert part in str(caught.value) and "t.json" in str(caught.value)


def test_a_table_of_an_unknown_backend() -> None:
    with pytest.raises(TableError) as caught:
        parse([row(None, "nccl")])
    assert caught.value.code == "TABLE_BACKEND" and "xla, host, mpi" in str(caught.value)
