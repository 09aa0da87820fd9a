"""The options of `jaxcc tune`; importing this imports no JAX."""

from __future__ import annotations

import argparse
import math

EXAMPLE = """\
example:
  jaxcc tune --profile                       measure this machine once, to rank by
  jaxcc tune step:step --mesh dp=2 "f32[1048576]" "f32[1048576]" --budget 30
  jaxcc tune step:step --plot tried.png      with sizes that its annotations state

with step.py in this folder:
  from typing import Annotated

  import jax
  from jaxcc import Local, Replicated, on
  from jaxtyping import Array, Float

  def step(
      g: Annotated[Float[Array, "1048576"], on(dp=Local)],
      w: Annotated[Float[Array, "1048576"], on(dp=Replicated)],
  ) -> Annotated[Float[Array, "1048576"], Replicated]:
      return w - 0.1 * jax.lax.psum(g, "dp")

The function runs on random arrays on this machine's devices. Every schedule that is timed was held
against a run on one rank first; the winner is kept for jaxcc.TypedFunction.autotune. --slice,
--dead and --donate can be given several times.

exit status: 0 tuned, 1 findings, 2 usage\
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """What only `tune` takes."""
    parser.add_argument(
        "--budget",
        type=_seconds,
        default=60.0,
        metavar="S",
        help="seconds for compiling and timing (default 60)",
    )
    for option, what in (
        ("slice", "inputs and results that may become Sliced, such as an optimizer's state"),
        ("dead", "results that nobody reads, to be left out"),
        ("donate", "inputs whose buffers a call may take for its results"),
    ):
        parser.add_argument(
            f"--{option}",
            type=_names,
            action="extend",
            default=[],
            metavar="NAME[,NAME...]",
            help=what,
        )
    parser.add_argument("--plot", metavar="FILE", help="draw the times to a .png, .svg or .pdf")
    parser.add_argument(
        "--no-cache", action="store_true", help="tune anew, and keep nothing for later runs"
    )
    parser.add_argument(
        "--machine",
        metavar="NAME|FILE",
        help="the machine to rank by: dgx2, h100, h200, cpu, or a file with a profile",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="measure this machine first, and keep that to rank by; it may stand alone",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names such as m,v")
    return names
