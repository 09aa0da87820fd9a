"""The codes that start with LAYOUT_."""

from __future__ import annotations

from collections.abc import Mapping

from jaxcc.layout._codes import Entry

_ROWS = "check(f, x, w, b, mesh=mesh, in_layouts=(Sliced(1), Sliced(0), Replicated))\n"
_ROWS_TO_WHOLE = _ROWS.replace("))\n", "), out_layouts=Replicated)\n")
_BY_ROWS = "check(f, x, mesh=mesh, in_layouts=(Sliced(0),))\n"
_BY_COLUMNS = "check(f, x, mesh=mesh, in_layouts=(Sliced(1),))\n"
_CAPTURED = (
    'devices = jax.make_mesh((2,), ("tp",), devices=jax.devices()[:2])\n'
    "rows = jaxcc.put(np.ones(8), Sliced(0), devices)\n\n\n"
)

_NESTED = (
    "from jax.sharding import PartitionSpec as P\n\n\ndef f(x):\n"
    '    block = {"in_specs": P("tp"), "out_specs": P("tp")}\n'
    "    twice = jax.shard_map(lambda x: 2 * x, **block)\n"
)

LAYOUT_CODES: Mapping[str, Entry] = {
    "LAYOUT_COUNTED": Entry(
        "a Replicated value is added to a pending sum",
        "A product over a sliced contraction is Partial: its sum over the ranks is the "
        "value. What every "
        "rank adds before that sum is counted once for each rank. Add it after the sum, or "
        "divide it by "
        "the number of ranks.",
        'def f(x, w, b):\n    return lax.psum(x @ w + b, "tp")\n\n\n' + _ROWS,
        'def f(x, w, b):\n    return lax.psum(x @ w, "tp") + b\n\n\n' + _ROWS,
    ),
    "LAYOUT_PARTIAL_NONLINEAR": Entry(
        "a function that is not linear is applied to a pending sum",
        "The gelu of a sum is not the sum of gelus. Only linear operations commute with a "
        "pending sum, "
        "and only increasing ones with a pending maximum. Reduce the value first.",
        'def f(x, w, b):\n    return lax.psum(jax.nn.gelu(x @ w), "tp") + b\n\n\n' + _ROWS,
        'def f(x, w, b):\n    return jax.nn.gelu(lax.psum(x @ w, "tp")) + b\n\n\n' + _ROWS,
    ),
    "LAYOUT_RESULT_PARTIAL": Entry(
        "a value is returned while its reduction is pending",
        "Each rank returns only its own term. Reduce it (psum, psum_scatter), or declare "
        "the result "
        "Partial if the caller does.",
        "def f(x, w, b):\n    return x @ w\n\n\n" + _ROWS_TO_WHOLE,
        'def f(x, w, b):\n    return lax.psum(x @ w, "tp")\n\n\n' + _ROWS_TO_WHOLE,
    ),
    "LAYOUT_SCALE": Entry(
        "a value is a multiple of what one rank computes",
        "The checker follows the ratio of each value on n ranks to the same value on one. "
        "A psum of what "
        "every rank holds, or of the ranks' means, makes it n; a pmean of the ranks' sums "
        "makes it 1/n. "
        "Results must have ratio 1, and so must what enters a function that does not pass a factor "
        "through, such as exp.",
        'def f(x):\n    return lax.psum(x.mean(), "tp")\n\n\n' + _BY_ROWS,
        'def f(x):\n    return lax.pmean(x.mean(), "tp")\n\n\n' + _BY_ROWS,
    ),
    "LAYOUT_MISMATCH": Entry(
        "operands are different parts of the whole",
        "On every rank, element i of one operand must belong to element i of the other. "
        "Rows of one "
        "matrix and columns of another do so only on the diagonal.",
        "def f(x, w):\n    return x @ w\n\n\ncheck(f, x, w, mesh=mesh, "
        "in_layouts=(Sliced(0), Sliced(1)))\n",
        "def f(x, w):\n    return x @ w\n\n\ncheck(f, x, w, mesh=mesh, "
        "in_layouts=(Replicated, Sliced(1)))\n",
    ),
    "LAYOUT_SUM_OF_SLICES": Entry(
        "different slices are reduced with one another",
        "psum adds what the ranks hold. If each holds another block of an array, the "
        "blocks are added to "
        "one another. To put them together, gather them.",
        'def f(x):\n    return lax.psum(x, "tp")\n\n\n' + _BY_ROWS,
        'def f(x):\n    return lax.all_gather(x, "tp", axis=0, tiled=True)\n\n\n' + _BY_ROWS,
    ),
    "LAYOUT_RESULT": Entry(
        "a result is not what its layout says",
        "The result's blocks are not the blocks of the whole result: it was gathered or "
        "scattered along "
        "another dimension, or its layout is another one than declared. Where a dimension is made "
        "of several, messages write it as their product: in Sliced(0, as 4 x [4] x 2), dimension "
        "0 of the whole is 4 parts of 4 of 2, and the rank has its own one of the 4 in brackets.",
        "def f(x):\n"
        '    return lax.all_gather(x, "tp", axis=1, tiled=True).reshape(8, 16)\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Sliced(0),), out_layouts=Replicated)\n",
        "def f(x):\n"
        '    return lax.all_gather(x, "tp", axis=0, tiled=True)\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Sliced(0),), out_layouts=Replicated)\n",
    ),
    "LAYOUT_RESHAPE": Entry(
        "a reshape, transpose or scatter cuts a block",
        "A dimension that is sliced may be merged or split only where the ranks' blocks "
        "stay whole.",
        "def f(x):\n    return x[:, :6].reshape(3, -1)\n\n\n" + _BY_ROWS,
        "def f(x):\n    return x[:, :6].reshape(-1, 3, 2)\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_SLICE": Entry(
        "a slice, split or concatenation along a sliced dimension",
        "The same positions of a rank's block and of the whole are other elements. A "
        "packed [q k v] that "
        "is sliced as a whole has to be packed as (3, heads) instead, so that each part is sliced.",
        "def f(x):\n    return x[:, :2]\n\n\n" + _BY_COLUMNS,
        "def f(x):\n    return x[:, :2]\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_NEEDS_WHOLE_DIM": Entry(
        "an operation along a dimension of which a rank holds a part",
        "cumsum, sort, argmax and the like need all of the dimension, in order. Gather it first.",
        "def f(x):\n    return jnp.cumsum(x, axis=0)\n\n\n" + _BY_ROWS,
        "def f(x):\n    return jnp.cumsum(x, axis=1)\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_RANK_INDEX": Entry(
        "numbers that count a rank's own block, or differ from rank to rank",
        "arange over a rank's block starts at 0 on every rank, and axis_index is another number on "
        "each. Positions are axis_index * block + arange(block). What a rank computes for the "
        "integers that it owns, and 0 elsewhere, is a pending sum if the ranks' intervals make up "
        "the whole: a table whose rows are sliced is read that way.",
        "def f(x):\n    return x + jnp.arange(x.shape[0])[:, None]\n\n\n" + _BY_ROWS,
        "def f(x):\n"
        '    first = lax.axis_index("tp") * x.shape[0]\n'
        "    return x + (first + jnp.arange(x.shape[0]))[:, None]\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_RANDOM": Entry(
        "random numbers that a group of one does not make",
        "Random numbers depend on their key and on the shape that they are made for. A rank that "
        "makes them for its own block has others than the whole array has there. Make them for the "
        "whole array, and pass them as a sliced argument.",
        "def f(x, key):\n    return x * jax.random.normal(key, x.shape)\n\n\n"
        "check(f, x, jax.random.key(0), mesh=mesh, in_layouts=(Sliced(0), Replicated))\n",
        "def f(x, noise):\n    return x * noise\n\n\n"
        "check(f, x, x, mesh=mesh, in_layouts=(Sliced(0), Sliced(0)))\n",
    ),
    "LAYOUT_STRUCTURE": Entry(
        "the program takes another path on one rank than on n",
        "A Python `if` on the group's size, or a captured array that depends on it, makes "
        "two programs "
        "of one. The checker matches the equations of both and found one without a partner.",
        'def f(x):\n    return jnp.sin(x) if lax.axis_size("tp") > 1 else x\n\n\n' + _BY_ROWS,
        "def f(x):\n    return jnp.sin(x)\n\n\n" + _BY_ROWS,
    ),
    "LAYOUT_TRACE": Entry(
        "JAX cannot trace the function for a group of the check",
        "The check traces the function as one rank of the mesh sees it, with per-rank shapes, and "
        "for smaller groups down to one rank, with the whole arrays. Layouts whose per-rank shapes "
        "do not fit one another, a Python `if` on an array, and a group size that is a Python "
        "constant stop it; lax.axis_size follows the group.",
        "def f(x):\n    return x.reshape(2, 16) * 2.0\n\n\n" + _BY_ROWS,
        'def f(x):\n    return x.reshape(8 // lax.axis_size("tp"), 16) * 2.0\n\n\n' + _BY_ROWS,
    ),
    "LAYOUT_INDIVISIBLE": Entry(
        "the ranks do not divide a sliced dimension",
        "Slices are equal blocks. Pad the dimension, or slice another one.",
        "def f(x):\n    return x\n\n\n"
        "odd = jax.ShapeDtypeStruct((7, 16), jnp.float32)\n"
        "check(f, odd, mesh=mesh, in_layouts=(Sliced(0),))\n",
        "def f(x):\n    return x\n\n\n"
        "odd = jax.ShapeDtypeStruct((7, 16), jnp.float32)\n"
        "check(f, odd, mesh=mesh, in_layouts=(Sliced(1),))\n",
    ),
    "LAYOUT_ARGUMENT": Entry(
        "a layout that cannot be",
        "A layout names a dimension or an axis that is not there, or the layouts do not have the "
        "structure of the values.",
        "check(lambda x: x, x, mesh=mesh, in_layouts=(Sliced(2),))\n",
        "check(lambda x: x, x, mesh=mesh, in_layouts=(Sliced(1),))\n",
    ),
    "LAYOUT_SHAPE": Entry(
        "a shape does not fit its annotation",
        "jaxtyping's names stand for whole sizes and have one value in all arguments and "
        "the result.",
        "from typing import Annotated\n\nfrom jaxtyping import Array, Float\n\n\n"
        'def f(x: Annotated[Float[Array, "r k"], Replicated], w: Annotated[Float[Array, "r '
        'c"], Replicated]):\n'
        "    return x @ w\n\n\n"
        "jaxcc.typed(mesh=mesh)(f).check(x, w)\n",
        "from typing import Annotated\n\nfrom jaxtyping import Array, Float\n\n\n"
        'def f(x: Annotated[Float[Array, "r k"], Replicated], w: Annotated[Float[Array, "k '
        'c"], Replicated]):\n'
        "    return x @ w\n\n\n"
        "jaxcc.typed(mesh=mesh)(f).check(x, w)\n",
    ),
    "LAYOUT_ANNOTATION": Entry(
        "a parameter states no layout",
        "Without in_layouts, every parameter has to be annotated: Annotated[Array, Sliced(0)]. The "
        "class Sliced without a dimension is no layout.",
        "@jaxcc.typed(mesh=mesh)\ndef f(x):\n    return x\n\n\nf.check(x)\n",
        "from typing import Annotated\n\n\n"
        "@jaxcc.typed(mesh=mesh)\ndef f(x: Annotated[jax.Array, Sliced(0)]):\n    return "
        "x\n\n\nf.check(x)\n",
    ),
    "LAYOUT_NO_MESH": Entry(
        "a typed function has no mesh",
        "Give jaxcc.typed a mesh, or call it where jax.set_mesh is in force.",
        "@jaxcc.typed(in_layouts=(Sliced(0),))\ndef f(x):\n    return x\n\n\nf.check(x)\n",
        "@jaxcc.typed(mesh=mesh, in_layouts=(Sliced(0),))\ndef f(x):\n    return "
        "x\n\n\nf.check(x)\n",
    ),
    "LAYOUT_NO_RULE": Entry(
        "a primitive that no layout rule covers",
        "The checker never guesses. A primitive without a rule is accepted only where all "
        "operands are "
        "Replicated and equal to those of a group of one, and it has no effect. "
        "jaxcc.register_layout_rule adds a rule for a primitive of your own.",
        "def f(x):\n    return jax.pure_callback(lambda a: a, x, x)\n\n\n" + _BY_COLUMNS,
        "def f(x):\n    return x * 1.0\n\n\n" + _BY_COLUMNS,
    ),
    "LAYOUT_UNSUPPORTED": Entry(
        "something that this release does not check",
        "The message says what. It is refused rather than guessed.",
        "def f(x):\n"
        '    return lax.psum(x, "tp", axis_index_groups=[[0, 1], [2, 3]])\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Partial(),), check_vma=False)\n",
        'def f(x):\n    return lax.psum(x, "tp")\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Partial(),), check_vma=False)\n",
    ),
    "LAYOUT_RULE": Entry(
        "a layout rule returns what is no relation to the result",
        "A rule that was registered with jaxcc.register_layout_rule returned something that is not "
        "a relation, or one whose shape is not that of the result. jaxcc.testing.rulecheck tests a "
        "rule.",
    ),
    "LAYOUT_AXIS": Entry(
        "a collective over an axis that is not there",
        "The axis has to be one of the mesh of the check, or of the enclosing shard_map.",
        'def f(x):\n    return lax.psum(x, "model")\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Partial(),))\n",
        'def f(x):\n    return lax.psum(x, "tp")\n\n\n'
        "check(f, x, mesh=mesh, in_layouts=(Partial(),))\n",
    ),
    "LAYOUT_CAPTURED": Entry(
        "a captured array is spread over several devices",
        "An array that the function takes from around itself is the same whole array on every "
        "rank. One that lies in parts on the devices of a mesh is meant to be an argument: with a "
        "layout, each rank sees its own part. NumPy arrays and arrays of one device may be "
        "captured.",
        _CAPTURED + "@jaxcc.typed(mesh=devices, in_layouts=(Replicated,))\n"
        "def f(x):\n    return x + rows\n\n\nf(jnp.ones(8))\n",
        _CAPTURED + "@jaxcc.typed(mesh=devices, in_layouts=(Sliced(0), Sliced(0)))\n"
        "def f(x, rows):\n    return x + rows\n\n\nf(jnp.ones(8), rows)\n",
    ),
    "LAYOUT_NESTED": Entry(
        "a shard_map inside the function does not fit",
        "The checked function is one rank of every axis of the mesh, so that no axis is left for "
        "a shard_map inside it. axis_names= says of which axes it is one rank; along the others it "
        "sees whole arrays, and slices them itself. With axis_names=() it is a whole program. A "
        "shard_map inside is over the axes of the mesh that is checked.",
        _NESTED + "    return twice(x)\n\n\ncheck(f, x, mesh=mesh, in_layouts=Replicated)\n",
        _NESTED
        + "    return twice(x)\n\n\n"
        + "check(f, x, mesh=mesh, in_layouts=Replicated, axis_names=())\n",
    ),
    "LAYOUT_REDUCE_OP": Entry(
        "a reduction that a collective or a dtype does not have",
        "Reductions are sum, max, min, prod and mean; of integers and booleans also and, or and "
        "xor. Complex numbers have no order.",
    ),
}
