"""Ranks meet, or all that came say why not."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from launching import free_port

from jaxcc.launch._meeting import Missed, meet


def outcomes(port: int, calls: list[tuple[int, int]], limit_s: float) -> list[str]:
    """What becomes of each (ranks, rank) that calls `meet`: why it failed, or nothing."""

    def one(call: tuple[int, int]) -> str:
        try:
            meet(f"127.0.0.1:{port}", *call, limit_s)
        except Missed as missed:
            return str(missed)
        return ""

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


def test_all_come_in_any_order() -> None:
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        assert outcomes(free_port(), [(4, rank) for rank in order], 30) == [""] * 4


def test_all_that_came_hear_who_did_not() -> None:
    came = [(5, 0), (5, 2), (5, 4)]
    assert outcomes(free_port(), came, 1) == ["ranks 1 and 3 did not come"] * 3


def test_without_rank_0_nobody_listens() -> None:
    (why,) = outcomes(free_port(), [(2, 1)], 0.3)
    assert why == "Connection refused"


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([(3, 0), (3, 1), (3, 1)], "two processes were told that they are rank 1"),
        ([(2, 0), (3, 1)], "rank 1 was told of 3 ranks, rank 0 of 2"),
    ],
)
def test_contradictions_end_it_at_once(calls: list[tuple[int, int]], says: str) -> None:
    assert outcomes(free_port(), calls, 60) == [says] * len(calls)


def test_a_port_that_is_taken() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        (why,) = outcomes(port, [(2, 0)], 60)
    assert why == f"rank 0 cannot listen at port {port}: Address already in use"


def test_strangers_are_no_ranks() -> None:
    port = free_port()

    def strange() -> None:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as there:
                    there.sendall(b"GET / HTTP/1.1\r\n\r\n")
                    return
            except ConnectionRefusedError:
                pass

    with ThreadPoolExecutor(1) as threads:
        stranger = threads.submit(strange)
        assert outcomes(port, [(2, 0)], 1.5) == ["rank 1 did not come"]
        stranger.result()
