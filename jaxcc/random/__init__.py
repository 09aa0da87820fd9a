"""Random arrays of which each rank makes its own block: what `jax.random` gives for the whole."""

from jaxcc.random._draw import bernoulli as bernoulli
from jaxcc.random._draw import bits as bits
from jaxcc.random._draw import normal as normal
from jaxcc.random._draw import uniform as uniform
