"""The autotuner: which schedules there are, what they should cost, and which is the fastest."""

from jaxcc.schedule.tuner._candidates import Candidate as Candidate
from jaxcc.schedule.tuner._candidates import candidates as candidates
from jaxcc.schedule.tuner._digest import digest as digest
