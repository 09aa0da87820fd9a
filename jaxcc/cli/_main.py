"""Parses the command line and runs one command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from jaxcc._version import __version__
from jaxcc.cli._devices import force_host_devices
from jaxcc.cli._streams import OutputError, writing
from jaxcc.cli._usage import CLEAN, FINDINGS, INTERRUPTED, UNREAD, USAGE, UsageError

_MIN_RANKS, _MAX_RANKS = 2, 16
_RANKS = f"{_MIN_RANKS} to {_MAX_RANKS}"

_EPILOG = """\
examples:
  jaxcc demo                         check, schedule, fuse, train and time on 2 ranks
  jaxcc demo --ranks 4 --json        the same on 4 ranks, as one JSON document
  jaxcc explain LAYOUT_INDIVISIBLE   what an error code means and how to mend it
  jaxcc check mymodule:f "f32[8,64]" check a @jaxcc.typed function without running it

exit status: 0 clean, 1 findings, 2 usage
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


def _demo(args: argparse.Namespace) -> int:
    force_host_devices(args.ranks)
    from jaxcc.cli.demo import Settings, run

    settings = Settings.quick(args.ranks) if args.quick else Settings(args.ranks)
    return CLEAN if run(settings.with_steps(args.steps), as_json=args.json) else FINDINGS


def _explain(args: argparse.Namespace) -> int:
    from jaxcc.cli._explain import explain

    return explain(args.code, as_json=args.json)


def _check(args: argparse.Namespace) -> int:
    force_host_devices(args.ranks)
    from jaxcc.cli._check import check

    return check(args.target, args.arrays, as_json=args.json)


class _CommandParser(argparse.ArgumentParser):
    """Takes a command's options and arguments in any order, and refuses others with its usage.

    By itself argparse can do so for a parser without commands only.
    """

    _intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._intermixing:
            return super().parse_known_args(args, namespace)
        # This comes back here.
        self._intermixing = True
        try:
            return self.parse_intermixed_args(args, namespace), []
        finally:
            self._intermixing = False


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxcc",
        description="Layouts, schedules and fused collectives for parallel JAX programs.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jaxcc {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="command", required=True, parser_class=_CommandParser
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
        made.add_argument("--json", action="store_true", help="print one JSON document")
        made.set_defaults(run=run)
        return made

    def add_ranks(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--ranks",
            type=_ranks,
            default=2,
            metavar="N",
            help=f"ranks, {_RANKS} (default 2)",
        )

    demo = command(
        "demo",
        _demo,
        "check, schedule, fuse and time an attention tail, real training and an optimizer",
        "jaxcc demo --ranks 2",
    )
    add_ranks(demo)
    demo.add_argument("--steps", type=_steps, metavar="K", help="training steps (default 20)")
    demo.add_argument("--quick", action="store_true", help=argparse.SUPPRESS)

    explain = command(
        "explain",
        _explain,
        "say what an error code means, with a wrong program and the right one, or list all codes",
        "jaxcc explain LAYOUT_INDIVISIBLE",
    )
    explain.add_argument(
        "code", nargs="?", metavar="CODE", help="the code that an error shows in brackets"
    )

    check = command(
        "check",
        _check,
        "check a @jaxcc.typed function without running it",
        'jaxcc check mymodule:tail "f32[4,128,256]" "f32[256,256]"',
    )
    check.add_argument("target", metavar="MODULE:FUNCTION", help="where the function is")
    check.add_argument(
        "arrays", nargs="*", default=[], metavar="TYPE", help="an argument's dtype[whole,shape]"
    )
    add_ranks(check)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command: 0 clean, 1 findings, 2 usage; 2 too where its output cannot be written,
    130 interrupted, 141 when nobody reads its output any longer.

    For help and wrong usage argparse leaves by SystemExit, with these codes.
    """
    try:
        with writing(sys.stdout):
            args = _parser().parse_args(argv)
        return _run(args)
    except OutputError as error:
        if error.gone:
            return UNREAD
        print(f"jaxcc: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("jaxcc: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    try:
        return args.run(args)
    except UsageError as error:
        print(f"jaxcc {args.command}: {error}", file=sys.stderr)
        return USAGE
    except OutputError:
        raise
    except Exception as error:
        from jaxcc.layout import JaxccError

        if not isinstance(error, JaxccError):
            raise
        print(f"jaxcc: {error}", file=sys.stderr)
        return FINDINGS
