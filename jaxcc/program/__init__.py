"""What is computed: the program traced from a function, its text, and how it runs."""

from jaxcc.program._extreme import extreme as extreme
from jaxcc.program._from_trace import program_of as program_of
from jaxcc.program._ir import COLLECTIVES as COLLECTIVES
from jaxcc.program._ir import MOVES as MOVES
from jaxcc.program._ir import ROOTED as ROOTED
from jaxcc.program._ir import SEND as SEND
from jaxcc.program._ir import Constant as Constant
from jaxcc.program._ir import CycleError as CycleError
from jaxcc.program._ir import Op as Op
from jaxcc.program._ir import Operand as Operand
from jaxcc.program._ir import Program as Program
from jaxcc.program._ir import operand_type as operand_type
from jaxcc.program._ir import rename as rename
from jaxcc.program._own_slice import own_slice as own_slice
from jaxcc.program._print import program_text as program_text
from jaxcc.program._print import type_text as type_text
from jaxcc.program._rooted import everywhere as everywhere
from jaxcc.program._rooted import from_root as from_root
from jaxcc.program._rooted import on_root as on_root
from jaxcc.program._run import VALUE_LABEL as VALUE_LABEL
from jaxcc.program._run import apply_op as apply_op
from jaxcc.program._run import run as run
from jaxcc.program._same import computes_the_same as computes_the_same
