"""Where each value is read: index maps, carried backwards from the outputs to the inputs.

An index map has one entry for each dimension of a value: the dimension of the iteration space that
walks it, or None where it is read at index 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from jaxcc import _compat
from jaxcc.codegen._graph import Graph, Node, Value
from jaxcc.codegen._primitives import RULES
from jaxcc.layout import CodegenError

IndexMap = tuple[int | None, ...]
Needs = Mapping[Value, Mapping[IndexMap, None]]


def needs_of(graph: Graph, stored: Sequence[Value], rank: int) -> Needs:
    """Each value's index maps, in the order found; one that nothing stored needs has none."""
    values: list[Value] = [*graph.inputs, *graph.nodes, *stored]
    needs: dict[Value, dict[IndexMap, None]] = {value: {} for value in values}
    for output in stored:
        needs[output][tuple(range(rank))] = None
    for node in reversed(graph.nodes):
        for index in needs[node]:
            for arg, arg_index in zip(node.args, operand_maps(node, index), strict=True):
                needs.setdefault(arg, {})[arg_index] = None
    return needs


def buffer_maps(graph: Graph, needs: Needs) -> Iterator[IndexMap]:
    """Where the kernel's buffers are read, and those that its counters stand for."""
    for value in graph.inputs:
        yield from needs[value]
    for node in graph.nodes:
        if _compat.op_name(node.eqn) in REDUCTIONS:
            yield from needs[node]
        if count := COUNTERS.get(_compat.op_name(node.eqn)):
            yield from (count(node, index) for index in needs[node])


def operand_maps(node: Node, index: IndexMap) -> list[IndexMap]:
    """Where a node, needed at `index`, reads its arguments; an error if it is not pointwise."""
    name = _compat.op_name(node.eqn)
    if name in RULES:
        if any(arg.shape and len(arg.shape) != len(node.shape) for arg in node.args):
            raise unknown(node, "it makes several elements of one, or one of several")
        return [_pointwise(arg.shape, node.shape, index) for arg in node.args]
    if name in COUNTERS:
        return []
    if name in REDUCTIONS:
        return [_reduced(node, index)]
    move = MOVES.get(name)
    source = move(node, index) if move else None
    if source is None:
        raise unknown(node, f"the primitive {name} is not pointwise")
    return [source]


def unknown(node: Node, because: str) -> CodegenError:
    """The error for an equation that has no place in a kernel."""
    return CodegenError(
        "CODEGEN_PRIMITIVE",
        f"a fused kernel cannot contain {_compat.op_name(node.eqn)}",
        line=node.line,
        because=because,
        fixes=("leave this operation out of the fusion, before or after it",),
    )


def _pointwise(operand: Sequence[int], result: Sequence[int], index: IndexMap) -> IndexMap:
    """Scalars and dimensions of size 1 are repeated."""
    if not operand:
        return ()
    sizes = zip(operand, result, index, strict=True)
    return tuple(None if size == 1 != out else at for size, out, at in sizes)


def _reduced(node: Node, index: IndexMap) -> IndexMap:
    """A row is walked by the dimensions that walk the result's row."""
    (operand,) = (arg.shape for arg in node.args)
    axes: Sequence[int] = node.eqn.params["axes"]
    kept = [d for d in range(len(operand)) if d not in axes]
    for d, at in zip(kept, index, strict=True):
        if operand[d] != 1 and at != d:
            raise unknown(node, "its rows are not those of the result")
    return tuple(None if size == 1 else d for d, size in enumerate(operand))


def _broadcast_in_dim(node: Node, index: IndexMap) -> IndexMap:
    dims: Sequence[int] = node.eqn.params["broadcast_dimensions"]
    (operand,) = (arg.shape for arg in node.args)
    return _pointwise(operand, [node.shape[d] for d in dims], tuple(index[d] for d in dims))


def _squeeze(node: Node, index: IndexMap) -> IndexMap:
    (operand,) = (arg.shape for arg in node.args)
    dropped: Sequence[int] = node.eqn.params["dimensions"]
    walk = iter(index)
    return tuple(None if d in dropped else next(walk) for d in range(len(operand)))


def _reshape(node: Node, index: IndexMap) -> IndexMap | None:
    """Only dimensions of size 1 may come and go."""
    (operand,) = (arg.shape for arg in node.args)
    walk = list(zip(node.shape, index, strict=True))
    source: list[int | None] = []
    for size in operand:
        while walk and walk[0][0] == 1 != size:
            walk.pop(0)
        if walk and walk[0][0] == size:
            source.append(walk.pop(0)[1])
        elif size == 1:
            source.append(None)
        else:
            return None
    return None if any(size != 1 for size, _ in walk) else tuple(source)


# Primitives that make one number of each row, with what does it in the kernel.
REDUCTIONS = {
    "reduce_sum": "jaxcc::Sum",
    "reduce_prod": "jaxcc::Prod",
    "reduce_max": "jaxcc::Max",
    "reduce_min": "jaxcc::Min",
}


# Primitives that only say where a value is read.
MOVES: dict[str, Callable[[Node, IndexMap], IndexMap | None]] = {
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
}


# Primitives whose values say where they stand: the index map of the array that would hold its own
# flat indices.
COUNTERS: dict[str, Callable[[Node, IndexMap], IndexMap]] = {
    "iota": lambda node, index: (index[node.eqn.params["dimension"]],),
    "iota_2x32_shape": lambda node, index: index,
}
