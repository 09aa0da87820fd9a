"""Every use of `jax.extend` and `jax._src`, and every difference between supported JAX versions.

JAX promises nothing about `jax.extend` or its private modules, and primitives change their names
between releases; all other modules see only what is defined here.
"""

from __future__ import annotations

import jax

from jaxcc._compat._bits import counted_bits as counted_bits
from jaxcc._compat._bits import counters as counters
from jaxcc._compat._bits import counts_bits as counts_bits
from jaxcc._compat._chains import Links as Links
from jaxcc._compat._chains import UnchainedError as UnchainedError
from jaxcc._compat._chains import chained as chained
from jaxcc._compat._jaxprs import CALLING as CALLING
from jaxcc._compat._jaxprs import CALLS as CALLS
from jaxcc._compat._jaxprs import IDENTITIES as IDENTITIES
from jaxcc._compat._jaxprs import Jaxpr as Jaxpr
from jaxcc._compat._jaxprs import JaxprEqn as JaxprEqn
from jaxcc._compat._jaxprs import Literal as Literal
from jaxcc._compat._jaxprs import Primitive as Primitive
from jaxcc._compat._jaxprs import Var as Var
from jaxcc._compat._jaxprs import all_eqns as all_eqns
from jaxcc._compat._jaxprs import allow_on_many_devices as allow_on_many_devices
from jaxcc._compat._jaxprs import axis_names as axis_names
from jaxcc._compat._jaxprs import bind as bind
from jaxcc._compat._jaxprs import called as called
from jaxcc._compat._jaxprs import identity_primitive as identity_primitive
from jaxcc._compat._jaxprs import inner_jaxprs as inner_jaxprs
from jaxcc._compat._jaxprs import jaxpr_consts as jaxpr_consts
from jaxcc._compat._jaxprs import literal_value as literal_value
from jaxcc._compat._jaxprs import op_name as op_name
from jaxcc._compat._jaxprs import open_jaxpr as open_jaxpr
from jaxcc._compat._jaxprs import scan_counts as scan_counts
from jaxcc._compat._jaxprs import traced_primitive as traced_primitive
from jaxcc._compat._jaxprs import with_operation as with_operation
from jaxcc._compat._linear import Transforms as Transforms
from jaxcc._compat._linear import with_transforms as with_transforms
from jaxcc._compat._lines import SourceLine as SourceLine
from jaxcc._compat._lines import at_line_of as at_line_of
from jaxcc._compat._lines import is_transposed as is_transposed
from jaxcc._compat._lines import source_line as source_line
from jaxcc._compat._lowering import before_lowering as before_lowering
from jaxcc._compat._processes import KeyValueStore as KeyValueStore
from jaxcc._compat._processes import backend_started as backend_started
from jaxcc._compat._processes import join as join
from jaxcc._compat._processes import key_value_store as key_value_store
from jaxcc._compat._processes import start_on_cpu as start_on_cpu
from jaxcc._compat._traces import current_mesh as current_mesh
from jaxcc._compat._traces import outside_all_traces as outside_all_traces
from jaxcc._compat._traces import traced_for as traced_for
from jaxcc._compat._types import as_varying_as as as_varying_as
from jaxcc._compat._types import is_tracer as is_tracer
from jaxcc._compat._types import result_type as result_type
from jaxcc._compat._types import type_of as type_of
from jaxcc._compat._types import unify_varying as unify_varying
from jaxcc._compat._types import varying_axes as varying_axes
from jaxcc._compat._types import varying_type as varying_type

JAX_VERSION: tuple[int, ...] = tuple(int(p) for p in jax.__version__.split(".")[:3])
