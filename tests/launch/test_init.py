"""`jaxcc.init`: processes that something else than `jaxcc run` starts become ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig

import pytest
from launching import Launcher, free_port

import jaxcc

MPIRUN = shutil.which("mpirun", path=sysconfig.get_path("scripts")) or "mpirun"
SCRIPT = """
import json, sys
import jaxcc
jaxcc.init(**json.loads(sys.argv[1]))
jaxcc.init()
import jax, numpy as np
from jax.sharding import PartitionSpec as P
jax.set_mesh(jax.make_mesh((jax.device_count(),), ("x",)))
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), in_specs=P("x"), out_specs=P()))
mine = np.float32([10 ** jax.process_index()])
rows = jax.NamedSharding(jax.sharding.get_mesh(), P("x"))
each = jax.make_array_from_process_local_data(rows, mine)
print("answer", jax.process_index(), jax.process_count(), int(total(each)[0]))
"""


def start(
    variables: dict[str, str], arguments: dict[str, object] | None = None, before: str = ""
) -> subprocess.Popen[str]:
    """A process with one device that runs the script, its output all in one."""
    return subprocess.Popen(
        [sys.executable, "-c", before + SCRIPT, json.dumps(arguments or {})],
        env={**os.environ, "XLA_FLAGS": "", "JAXCC_TIMEOUT_S": "60", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def answers(*outputs: str) -> list[str]:
    lines = [line for output in outputs for line in output.splitlines()]
    return sorted(line for line in lines if line.startswith("answer"))


def ended(processes: list[subprocess.Popen[str]]) -> list[str]:
    """The output of each; fails if one has failed."""
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    return outputs


def slurm(rank: int) -> dict[str, str]:
    return {
        **{"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
        **{"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "node1"},
        **{"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        "JAX_COORDINATOR_PORT": os.environ["PORT"],
    }


@pytest.mark.parametrize("by", ["srun", "variables", "arguments"])
def test_processes_become_ranks(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", str(free_port()))
    address = f"127.0.0.1:{os.environ['PORT']}"
    processes = []
    for rank in range(2):
        if by == "srun":
            processes.append(start(slurm(rank)))
        elif by == "variables":
            told = {"JAXCC_COORDINATOR": address, "JAXCC_RANK": str(rank), "JAXCC_RANKS": "2"}
            processes.append(start(told))
        else:
            # They count more than variables do.
            given = {"coordinator": address, "ranks": 2, "rank": rank}
            processes.append(start(slurm(1), given))
    assert answers(*ended(processes)) == ["answer 0 2 11", "answer 1 2 11"]


def test_under_mpirun() -> None:
    options = ["--allow-run-as-root", "--oversubscribe", "--timeout", "120"]
    done = subprocess.run(
        [MPIRUN, "-n", "2", *options, sys.executable, "-c", SCRIPT, "{}"],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert answers(done.stdout) == ["answer 0 2 11", "answer 1 2 11"]


def test_under_jaxcc_run_all_is_done(launcher: Launcher) -> None:
    done = launcher.run(SCRIPT, "-n", "2", "--output", "all", args=("{}",))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("answer 0 2 11") == done.stdout.count("answer 1 2 11") == 1


def test_under_jaxcc_run_a_program_may_call_jaxs_own_function(launcher: Launcher) -> None:
    code = SCRIPT.replace("jaxcc.init(", "import jax; jax.distributed.initialize(")
    done = launcher.run(code, "-n", "2", args=('{"num_processes": 2}',))
    assert done.returncode == 0, done.stderr
    assert "answer 0 2 11" in done.stdout
    done = launcher.run(code, "-n", "2", args=('{"num_processes": 3}',))
    assert done.returncode == 1
    assert "but this is rank 0 of 2" in done.stderr or "but this is rank 1 of 2" in done.stderr


def test_alone_it_does_nothing() -> None:
    assert answers(*ended([start({})])) == ["answer 0 1 1"]


@pytest.mark.parametrize("arguments", [{}, {"coordinator": "127.0.0.1:1", "ranks": 2, "rank": 1}])
def test_after_jax_has_started_it_is_too_late(
    arguments: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "1")
    process = start(slurm(1), arguments, before="import jax; jax.devices()")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "[BACKEND_STARTED]" in output and "rank 1 of 2" in output
    assert "fix: call jaxcc.init() before" in output


def test_a_rank_that_waits_in_vain_says_for_whom() -> None:
    told = {"JAXCC_COORDINATOR": f"127.0.0.1:{free_port()}", "JAXCC_RANK": "0"}
    process = start({**told, "JAXCC_RANKS": "3", "JAXCC_TIMEOUT_S": "1"})
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "[BACKEND_COORDINATOR] rank 0 of 3 did not meet the others" in output
    assert "because: ranks 1 and 2 did not come" in output


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"ranks": 2, "rank": 0}, TypeError, "coordinator=, ranks= and rank= together"),
        ({"coordinator": "host", "ranks": 2, "rank": 0}, ValueError, "'host' is not 'host:port'"),
        ({"coordinator": "host:x", "ranks": 2, "rank": 0}, ValueError, "not 'host:port'"),
        ({"coordinator": "host:65536", "ranks": 2, "rank": 0}, ValueError, "not 'host:port'"),
        ({"coordinator": 1234, "ranks": 2, "rank": 0}, ValueError, "not 'host:port'"),
        ({"coordinator": "host:1", "ranks": "2", "rank": 0}, ValueError, "not integers"),
        ({"coordinator": "host:1", "ranks": 2, "rank": 0.5}, ValueError, "not integers"),
        ({"coordinator": "host:1", "ranks": 2, "rank": 2}, ValueError, "rank=2 is not one of 2"),
        ({"coordinator": "host:1", "ranks": 0, "rank": 0}, ValueError, "rank=0 is not one of 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as raised:
        jaxcc.init(**arguments)  # pyright: ignore[reportArgumentType]
    assert says in str(raised.value)


# Rank 0 starts a sum, which is slow enough that JAX does not wait for it, and ends.
PENDING = (
    SCRIPT
    + """
import time
inner = lambda x: jax.lax.psum((x @ x.T).sum(), "x")
slow = jax.jit(jax.shard_map(inner, in_specs=P("x"), out_specs=P()))
local = np.ones((500, 500), np.float32)
whole = jax.make_array_from_process_local_data(rows, local)
slow(whole).block_until_ready()
if jax.process_index() == 0:
    pending = slow(whole)
    print("answer left", not pending.is_ready())
"""
)


def test_work_that_still_runs_at_the_end_is_drained(launcher: Launcher) -> None:
    code = PENDING + "else:\n    time.sleep(1)\n    print('answer sum', float(slow(whole)))"
    done = launcher.run(code, "-n", "2", "--output", "all", args=("{}",))
    assert done.returncode == 0, done.stderr
    assert "[0] answer left True\n" in done.stdout
    assert f"[1] answer sum {2 * 500.0**3}\n" in done.stdout
    assert "failed" not in done.stderr


def test_work_that_cannot_end_is_reported(launcher: Launcher) -> None:
    done = launcher.run(PENDING, "-n", "2", args=("{}",))
    assert done.returncode == 0, done.stderr
    assert "answer left True\n" in done.stdout
    assert "jaxcc: rank 0: work that still ran when the program ended failed:" in done.stderr
