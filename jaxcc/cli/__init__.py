"""The command line: `jaxcc demo`, `jaxcc check` and the rest. Importing it imports no JAX."""

from jaxcc.cli._main import main as main
