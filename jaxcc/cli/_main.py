"""Parses the command line and runs one command."""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from jaxcc._version import __version__
from jaxcc.cli import _run as _run_options
from jaxcc.cli import _tune_options
from jaxcc.cli._devices import force_host_devices
from jaxcc.cli._streams import OutputError, write_document, writing
from jaxcc.cli._usage import CLEAN, FINDINGS, INTERRUPTED, UNREAD, USAGE, UsageError

_MIN_RANKS, _MAX_RANKS = 2, 16
_RANKS = f"{_MIN_RANKS} to {_MAX_RANKS}"

_EPILOG = """\
examples:
  jaxcc demo                         check, schedule, fuse, train and time on 2 ranks
  jaxcc demo --ranks 4 --json        the same on 4 ranks, as one JSON document
  jaxcc explain LAYOUT_INDIVISIBLE   what an error code means and how to mend it
  jaxcc explain megatron             what Megatron's functions are here
  jaxcc check --help                 how to check a function for a mesh, with a program to try
  jaxcc tune --help                  how to find a function's fastest schedule on this machine
  jaxcc run -n 2 train.py            a program on two processes of this machine
  jaxcc doctor                       what works on this machine, and what does not and why

exit status: 0 clean, 1 findings, 2 usage; with --json the document then has an "error"
"""


_CHECK_EXAMPLE = """\
example:
  jaxcc check layer:layer --mesh tp=4
  jaxcc check layer:layer --mesh dp=1,tp=2 "f32[8,64]" "f32[64,32]" --json

with layer.py in this folder:
  from typing import Annotated

  import jax
  from jaxcc import Replicated, Sliced, on
  from jaxtyping import Array, Float

  def layer(
      x: Annotated[Float[Array, "8 64"], on(tp=Sliced(1))],
      w: Annotated[Float[Array, "64 32"], on(tp=Sliced(0))],
  ) -> Annotated[Float[Array, "8 32"], Replicated]:
      return jax.lax.psum(x @ w, "tp")

A function decorated with @jaxcc.typed may have layouts and a mesh of its own. For pytrees, static
arguments or gradients, name a function without parameters that returns what jaxcc.check returns:

  def step_report():
      return jaxcc.check(step, params, batch, mesh=mesh, in_layouts=(...), grad=0)

exit status: 0 clean, 1 findings, 2 usage\
"""


def _is_number(text: str, low: int, high: int) -> bool:
    return text.isascii() and text.isdecimal() and low <= int(text) <= high


