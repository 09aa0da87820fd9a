"""The version of jaxcc; pyproject.toml reads it from here. The versions of JAX that it takes."""

__version__ = "0.1.0"

SUPPORTED_JAX = ("0.11.1", "0.13")
"""The first that it takes, and the first that it does not, as in pyproject.toml."""
