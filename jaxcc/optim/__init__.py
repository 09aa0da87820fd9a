"""Optimizers whose state is sliced over the ranks and whose update is fused with its collectives."""

from jaxcc.optim._adam import AdamState as AdamState
from jaxcc.optim._adam import adam as adam
from jaxcc.optim._transformation import FusedTransformation as FusedTransformation