def _ranks(text: str) -> int:
    if not _is_number(text, _MIN_RANKS, _MAX_RANKS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of ranks, {_RANKS}")
    return int(text)


def _steps(text: str) -> int:
    if not _is_number(text, 3, 1000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps from 3 to 1000")
    return int(text)


def _mesh(text: str) -> dict[str, int]:
    """`tp=4,dp=2`: ranks along each axis, in the mesh's order."""
    sizes: dict[str, int] = {}
    for part in text.split(","):
        axis, _, size = part.partition("=")
        axis = axis.strip()
        if not axis.isidentifier() or axis in sizes or not _is_number(size.strip(), 1, 1 << 20):
            raise argparse.ArgumentTypeError(f"{text!r} is not a mesh such as tp=4 or dp=2,tp=4")
        sizes[axis] = int(size)
    return sizes


class _OneMesh(argparse.Action):
    """Joins the axes of several options: `--mesh dp=2 --mesh tp=4` is `--mesh dp=2,tp=4`."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        sizes: dict[str, int] = dict(getattr(namespace, self.dest) or {})
        twice = [axis for axis in values if axis in sizes]
        if twice:
            raise argparse.ArgumentError(self, f"the axis {twice[0]!r} is given twice")
        setattr(namespace, self.dest, sizes | values)


def _demo(args: argparse.Namespace) -> int:
    force_host_devices(args.ranks)
    from jaxcc.cli.demo import Settings, run

    settings = Settings.quick(args.ranks) if args.quick else Settings(args.ranks)
    return CLEAN if run(settings.with_steps(args.steps), as_json=args.json) else FINDINGS


def _explain(args: argparse.Namespace) -> int:
    from jaxcc.cli._explain import explain

    return explain(args.topic, as_json=args.json)


def _doctor(args: argparse.Namespace) -> int:
    from jaxcc.cli.doctor import doctor

    return doctor(as_json=args.json)


def _check(args: argparse.Namespace) -> int:
    # A module may make a mesh as it is imported.
    wanted = math.prod(args.mesh.values()) if args.mesh else _MIN_RANKS
    force_host_devices(args.ranks or min(wanted, _MAX_RANKS))
    from jaxcc.cli._check import check

    return check(args.target, args.arrays, args.mesh, as_json=args.json)


def _tune(args: argparse.Namespace) -> int:
    wanted = math.prod(args.mesh.values()) if args.mesh else _MIN_RANKS
    force_host_devices(args.ranks or min(wanted, _MAX_RANKS))
    from jaxcc.cli._tune import Options, tune

    options = Options(
        budget_s=args.budget,
        slice=args.slice,
        dead=args.dead,
        donate=args.donate,
        cache=not args.no_cache,
        profile=args.profile,
        machine=args.machine,
        plot=args.plot,
    )
    return tune(args.target, args.arrays, args.mesh, options, as_json=args.json)


class _Parser(argparse.ArgumentParser):
    """Refuses with its usage, and with a document where one is wanted."""

    def __init__(self, *args: Any, as_json: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._as_json = as_json

    def error(self, message: str) -> NoReturn:
        if self._as_json:
            write_document({"error": message})
        super().error(message)


class _CommandParser(_Parser):
    """Takes a command's options and arguments in any order, and refuses others with its usage.

    By itself argparse can do so for a parser without commands only.
    """

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        # A program's own arguments are not to be mixed with the command's.
        if any(action.nargs == argparse.REMAINDER for action in self._actions):
            known, others = super().parse_known_args(args, namespace)
            if others:
                self.error(f"unrecognized arguments: {' '.join(others)}")
            return known, []
        # This comes back here.
        self._intermixing = True
        try:
            return self.parse_intermixed_args(args, namespace), []
        finally:
            self._intermixing = False


def _parser(as_json: bool) -> argparse.ArgumentParser:
    parser = _Parser(
        as_json=as_json,
        prog="jaxcc",
        description="Layouts, schedules and fused collectives for parallel JAX programs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxcc {__version__}")
    parser_class: Any = functools.partial(_CommandParser, as_json=as_json)
    commands = parser.add_subparsers(
        dest="command", metavar="command", required=True, parser_class=parser_class
    )

    def command(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, example: str
    ) -> argparse.ArgumentParser:
        made = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == "run":
            made.set_defaults(json=False)
        else:
            made.add_argument("--json", action="store_true", help="print one JSON document")
        made.set_defaults(run=run)
        return made

    demo = command(
        "demo",
        _demo,
        "check, schedule, fuse and time an attention tail, real training and an optimizer",
        "jaxcc demo --ranks 2",
    )
    demo.add_argument(
        "--ranks", type=_ranks, default=2, metavar="N", help=f"ranks, {_RANKS} (default 2)"
    )
    demo.add_argument("--steps", type=_steps, metavar="K", help="training steps (default 20)")
    demo.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)

    explain = command(
        "explain",
        _explain,
        "say what an error code means, with a wrong program and the right one; or show a page of "
        "the guide, or list all",
        "jaxcc explain LAYOUT_INDIVISIBLE",
    )
    explain.add_argument(
        "topic",
        nargs="?",
        metavar="CODE",
        help="the code that an error shows in brackets, or a page: megatron, spmd_types, psum, "
        "shard_map",
    )

    check = command(
        "check",
        _check,
        "check a function for a mesh, without running it and without devices",
        "jaxcc check layer:layer --mesh tp=4",
    )
    check.epilog = _CHECK_EXAMPLE
    check.add_argument(
        "target", metavar="MODULE:FUNCTION", help="where the function is, or MODULE:INSTANCE.METHOD"
    )
    _add_function(check, "check for")

    tune = command(
        "tune",
        _tune,
        "find the fastest schedule of a function on this machine's devices",
        "jaxcc tune step:step --mesh dp=2",
    )
    tune.epilog = _tune_options.EXAMPLE
    tune.add_argument("target", nargs="?", metavar="MODULE:FUNCTION", help="where the function is")
    _add_function(tune, "run on")
    _tune_options.add_options(tune)

    command(
        "doctor",
        _doctor,
        "say what this machine has and which backends work on it, and how to mend those that do "
        "not; each is run once",
        "jaxcc doctor",
    )

    run = command(
        "run",
        _run_options.run_program,
        "run a program on several ranks of this machine, a process each",
        "",
    )
    run.usage = "jaxcc run -n N [options] [-m] PROGRAM ..."
    run.epilog = _run_options.EPILOG
    _run_options.add_options(run)
    return parser


def _add_function(parser: argparse.ArgumentParser, purpose: str) -> None:
    """Arguments and mesh of a function."""
    parser.add_argument(
        "arrays",
        nargs="*",
        default=[],
        metavar="TYPE",
        help="an argument's dtype[whole,shape], or name=dtype[...]; without any, the annotations' "
        "own sizes",
    )
    parser.add_argument(
        "--mesh",
        type=_mesh,
        action=_OneMesh,
        metavar="AXIS=N[,AXIS=N...]",
        help=f"the mesh to {purpose}, in the place of the function's own",
    )
    parser.add_argument(
        "--ranks",
        type=_ranks,
        metavar="N",
        help=f"CPU devices for a module that makes a mesh, {_RANKS} (default: as in --mesh)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command: 0 clean, 1 findings, 2 usage; 2 too where its output cannot be written,
    130 interrupted, 141 when nobody reads its output any longer.

    For help and wrong usage argparse leaves by SystemExit, with these codes.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        with writing(sys.stdout):
            args = _parser(_wants_json(argv)).parse_args(argv)
        return _run(args)
    except OutputError as error:
        if error.gone:
            return UNREAD
        print(f"jaxcc: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("jaxcc: interrupted", file=sys.stderr)
        return INTERRUPTED


def _wants_json(argv: Sequence[str]) -> bool:
    """Before they are parsed; the arguments of `run` are its program's."""
    return "--json" in argv and argv[0] != "run"


def _run(args: argparse.Namespace) -> int:
    try:
        return args.run(args)
    except UsageError as error:
        print(f"jaxcc {args.command}: {error}", file=sys.stderr)
        if args.json:
            write_document({"error": str(error)})
        return USAGE
    except OutputError:
        raise
    except Exception as error:
        from jaxcc.cli._output import findings_document
        from jaxcc.layout import JaxccError

        if not isinstance(error, JaxccError):
            raise
        print(f"jaxcc: {error}", file=sys.stderr)
        if args.json:
            write_document({"error": str(error), "findings": findings_document(error)})
        return FINDINGS
