"""Ranks that fail, die or are stopped, and runs that are ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from launching import SAY, SUM, Launcher, is_alive, wait_until_gone

from jaxcc.launch._job import Job, Program
from jaxcc.launch._process import Process

# Rank 1 ends in one of many ways, once all have said who they are; the others would wait for a
# minute.
END = (
    SAY
    + """
say(os.getpid())
while RANK == 1 and len(open(os.environ["LINES"]).readlines()) < RANKS:
    time.sleep(0.01)
if RANK == 1:
    {}
time.sleep(60)
"""
)


@pytest.mark.parametrize(
    ("end", "code", "says"),
    [
        ("raise ValueError('wrong number')", 1, "ValueError: wrong number"),
        ("raise SystemExit", 0, ""),
        ("sys.exit(7)", 7, "exit code 7"),
        ("sys.exit('my last words')", 1, "exit code 1"),
        ("os._exit(9)", 9, "exit code 9"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os.abort()", 134, "killed by SIGABRT"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt"),
    ],
)
def test_the_first_failure_ends_all(end: str, code: int, says: str, launcher: Launcher) -> None:
    script = END.format(end)
    if code == 0:
        script = script.replace("sleep(60)", "sleep(0.5)")
    done = launcher.run(script, "-n", "3")
    assert done.returncode == code, done.stderr
    assert (f"jaxcc run: rank 1 failed: {says}; the others are ended" in done.stderr) == bool(code)
    assert "my last words" in done.stderr or "words" not in end
    wait_until_gone([int(pid) for pid in launcher.lines(3)])


# What peers wait for ends with the rank: their errors are only the consequence of its.
PEERS = (
    SUM
    + """
total(jax.device_put(jnp.arange(jax.device_count()), P("x"))).block_until_ready()
say(os.getpid())
if RANK == int(sys.argv[1]):
    say("ends", time.time())
    {}
try:
    while True:
        total(jax.device_put(jnp.arange(jax.device_count()), P("x"))).block_until_ready()
finally:
    print("peer", RANK, "leaves", flush=True)
"""
)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_traceback_of_the_rank_that_failed_comes_first(rank: int, launcher: Launcher) -> None:
    done = launcher.run(PEERS.format("raise ValueError('boom')"), "-n", "2", args=(str(rank),))
    assert done.returncode == 1
    errors = re.findall(
        r"^\w*Error.*|^Traceback.*|^jaxcc run: rank \d.*", done.stderr, re.MULTILINE
    )
    assert errors[0] == "Traceback (most recent call last):"
    assert errors[1] == "ValueError: boom"
    assert errors[2].startswith(f"jaxcc run: rank {rank} failed: ValueError: boom")
    # The script's own frames only.
    assert "_rank.py" not in done.stderr and "runpy" not in done.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_ends_all(rank: int, launcher: Launcher) -> None:
    script = PEERS.format("os.kill(os.getpid(), signal.SIGKILL)")
    done = launcher.run(script, "-n", "2", args=(str(rank),))
    ended = time.time()
    assert done.returncode == 137
    first = next(line for line in done.stderr.splitlines() if line.startswith("jaxcc run: rank "))
    assert first.startswith(f"jaxcc run: rank {rank} failed: killed by SIGKILL")
    lines = launcher.lines(3)
    wait_until_gone([int(line) for line in lines if line.isdigit()])
    # About a second after it, here with room for a machine that does much else.
    (end,) = [float(line.split()[1]) for line in lines if line.startswith("ends")]
    assert ended - end < 15


@pytest.mark.parametrize("rank", [0, 1])
def test_with_keep_going_a_survivor_works_on(rank: int, launcher: Launcher) -> None:
    script = PEERS.replace("finally:", "except Exception as error:").format(
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    script += "    say('local', float(jnp.arange(4.0).sum()), type(error).__name__)\n"
    done = launcher.run(script, "-n", "2", "--keep-going", args=(str(rank),))
    assert done.returncode == 137
    assert launcher.lines(4)[-1].startswith("local 6.0")
    assert f"rank {rank} failed: killed by SIGKILL" in done.stderr
    # The survivor ended as if nothing had been.
    assert f"rank {1 - rank} failed" not in done.stderr


@pytest.mark.parametrize(
    ("end", "shown"),
    [
        ("sys.exit(7)", []),
        ("sys.exit('last words')", ["[1] last words"]),
        ("1 / 0", ["[1] ZeroDivisionError: division by zero"]),
    ],
)
def test_a_failure_among_all_output(end: str, shown: list[str], launcher: Launcher) -> None:
    script = END.format(f"print('before', file=sys.stderr); {end}")
    done = launcher.run(script, "-n", "2", "--output", "all", "--no-malloc")
    assert done.returncode == (7 if "7" in end else 1)
    lines = done.stderr.splitlines()
    assert lines[0] == "[1] before"
    assert lines[-2:-1] == shown or (not shown and len(lines) == 2)
    assert lines[-1].startswith("jaxcc run: rank 1 failed: ")


def test_of_two_ranks_the_other_is_ended(launcher: Launcher) -> None:
    done = launcher.run(END.format("os._exit(4)"), "-n", "2")
    assert done.returncode == 4
    assert "jaxcc run: rank 1 failed: exit code 4; the others are ended\n" in done.stderr


def test_ranks_that_fail_alike_are_told_in_one_line(launcher: Launcher) -> None:
    script = SAY + "say(RANK)\nwhile len(open(os.environ['LINES']).read()) < 6: pass\n1 / 0"
    done = launcher.run(script, "-n", "3")
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert re.search(r"rank (\d) failed: ZeroDivisionError: division by zero", done.stderr)


def test_a_rank_that_never_imports_jax_leaves_no_other_waiting(launcher: Launcher) -> None:
    done = launcher.run(SAY + "if RANK == 0: import jax", "-n", "2")
    assert done.returncode == 1
    assert "[BACKEND_COORDINATOR] rank 0 of 2 is alone with JAX" in done.stderr
    assert "because: rank 1 ended without importing it" in done.stderr


def test_a_stopped_rank_is_named_and_can_be_ended(launcher: Launcher) -> None:
    script = SAY + "say(RANK, os.getpid())\ntime.sleep(60)"
    process = launcher.start(script, "-n", "2", "--no-malloc")
    pids = {int(rank): int(pid) for rank, pid in map(str.split, launcher.lines(2))}
    os.kill(pids[1], signal.SIGSTOP)
    assert process.stderr is not None
    assert f"rank 1 (process {pids[1]}) is stopped" in process.stderr.readline()
    os.kill(pids[1], signal.SIGCONT)
    assert "rank 1 goes on" in process.stderr.readline()
    os.kill(pids[1], signal.SIGSTOP)
    process.stderr.readline()
    os.kill(pids[0], signal.SIGKILL)
    assert process.wait(30) == 137
    wait_until_gone(list(pids.values()))


TIDY = (
    SAY
    + """
