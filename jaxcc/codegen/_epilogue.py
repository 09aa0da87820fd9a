"""Kernels: from the jaxpr that is fused into a collective to the text of its tile function."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxcc import _compat
from jaxcc.codegen._elements import element_of
from jaxcc.codegen._graph import Node, Value, graph_of
from jaxcc.codegen._index import REDUCTIONS, buffer_maps, needs_of
from jaxcc.codegen._roles import OutRole, Role
from jaxcc.codegen._space import space_of
from jaxcc.codegen._text import Writer
from jaxcc.layout import CodegenError

_INCLUDES = """\
#include "protocol/gamma.h"
#include "protocol/gather.h"
#include "protocol/inverse.h"
#include "protocol/random.h"
#include "protocol/total.h"
"""

_HOST = """\
{includes}
namespace {{

{epilogue}
}}  // namespace

extern "C" {{
extern const int32_t jaxcc_kernel_abi = JAXCC_ABI;
void jaxcc_kernel_tile(const jaxcc_tile* tile) {{ Epilogue::tile(*tile, jaxcc::OneLane{{}}); }}
{total}}}
"""

_TOTAL = """\
void jaxcc_kernel_total(const jaxcc_parts* parts) {{ Epilogue::total(*parts); }}
"""

_CUDA = """\
{includes}
namespace {{

{epilogue}
}}  // namespace

#include "cuda/fused.h"
"""


@dataclass(frozen=True)
class Kernel:
    """A tile function: `epilogue` is the text of `struct Epilogue` for g++ and CUDA alike.

    Its buffers are, as in ffi/protocol/abi.h: `scalar_inputs`, then for each tensor
    `operand_inputs`, then for each tensor the outputs. A tile must hold whole rows of `row`
    elements.
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
        """The inputs that all tensors share."""
        return tuple(n for n, role in enumerate(self.inputs) if role is Role.SCALAR)

    @property
    def operand_inputs(self) -> tuple[int, ...]:
        """The inputs that each tensor has."""
        return tuple(n for n, role in enumerate(self.inputs) if role is not Role.SCALAR)

    @property
    def text(self) -> str:
        """The whole host source: includes, the epilogue, the exported names."""
        total = _TOTAL.format() if self.totals else ""
        return _HOST.format(includes=_INCLUDES, epilogue=self.epilogue, total=total)

    @property
    def cuda_text(self) -> str:
        """The whole CUDA source: the same epilogue, and the collective as kernel `jaxcc_fused`.

        Raises:
          CodegenError: CODEGEN_PLATFORM if it reduces rows or makes totals.
        """
        if self.totals or self.row > 1:
            raise CodegenError(
                "CODEGEN_PLATFORM",
                "a kernel that reduces rows, or whole tensors, has no CUDA form yet",
                because="a block's threads would have to reduce together what each of them sees",
                fixes=("leave the reduction out of the group: XLA then does it",),
            )
        return _CUDA.format(includes=_INCLUDES, epilogue=self.epilogue)

    @property
    def key(self) -> str:
        """A name for the text; `compile_kernel` adds the compiler and machine."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


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
      op: what reduces REDUCE inputs: "sum", "prod", "max" or "min".

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
