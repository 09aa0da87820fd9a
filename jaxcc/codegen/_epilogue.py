"""From the jaxpr that is fused into a collective to the text of its tile function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcc import _compat
from jaxcc.codegen._elements import element_of
from jaxcc.codegen._graph import Node, Value, graph_of
from jaxcc.codegen._index import REDUCTIONS, buffer_maps, needs_of
from jaxcc.codegen._roles import OutRole, Role
from jaxcc.codegen._source import Source
from jaxcc.codegen._space import space_of
from jaxcc.codegen._text import Writer
from jaxcc.layout import CodegenError


@dataclass(frozen=True)
class Kernel:
    """A tile function: `epilogue` is the text of `struct Epilogue` for g++ and CUDA alike.

    Its buffers are, as in ffi/protocol/abi.h: `scalar_inputs`, which tensors may share, then for
    each tensor `operand_inputs`, then for each tensor the outputs. A tile must hold whole rows of
    `row` elements.
    """

    epilogue: str
    ranks: int
    inputs: tuple[Role, ...]
    outputs: tuple[OutRole, ...]
    input_dtypes: tuple[str, ...]
    output_dtypes: tuple[str, ...]
    row: int = 1

    @property
    def totals(self) -> int:
        """How many outputs are totals."""
        return self.outputs.count(OutRole.TOTAL)

    @property
    def scalar_inputs(self) -> tuple[int, ...]:
        """The inputs that tensors may share."""
        return tuple(n for n, role in enumerate(self.inputs) if role is Role.SCALAR)

    @property
    def operand_inputs(self) -> tuple[int, ...]:
        """The inputs that each tensor has."""
        return tuple(n for n, role in enumerate(self.inputs) if role is not Role.SCALAR)

    @property
    def text(self) -> str:
        """The whole host source of a kernel for tensors of this one kind."""
        return Source((self,)).text

    @property
    def cuda_text(self) -> str:
        """The whole CUDA source; see `Source.cuda_text`."""
        return Source((self,)).cuda_text


def generate(
    jaxpr: Any,
    consts: Sequence[Any] | Mapping[Any, Any],
    inputs: Sequence[Role],
    outputs: Sequence[OutRole],
    *,
    shape: tuple[int, ...] | None,
    ranks: int,
    op: str = "sum",
) -> Kernel:
    """Writes the kernel that reduces over ranks, computes `jaxpr` (pointwise work, reductions of
    rows) and gathers.

    Args:
      jaxpr: the computation, with `.invars`, `.outvars`, `.eqns`, traced at whole shapes or at
        those of a rank's block: only which dims correspond is used. A dim where a block has size 1
        cannot be told from one that is repeated: trace it at whole shapes.
      consts: values of its constvars, in order or by variable; single numbers.
      inputs: the role of each of `jaxpr.invars`.
      outputs: the role of each of `jaxpr.outvars`.
      shape: the whole shape of the outputs, row-major; None for a kernel that serves tensors of any
        shape, whose operands are scalars or have the outputs' shape.
      ranks: ranks in the group; the sum over them is unrolled, in rank order.
      op: what reduces REDUCE inputs: "sum", "prod", "max" or "min", with NaN and zeros as XLA's
        all-reduces have them (max and min leave NaN out, and of two zeros the earlier rank's
        stays); or "maximum" or "minimum", where NaN wins and 0 is above -0.

    Raises:
      CodegenError: CODEGEN_PRIMITIVE, CODEGEN_DTYPE, CODEGEN_CONST, CODEGEN_SHAPE or
        CODEGEN_BROADCAST.
    """
    graph = graph_of(jaxpr, consts)
    stored = [_stored(*one) for one in zip(graph.outputs, outputs, strict=True)]
    rank = _result_rank(stored, shape)
    needs = needs_of(graph, stored, rank)
    space = space_of(shape, rank, buffer_maps(graph, needs))
    writer = Writer(graph, needs, space, inputs, ranks, op)
    return Kernel(
        row=writer.row,
        epilogue=writer.epilogue(graph.outputs, outputs, rank),
        ranks=ranks,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        input_dtypes=tuple(element_of(value.dtype).dtype for value in graph.inputs),
        output_dtypes=tuple(element_of(value.dtype).dtype for value in graph.outputs),
    )


def _stored(value: Value, role: OutRole) -> Value:
    """The array that an output is, or is made of."""
    if role is not OutRole.TOTAL:
        return value
    node = value if isinstance(value, Node) else None
    if node is None or node.shape != () or _compat.op_name(node.eqn) not in REDUCTIONS:
        raise CodegenError(
            "CODEGEN_SHAPE",
            "a total is not the sum, product, maximum or minimum of an array over all dims",
            because="its elements are reduced one by one as the kernel makes them",
        )
    return node.args[0]


def _result_rank(stored: Sequence[Value], shape: tuple[int, ...] | None) -> int:
    """The number of dims of the outputs, which must agree."""
    ranks = {len(value.shape) for value in stored} | ({len(shape)} if shape is not None else set())
    if len(ranks) != 1:
        shapes = ", ".join(str(value.shape) for value in stored)
        raise CodegenError(
            "CODEGEN_SHAPE",
            f"outputs of shapes {shapes} are not all arrays over one shape {shape or ''}".rstrip(),
            because="one loop computes all outputs of a kernel",
            fixes=("return arrays of one shape from the fused function",),
        )
    return ranks.pop()
