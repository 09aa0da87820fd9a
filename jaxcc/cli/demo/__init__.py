"""`jaxcc demo`: an attention tail, training and an optimizer, against references and XLA."""

from jaxcc.cli.demo._run import run as run
from jaxcc.cli.demo.settings import Settings as Settings
