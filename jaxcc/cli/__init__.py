"""The command line: `jaxcc demo`, `jaxcc explain`, `jaxcc check`. Importing it imports no JAX."""

from jaxcc.cli._main import main as main
