"""Host runtime: groups of CPU devices, of one process or several, and what they run together: fused
kernels, and moves of data."""

from jaxcc.runtime._channels import must_agree as must_agree
from jaxcc.runtime._fused import Kind as Kind
from jaxcc.runtime._fused import Reach as Reach
from jaxcc.runtime._fused import Teams as Teams
from jaxcc.runtime._fused import Tensor as Tensor
from jaxcc.runtime._fused import fused_call as fused_call
from jaxcc.runtime._groups import MAX_RANKS as MAX_RANKS
from jaxcc.runtime._groups import Groups as Groups
from jaxcc.runtime._groups import groups_of as groups_of
from jaxcc.runtime._moves import EVERYONE as EVERYONE
from jaxcc.runtime._moves import ZEROS as ZEROS
from jaxcc.runtime._moves import Move as Move
from jaxcc.runtime._moves import Side as Side
from jaxcc.runtime._moves import has_reduction as has_reduction
from jaxcc.runtime._moves import move_call as move_call
from jaxcc.runtime._native import has_kernel as has_kernel
from jaxcc.runtime._native import is_built as is_built
from jaxcc.runtime._native import load_kernel as load_kernel
from jaxcc.runtime._native import register as register
