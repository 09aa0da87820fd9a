"""The verbs, a file each: what the user calls, the rewrite, and its conditions."""

from jaxcc.schedule.verbs.as_slice import as_slice as as_slice
from jaxcc.schedule.verbs.dead import dead as dead
from jaxcc.schedule.verbs.fuse import fuse as fuse
from jaxcc.schedule.verbs.overlap import overlap as overlap
from jaxcc.schedule.verbs.reorder import reorder as reorder
from jaxcc.schedule.verbs.split import split as split
