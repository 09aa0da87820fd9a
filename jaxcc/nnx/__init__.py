"""Model-parallel layers for Flax NNX."""

from jaxcc.nnx._row_parallel import RowParallelLinear as RowParallelLinear
from jaxcc.nnx._row_parallel import specs as specs
