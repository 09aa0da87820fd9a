"""The report of a check: its document for programs, and what it says of communication."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh

import jaxcc
from jaxcc import Local, Replicated, Sliced, check, on
from jaxcc.layout._traffic import Traffic, total
from jaxcc.testing import raises_layout

MESH = AbstractMesh((2, 4), ("dp", "tp"))


def aval(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def layer(x: Any, p: Any) -> Any:
    y = lax.psum(jnp.tanh(x @ p["up"]) @ p["down"], "tp")
    return {"y": y, "mean": lax.pmean(jnp.mean(y), "dp")}


LAYERS = (on(dp=Sliced(0)), {"down": on(tp=Sliced(0)), "up": on(tp=Sliced(1))})
PARAMS = {"down": aval(16, 8), "up": aval(8, 16)}


def test_the_document() -> None:
    report = check(layer, aval(4, 8), PARAMS, mesh=MESH, in_layouts=LAYERS)
    document = json.loads(json.dumps(report.to_json()))
    lines, names = document.pop("lines"), [one["name"] for one in document["results"]]
    assert len(set(names)) == 2
    assert document == {
        "jaxcc": jaxcc.__version__,
        "sizes": [{"dp": 2, "tp": 4}, {"dp": 2, "tp": 2}],
        "check_vma": True,
        "arguments": [
            {"name": "x", "type": "f32[4,8]", "layout": "Sliced(0)@dp"},
            {"name": "p['down']", "type": "f32[16,8]", "layout": "Sliced(0)@tp"},
            {"name": "p['up']", "type": "f32[8,16]", "layout": "Sliced(1)@tp"},
        ],
        "results": [
            {"name": names[0], "type": "f32[]", "layout": "Replicated"},
            {"name": names[1], "type": "f32[4,8]", "layout": "Sliced(0)@dp"},
        ],
        "proved": True,
        "assumed": 0,
        "communication": [
            {"op": "all-reduce", "axes": ["tp"], "count": 1, "bytes": 2 * 8 * 4},
            {"op": "all-reduce", "axes": ["dp"], "count": 1, "bytes": 4},
        ],
        "notes": [],
    }
    first = layer.__code__.co_firstlineno
    products = [line for line in lines if line["op"] == "dot_general"]
    assert [(one["file"], one["line"], one["type"], one["bytes"]) for one in products] == [
        (__file__, first + 1, "f32[2,4]", 0),
        (__file__, first + 1, "f32[2,8]", 0),
    ]
    assert products[1]["layout"] == "Sliced(0)@dp Partial(sum)@tp"
    sums = [line for line in lines if line["op"] == "psum"]
    assert [(one["line"], one["bytes"]) for one in sums] == [(first + 1, 64), (first + 2, 4)]


def test_the_text_sums_communication_up() -> None:
    def f(x: Any) -> Any:
        return lax.all_gather(x, "dp", axis=0, tiled=True), lax.psum(x.sum(), ("dp", "tp"))

    layouts = (on(dp=Sliced(0), tp=Sliced(1)),)
    report = check(f, aval(1024, 4096), mesh=MESH, in_layouts=layouts)
    head, communication, *_ = str(report).splitlines()
    assert head == "rank-invariant for dp=2, tp=4; dp=2, tp=2 (check_vma=True)"
    assert communication == (
        "communication per rank: 1 all-gather over dp, 2 MiB; 1 all-reduce over dp, tp, 4 B"
    )
    quiet = check(jnp.sin, aval(4), mesh=MESH, in_layouts=(on(dp=Sliced(0)),))
    assert "communication per rank: none" in str(quiet)


def test_notes_say_what_is_not_promised() -> None:
    report = check(lambda x: lax.psum(x, "dp"), aval(4), mesh=MESH, in_layouts=(on(dp=Local),))
    assert len(report.to_json()["notes"]) == 1
    assert f"note: {report.to_json()['notes'][0]}" in str(report).splitlines()


def test_an_axis_of_one_rank_is_said_to_be_unchecked() -> None:
    how: dict[str, Any] = {"in_layouts": on(dp=Sliced(0)), "out_layouts": on(dp=Sliced(0))}
    for sizes, single in (((2, 1), ["tp"]), ((1, 1), ["dp", "tp"]), ((2, 4), [])):
        mesh = AbstractMesh(sizes, ("dp", "tp"))
        for structure in ("rank-invariant", "rank-dependent"):
            report = check(jnp.sin, aval(4), mesh=mesh, structure=structure, **how)
            notes = [note for note in report.notes if "1 rank" in note]
            assert [note.split()[0] for note in notes] == single


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_what_is_only_run_has_its_communication_counted_on_the_mesh(axis: str) -> None:
    def ring(x: Any) -> Any:
        total, n = x, lax.axis_size(axis)
        for _ in range(n - 1):
            x = lax.ppermute(x, axis, [(k, (k + 1) % n) for k in range(n)])
            total += x
        return total

    alone: dict[str, Any] = {f"{way}_layouts": on(**{axis: Local}) for way in ("in", "out")}
    n = MESH.shape[axis]
    mesh = AbstractMesh((n,), (axis,))
    report = check(ring, aval(4, 3), mesh=mesh, structure="rank-dependent", **alone)
    bytes_ = (n - 1) * 4 * 3 * 4
    assert report.communication == (Traffic("permutation", (axis,), n - 1, bytes_),)
    assert "permutation" in str(report).splitlines()[1] and not report.lines


def test_numbers_and_64_bits_are_what_jax_makes_of_them() -> None:
    def scaled(x: Any, k: Any) -> Any:
        return x * k

    given = (np.ones(8), 2.0), (jax.ShapeDtypeStruct((8,), np.float64), 3), (np.arange(8), True)
    for wide, number in given:
        layouts = (on(dp=Sliced(0)), Replicated)
        report = check(scaled, wide, number, mesh=MESH, in_layouts=layouts)
        assert report.out_types == report.in_types[:1]
        with jax.enable_x64(True):
            kept = check(scaled, wide, number, mesh=MESH, in_layouts=layouts)
        assert [t.replace("64", "32") for t in kept.in_types] == list(report.in_types)
        assert ["JAX_ENABLE_X64" in note for note in report.notes] == [True]
        assert not kept.notes
    for text, said in (("2.0", "str"), (2**40, "too large")):
        with raises_layout("LAYOUT_ARGUMENT") as findings:
            check(scaled, np.ones(8, np.float32), text, mesh=MESH, in_layouts=Replicated)
        assert repr(text) in findings[0].what and said in findings[0].because


@pytest.mark.parametrize("length", [3, 7])
def test_collectives_in_loops_and_branches(length: int) -> None:
    def f(x: Any, flag: Any) -> Any:
        def body(c: Any, _: Any) -> Any:
            return jax.checkpoint(lambda c: lax.psum(lax.psum(c, "dp"), "dp"))(c), None

        x, _ = lax.scan(body, x, None, length=length)
        x = lax.cond(
            flag,
            lambda x: lax.pmax(x.astype(jnp.float16), "tp"),
            lambda x: x.astype(jnp.float16),
            x,
        )
        return lax.ppermute(x[:2], "tp", [(0, 1), (1, 0)])

    spec = jax.P()
    mapped = jax.shard_map(f, mesh=MESH, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    traced = jax.make_jaxpr(mapped)(jnp.ones(6), True)
    assert total(traced.jaxpr.eqns) == (
        Traffic("all-reduce", ("dp",), 2 * length, 2 * length * 24),
        Traffic("all-reduce", ("tp",), 1, 12),
        Traffic("permutation", ("tp",), 1, 4),
    )
