"""`python -m jaxcc`: the command line."""

import sys

from jaxcc.cli import main

if __name__ == "__main__":
    sys.exit(main())