say(os.getpid())
try:
    time.sleep(60)
finally:
    say("tidied", RANK)
"""
)


def test_ctrl_c_reaches_all_ranks(launcher: Launcher) -> None:
    process = launcher.start(TIDY, "-n", "2")
    pids = [int(pid) for pid in launcher.lines(2)]
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.count("KeyboardInterrupt") == 1
    assert sorted(launcher.lines(4)[2:]) == ["tidied 0", "tidied 1"]
    assert not any(map(is_alive, pids))


def test_a_second_ctrl_c_kills(launcher: Launcher) -> None:
    script = SAY + "signal.signal(signal.SIGINT, lambda *_: say('no'))\nsay(os.getpid())\n"
    process = launcher.start(script + "while True: time.sleep(60)", "-n", "2", "--no-malloc")
    pids = [int(pid) for pid in launcher.lines(2)]
    process.send_signal(signal.SIGINT)
    launcher.lines(4)
    assert process.stderr is not None
    assert "ranks 0 and 1 still run; Ctrl-C again kills them" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert not any(map(is_alive, pids))


def test_sigterm_reaches_all_ranks(launcher: Launcher) -> None:
    script = SAY + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n" + TIDY
    process = launcher.start(script, "-n", "2")
    launcher.lines(2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert sorted(launcher.lines(4)[2:]) == ["tidied 0", "tidied 1"]


def test_errors_while_a_run_is_ended_are_told(launcher: Launcher) -> None:
    script = TIDY + "    if RANK == 1: raise OSError('no space for the checkpoint')\n"
    process = launcher.start(script, "-n", "2")
    launcher.lines(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "jaxcc run: rank 1 failed" in err and "OSError: no space for the checkpoint" in err


def test_no_rank_outlives_the_launcher(launcher: Launcher) -> None:
    process = launcher.start(TIDY.replace("say(os", "import jax\nsay(os"), "-n", "2")
    pids = [int(pid) for pid in launcher.lines(2)]
    process.kill()
    wait_until_gone(pids)


def test_what_a_failed_rank_started_ends_with_it(launcher: Launcher) -> None:
    start = "import subprocess; say(subprocess.Popen(['sleep', '60']).pid); raise ValueError"
    done = launcher.run(END.format(start), "-n", "2")
    assert done.returncode == 1
    wait_until_gone([int(pid) for pid in launcher.lines(3)])


def test_a_rank_that_ends_while_it_is_looked_at(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    rank = Process(Job(Program(str(script)), ranks=1), 0, "127.0.0.1:1")
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    # It had not ended when it was asked.
    with patch.object(subprocess.Popen, "poll", return_value=None):
        assert rank.look() is None
    assert (rank.look(), rank.code) == ("ended", 0)
    for source in rank.sources():
        source.close()
