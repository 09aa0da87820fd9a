"""What is to be run, and what a launcher tells each of its ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

LAUNCHER = "JAXCC_LAUNCHER"
"""What `jaxcc run` sets for its ranks; a process that one of them starts, and that has its
variables, is no rank itself."""


@dataclass(frozen=True)
class Program:
    """What every rank runs.

    Attributes:
      target: a script's path, or a module's name.
      args: its arguments.
      is_module: whether `target` is a module, as for `python -m`.
    """

    target: str
    args: tuple[str, ...] = ()
    is_module: bool = False


@dataclass(frozen=True)
class Job:
    """A program on a number of ranks.

    Attributes:
      program: what runs.
      ranks: how many processes.
      devices: CPU devices of each, or GPUs.
      cores: CPUs of each rank; empty to leave that to the system.
      environment: variables that ranks have beside those of this process.
      every_output: show what all ranks print, not only what rank 0 does.
      keep_going: ranks go on when another has failed.
      grace_s: from SIGTERM to SIGKILL.
    """

    program: Program
    ranks: int
    devices: int = 1
    cores: tuple[frozenset[int], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    every_output: bool = False
    keep_going: bool = False
    grace_s: float = 1.0


@dataclass(frozen=True)
class Seat:
    """What a rank is told, on its command line.

    Attributes:
      rank: its number.
      ranks: how many there are.
      coordinator: address of the coordination service.
      devices: how many it has.
      cores: CPUs that it runs on; empty for all.
      launcher: the process that it ends with.
      channel: number of the file through which it reports.
      lines: whether its output is read line by line.
      is_module: whether it runs a module.
    """

    rank: int
    ranks: int
    coordinator: str
    devices: int
    cores: tuple[int, ...]
    launcher: int
    channel: int
    lines: bool
    is_module: bool

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Seat:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Report:
    """What a rank says before it ends with an error, while its peers do not notice yet.

    Attributes:
      why: one line.
      text: the traceback, empty if there is none.
      code: the exit code that it will have.
    """

    why: str
    text: str
    code: int

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Report:
        return cls(**json.loads(text))
