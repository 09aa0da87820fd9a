"""The whole text of a kernel: a tile function for each kind of tensor, and what is around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jaxcc.codegen._roles import OutRole
from jaxcc.layout import CodegenError

_INCLUDES = """\
#include "protocol/gamma.h"
#include "protocol/gather.h"
#include "protocol/inverse.h"
#include "protocol/random.h"
#include "protocol/reductions.h"
#include "protocol/send.h"
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

_KIND = """\
namespace kind{number} {{
{epilogue}
}}  // namespace kind{number}
"""

_KINDS = """\
struct Epilogue {{
  template <class Lanes>
  JAXCC_FN static void tile(const jaxcc_tile& t, const Lanes& lanes) {{
    switch (t.kind) {{
{tiles}
    }}
  }}
  JAXCC_FN static void total(const jaxcc_parts& t) {{
    switch (t.kind) {{
{totals}
    }}
  }}
}};
"""


class Kind(Protocol):
    """What is known of a tile function: see `Kernel`."""

    @property
    def epilogue(self) -> str: ...
    @property
    def outputs(self) -> tuple[OutRole, ...]: ...
    @property
    def totals(self) -> int: ...
    @property
    def row(self) -> int: ...


@dataclass(frozen=True)
class Source:
    """A kernel for tensors of several `kinds`, each with a tile function of its own."""

    kinds: tuple[Kind, ...]

    @property
    def text(self) -> str:
        """The whole host source: includes, the epilogue, the exported names."""
        total = _TOTAL.format() if any(kind.totals for kind in self.kinds) else ""
        return _HOST.format(includes=_INCLUDES, epilogue=self._epilogue, total=total)

    @property
    def cuda_text(self) -> str:
        """The whole CUDA source: the same epilogue, and the collective as kernel `jaxcc_fused`.

        Raises:
          CodegenError: CODEGEN_PLATFORM if it reduces rows, makes totals or sends.
        """
        if any(kind.totals or kind.row > 1 for kind in self.kinds):
            raise CodegenError(
                "CODEGEN_PLATFORM",
                "a kernel that reduces rows, or whole tensors, has no CUDA form yet",
                because="a block's threads would have to reduce together what each of them sees",
                fixes=("leave the reduction out of the group: XLA then does it",),
            )
        if any(role.sent for kind in self.kinds for role in kind.outputs):
            raise CodegenError(
                "CODEGEN_PLATFORM",
                "a kernel that sends has no CUDA form yet",
                because="a grid meets the ranks of one team only",
                fixes=("leave the send out of the group: XLA then does it",),
            )
        return _CUDA.format(includes=_INCLUDES, epilogue=self._epilogue)

    @property
    def _epilogue(self) -> str:
        if len(self.kinds) == 1:
            return self.kinds[0].epilogue
        each = [_KIND.format(number=n, epilogue=kind.epilogue) for n, kind in enumerate(self.kinds)]
        return "".join(each) + _KINDS.format(
            tiles=_cases(range(len(self.kinds)), "tile(t, lanes)"),
            totals=_cases([n for n, kind in enumerate(self.kinds) if kind.totals], "total(t)"),
        )


def _cases(numbers: Sequence[int], call: str) -> str:
    return "\n".join(f"      case {n}: kind{n}::Epilogue::{call}; break;" for n in numbers)
