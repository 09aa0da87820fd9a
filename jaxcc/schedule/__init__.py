"""How: schedules, their verbs, and the functions that they compile to."""

from jaxcc.schedule._compile import BACKENDS as BACKENDS
from jaxcc.schedule._compile import Compiled as Compiled
from jaxcc.schedule._fallback import UnfusedWarning as UnfusedWarning
from jaxcc.schedule._fallback import warn_unfused as warn_unfused
from jaxcc.schedule._fused import aliases_of as aliases_of
from jaxcc.schedule._kernel import KernelPlan as KernelPlan
from jaxcc.schedule._kernel import TensorPlan as TensorPlan
from jaxcc.schedule._kernel import plan_for_any_size as plan_for_any_size
from jaxcc.schedule._loaded import LoadedKernel as LoadedKernel
from jaxcc.schedule._place import place as place
from jaxcc.schedule._place import shard_mapped as shard_mapped
from jaxcc.schedule._place import sharding_of as sharding_of
from jaxcc.schedule._schedule import Schedule as Schedule
from jaxcc.schedule._source import Source as Source
from jaxcc.schedule._source import positional as positional
from jaxcc.schedule._step import Step as Step
from jaxcc.schedule._tactics import Tactic as Tactic
from jaxcc.schedule._tactics import attempt as attempt
from jaxcc.schedule._tactics import repeat as repeat
from jaxcc.schedule._tactics import sequence as sequence
from jaxcc.schedule.verbs._pointwise import POINTWISE as POINTWISE
