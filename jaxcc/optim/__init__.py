"""Optimizers with state sliced over the ranks, their update fused with its collectives."""

from jaxcc.optim._adam import AdamState as AdamState
from jaxcc.optim._adam import adam as adam
from jaxcc.optim._transformation import FusedTransformation as FusedTransformation
