"""`jaxcc doctor`: what this machine has, and which backends work on it.

A probe is a function that answers one question; those that could hang or crash run in a process of
their own. Adding one is a decorated function in `machine`, `software` or `backends`. Importing this
imports no JAX.
"""

from jaxcc.cli.doctor._run import doctor as doctor
