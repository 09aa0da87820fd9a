"""`jaxcc run`: a program on several ranks of this machine."""

from __future__ import annotations

import argparse
import math
import os

from jaxcc._malloc import malloc_environment
from jaxcc.cli._usage import UNREAD, UsageError
from jaxcc.launch import Job, Program, note, run, shares

EPILOG = """\
examples:
  jaxcc run -n 2 train.py --steps 100     two processes, each with one device
  jaxcc run -n 2 -m mypackage.train       a module, as for python -m
  jaxcc run -n 4 --output all train.py    each line behind its rank's number
  timeout 600 jaxcc run -n 2 train.py     an end after ten minutes

Every rank runs the same program, which needs no line more than for one process: jax.devices() are
those of all ranks, and one mesh spans them. Save this as total.py and run it on 3 ranks:

  import jax
  import jax.numpy as jnp
  from jax.sharding import PartitionSpec as P

  jax.set_mesh(jax.make_mesh((jax.device_count(),), ("x",)))
  total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), in_specs=P("x"), out_specs=P()))
  print(total(jax.device_put(jnp.arange(jax.device_count()), P("x"))))

JAX is told of the ranks when the program imports it. A program that mpirun or srun may start, too,
calls jaxcc.init() before it asks for devices. JAXCC_RANK and JAXCC_RANKS say which rank a process
is, without JAX.

What rank 0 prints is shown as it is, and it alone reads the terminal. Of a rank that fails the
traceback comes first, and its peers are ended: by SIGTERM, and after --grace by SIGKILL. Ctrl-C
reaches all ranks; a second one kills them. No rank outlives this command.

exit status: 0 if all ranks end so, else that of the first rank that failed (128 and the signal's
number if a signal ended it); 2 usage\
"""


# More ranks on a core than this, and it is worth saying so.
_CROWDED = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    """What `run` takes."""
    parser.add_argument(
        "-n", "--ranks", type=_count, metavar="N", help="processes to start, one rank each"
    )
    parser.add_argument(
        "--devices-per-rank",
        type=_count,
        default=1,
        metavar="K",
        help="CPU devices (or GPUs) of each rank (default 1)",
    )
    parser.add_argument(
        "--bind",
        choices=("auto", "none"),
        default="auto",
        help="auto: each rank has cores of its own, if there are enough (default); none: all have "
        "all",
    )
    parser.add_argument(
        "--output",
        choices=("rank0", "all"),
        default="rank0",
        help="whose output is shown: rank 0's as it is (default), or all ranks', line by line",
    )
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="let ranks go on when one has failed, with what they can do without it",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="from SIGTERM to SIGKILL, for ranks that are ended (default 1)",
    )
    parser.add_argument(
        "--no-malloc",
        action="store_true",
        help="leave malloc as it is, instead of having ranks keep the memory of large results",
    )
    parser.add_argument("-m", action="store_true", help="PROGRAM is a module, as for python -m")
    parser.add_argument("program", metavar="PROGRAM", help="a Python script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments"
    )


def run_program(args: argparse.Namespace) -> int:
    """Runs it, and returns the exit code of the first rank that failed, or 0."""
    if args.ranks is None:
        raise UsageError(f"say how many ranks, before the program: jaxcc run -n 2 {args.program}")
    if not args.m:
        _check_script(args.program)
    cpus = os.sched_getaffinity(0)
    if args.ranks > _CROWDED * len(cpus):
        note(f"{args.ranks} ranks share {len(cpus)} CPUs, and mostly wait for one another")
    job = Job(
        Program(args.program, tuple(args.arguments), args.m),
        ranks=args.ranks,
        devices=args.devices_per_rank,
        cores=tuple(shares(args.ranks, cpus)) if args.bind == "auto" and args.ranks > 1 else (),
        environment={} if args.no_malloc else _tuned(),
        every_output=args.output == "all",
        keep_going=args.keep_going,
        grace_s=args.grace,
    )
    try:
        return run(job)
    except BrokenPipeError:
        return UNREAD


def _tuned() -> dict[str, str]:
    """The variables of tuned ranks, told of in one line where there are any."""
    variables = malloc_environment()
    if variables:
        note(
            f"ranks keep the memory of large results, by {' and '.join(variables)}; --no-malloc "
            "leaves malloc as it is"
        )
    return variables


def _check_script(path: str) -> None:
    if path == "-":
        raise UsageError("ranks cannot share a program from standard input; save it as a file")
    if os.path.isdir(path):
        if not os.path.exists(os.path.join(path, "__main__.py")):
            raise UsageError(f"{path} is a folder, without a __main__.py that Python could run")
    elif not os.path.exists(path):
        module = path.replace(os.sep, ".").removesuffix(".py")
        fix = f"; is it a module? jaxcc run -n N -m {module}" if not path.endswith(".py") else ""
        raise UsageError(f"no such script: {path}{fix}")
    elif not os.access(path, os.R_OK):
        raise UsageError(f"cannot read {path}")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
