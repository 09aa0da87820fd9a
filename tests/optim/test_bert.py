"""LAMB on BERT-large's list of parameters, that of `examples/bert_lamb.py` with smaller sizes."""

import math
import runpy
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from fused import agree
from oracles import mesh_of

import jaxcc.optim

EXAMPLE = Path(__file__).parents[2] / "examples" / "bert_lamb.py"
SHAPES: Any = runpy.run_path(str(EXAMPLE))["shapes"]


def test_the_list_is_that_of_bert_large() -> None:
    shapes = SHAPES()
    # 24 layers of 12.6 M, embeddings of 31.8 M, and the pooler's and the heads' own.
    layer = 12 * 1024**2 + (4 + 4 + 1 + 2 + 2) * 1024
    embeddings = (30522 + 512 + 2 + 2) * 1024
    heads = 2 * (1024**2 + 1024) + 2 * 1024 + 30522 + 2 * 1024 + 2
    assert sum(map(math.prod, shapes.values())) == 24 * layer + embeddings + heads
    assert len(shapes) == 24 * 16 + 5 + 2 + 4 + 1 + 2


def test_lamb_on_the_whole_list_agrees_with_optax() -> None:
    shapes = SHAPES(hidden=6, vocabulary=1001)
    tx: Any = jaxcc.optim.lamb(1e-2, weight_decay=0.01, axis_name="dp", mesh=mesh_of(4, "dp"))
    agree(tx, optax.lamb(1e-2, weight_decay=0.01), 4, shapes=shapes, steps=2)


def test_m_and_v_are_held_once() -> None:
    shapes = SHAPES(hidden=6, vocabulary=1001)
    mesh = mesh_of(4, "dp")
    tx: Any = jaxcc.optim.lamb(1e-2, axis_name="dp", mesh=mesh)
    params = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    state = tx.init(params)
    specs = tx.specs(params)
    placed = jax.device_put(
        state,
        jax.tree.map(lambda spec: jax.sharding.NamedSharding(mesh, spec), specs),
    )
    held = sum(
        shard.data.nbytes
        for x in jax.tree.leaves(placed)
        if x.ndim
        for shard in x.addressable_shards
    )
    # Of each parameter what n does not divide is rounded up.
    whole = 2 * sum(4 * math.prod(shape) for shape in shapes.values())
    assert whole <= held <= whole + 2 * 4 * 3 * len(shapes)
