"""Processes as ranks: `jaxcc run`, which starts them, and `jaxcc.init`, which finds who did.

Importing this imports no JAX.
"""

from jaxcc.launch._cores import shares as shares
from jaxcc.launch._job import Job as Job
from jaxcc.launch._job import Program as Program
from jaxcc.launch._output import note as note
from jaxcc.launch._watch import run as run
