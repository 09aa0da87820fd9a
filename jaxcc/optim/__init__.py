"""Optimizers with state sliced over the ranks, their update fused with its collectives."""

from jaxcc.optim._fuse import fuse as fuse
from jaxcc.optim._named import adam as adam
from jaxcc.optim._named import adamw as adamw
from jaxcc.optim._named import lamb as lamb
from jaxcc.optim._named import sgd as sgd
from jaxcc.optim._state import MasterState as MasterState
from jaxcc.optim._transformation import FusedTransformation as FusedTransformation
