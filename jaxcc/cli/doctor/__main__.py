"""A process of the doctor's: `python -m jaxcc.cli.doctor PROBE` says what one probe answers."""

import sys

from jaxcc.cli.doctor._child import say
from jaxcc.cli.doctor._probe import PROBES

if __name__ == "__main__":
    say(PROBES[sys.argv[1]].look)
