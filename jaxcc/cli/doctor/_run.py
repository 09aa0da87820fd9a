"""Asks every probe and shows what they answer."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from jaxcc._version import __version__
from jaxcc.cli._output import Output
from jaxcc.cli._usage import CLEAN, FINDINGS
from jaxcc.cli.doctor import backends, machine, software
from jaxcc.cli.doctor._child import Child
from jaxcc.cli.doctor._probe import FAILS, OFF, OK, PROBES, Answer, Probe

_ROOMS = (machine.ROOM, software.ROOM, backends.ROOM)
_POLL_S = 0.02
_STYLES = {OK: "green", OFF: "yellow", FAILS: "bold red"}


def doctor(*, as_json: bool) -> int:
    """Runs all probes: 0 if all that should work here does, 1 if something does not."""
    output = Output(as_json)
    start = time.perf_counter()
    with output.working("looking at this machine") as tell:
        answers = _ask(PROBES, tell)
    findings = [name for name, answer in answers.items() if answer.state == FAILS]
    output.show(_table(answers))
    if findings:
        output.show(f"should work here, and does not: {', '.join(findings)}", style="bold red")
    else:
        output.show("all that should work here works")
    output.document(
        {
            "jaxcc": __version__,
            "findings": findings,
            "seconds": time.perf_counter() - start,
            "probes": [
                {"name": name, "room": PROBES[name].room, **answer.as_json()}
                for name, answer in answers.items()
            ],
        }
    )
    return FINDINGS if findings else CLEAN


def _ask(probes: Mapping[str, Probe], tell: Callable[[str], None]) -> dict[str, Answer]:
    """Every probe's answer, room by room; as many at a time as there are cores."""
    answers: dict[str, Answer] = {}
    waiting = [name for name, one in probes.items() if one.limit_s is not None]
    running: dict[str, Child] = {}
    with _ended(running):
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                name = waiting.pop(0)
                running[name] = Child("jaxcc.cli.doctor", name, leads=True)
            for name, child in list(running.items()):
                limit = probes[name].limit_s
                if child.status is not None or (limit is not None and child.seconds > limit):
                    answers[name] = child.end()
                    del running[name]
                    tell(f"{len(answers)} of {len(answers) + len(running) + len(waiting)}, {name}")
            time.sleep(_POLL_S)
    for name, one in probes.items():
        if one.limit_s is None:
            answers[name] = _look(one)
    ordered = sorted(probes.items(), key=lambda item: _ROOMS.index(item[1].room))
    return {name: one.judge(answers[name]) for name, one in ordered}


@contextlib.contextmanager
def _ended(running: dict[str, Child]) -> Iterator[None]:
    """Whatever happens, Ctrl-C too, no process is left."""
    try:
        yield
    finally:
        for child in running.values():
            child.end()


def _look(probe: Probe) -> Answer:
    try:
        return probe.look()
    except Exception as error:
        return Answer.of_error(error)


def _table(answers: Mapping[str, Answer]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_column(overflow="fold")
    for room in _ROOMS:
        table.add_row(Text(room, style="bold"), "", "")
        for name, answer in answers.items():
            if PROBES[name].room == room:
                state = Text(answer.state, style=_STYLES[answer.state])
                table.add_row(f"  {name}", state, Text("\n".join(_lines(answer))))
        table.add_section()
    return table


def _lines(answer: Answer) -> list[str]:
    lines = [answer.what]
    if answer.state != OK:
        lines += [f"because: {answer.because}"] * bool(answer.because)
        lines += [f"fix: {fix}" for fix in answer.fixes]
    return lines
