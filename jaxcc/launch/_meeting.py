"""Ranks that nobody watches meet at the coordinator's address before JAX does.

JAX ends the process where ranks are missing; here an error says which.
"""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import ExitStack, suppress

from jaxcc.launch._failures import named

LOOPBACK = ("127.0.0.1", "localhost")
_GO = "go"
_AGAIN_S = 0.05
# What somebody says who is no rank is not waited for.
_HELLO_S = 2.0


class Missed(Exception):
    """Why the ranks did not meet."""


def meet(address: str, ranks: int, rank: int, limit_s: float) -> None:
    """Returns when all ranks have called this with the same address and number of ranks.

    Raises:
      Missed: on all that came, after `limit_s` seconds or when it is clear that they will not meet.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + limit_s
    if rank == 0:
        _receive(host, int(port), ranks, until)
    else:
        _come(host.strip("[]"), int(port), ranks, rank, until)


def _receive(host: str, port: int, ranks: int, until: float) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(_server(host, port))
        came: dict[int, socket.socket] = {}
        problem = ""
        while len(came) < ranks - 1 and not problem:
            missing = sorted({*range(1, ranks)} - {*came})
            problem = f"{named(missing)} did not come"
            server.settimeout(max(0.0, until - time.monotonic()))
            with suppress(OSError):
                guest = stack.enter_context(server.accept()[0])
                problem = _greet(guest, ranks, came)
        for guest in came.values():
            with suppress(OSError):
                guest.sendall(f"{problem or _GO}\n".encode())
    if problem:
        raise Missed(problem)


def _server(host: str, port: int) -> socket.socket:
    try:
        if host in LOOPBACK:
            return socket.create_server((host, port))
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise Missed(f"rank 0 cannot listen at port {port}: {why}") from None


def _greet(guest: socket.socket, ranks: int, came: dict[int, socket.socket]) -> str:
    """Takes a rank in; what is wrong with it, or nothing, too, if it is none."""
    hello = re.fullmatch(r"jaxcc (\d{1,9}) (\d{1,9})", _line(guest, _HELLO_S), re.ASCII)
    if hello is None:
        return ""
    rank, its_ranks = map(int, hello.groups())
    if its_ranks != ranks:
        problem = f"rank {rank} was told of {its_ranks} ranks, rank 0 of {ranks}"
    elif rank in came or not 0 < rank < ranks:
        problem = f"two processes were told that they are rank {rank}"
    else:
        problem = ""
    # One that is refused is told so, too.
    came[-len(came) if problem else rank] = guest
    return problem


def _come(host: str, port: int, ranks: int, rank: int, until: float) -> None:
    why = "nobody listens there"
    while time.monotonic() < until:
        try:
            with socket.create_connection(
                (host, port), max(_AGAIN_S, until - time.monotonic())
            ) as there:
                there.sendall(f"jaxcc {rank} {ranks}\n".encode())
                answer = _line(there, max(_AGAIN_S, until + _HELLO_S - time.monotonic()))
        except OSError as error:
            why = f"{error.strerror or error}"
        else:
            if answer == _GO:
                return
            if answer:
                raise Missed(answer)
            why = "who listens there is not rank 0"
        time.sleep(_AGAIN_S)
    raise Missed(why)


def _line(peer: socket.socket, limit_s: float) -> str:
    peer.settimeout(limit_s)
    try:
        with peer.makefile() as lines:
            return lines.readline(1 << 12).rstrip("\n")
    except (OSError, UnicodeDecodeError):
        return ""
