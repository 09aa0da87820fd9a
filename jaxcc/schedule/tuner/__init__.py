"""The autotuner: which schedules there are, what they should cost, and which is the fastest."""

from jaxcc.schedule.tuner._candidates import Candidate as Candidate
from jaxcc.schedule.tuner._candidates import candidates as candidates
from jaxcc.schedule.tuner._cost import Estimate as Estimate
from jaxcc.schedule.tuner._cost import Item as Item
from jaxcc.schedule.tuner._cost import cost as cost
from jaxcc.schedule.tuner._default import find_profile as find_profile
from jaxcc.schedule.tuner._default import profile_for as profile_for
from jaxcc.schedule.tuner._default import save_profile as save_profile
from jaxcc.schedule.tuner._digest import digest as digest
from jaxcc.schedule.tuner._machines import CPU as CPU
from jaxcc.schedule.tuner._machines import DGX2 as DGX2
from jaxcc.schedule.tuner._machines import H100 as H100
from jaxcc.schedule.tuner._machines import H200 as H200
from jaxcc.schedule.tuner._machines import MACHINES as MACHINES
from jaxcc.schedule.tuner._measure import profile_this_machine as profile_this_machine
from jaxcc.schedule.tuner._options import Options as Options
from jaxcc.schedule.tuner._profile import Profile as Profile
from jaxcc.schedule.tuner._profile import Protocol as Protocol
from jaxcc.schedule.tuner._profile import load_profile as load_profile
from jaxcc.schedule.tuner._profile import parse_profile as parse_profile
from jaxcc.schedule.tuner._timing import seconds as seconds
from jaxcc.schedule.tuner._tune import tune as tune
from jaxcc.schedule.tuner._tuned import Trial as Trial
from jaxcc.schedule.tuner._tuned import Tuned as Tuned
