"""`jaxcc doctor` as a user runs it, on this machine, in a broken environment, and interrupted."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxcc._version import SUPPORTED_JAX
from jaxcc.cli.doctor import _run
from jaxcc.cli.doctor._child import Child, together
from jaxcc.cli.doctor._probe import FAILS, OFF, OK, PROBES, Answer

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "jaxcc", "doctor"]


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    return kept | changes


def doctor(*args: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=280,
    )


def found(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(done.stdout)["probes"]}


def test_this_machine() -> None:
    done = doctor("--json", GLIBC_TUNABLES="glibc.malloc.arena_max=2")
    assert done.returncode == 0, done.stdout + done.stderr
    document, probes = json.loads(done.stdout), found(done)
    assert document["findings"] == [] and list(probes) == [
        one["name"] for one in document["probes"]
    ]
    assert {one["room"] for one in probes.values()} == {"machine", "software", "backends"}
    for name in ("xla in one process", "host in one process"):
        assert probes[name]["state"] == OK and probes[name]["facts"]["ranks"] == 2
    for name in ("xla between processes", "host between processes"):
        assert probes[name]["state"] == OK and probes[name]["facts"]["processes"] == 2
    assert probes["C++ kernels"]["state"] == OK and probes["C++ kernels"]["facts"]["compile_s"] > 0
    has = {
        "mpi": all(map(importlib.util.find_spec, ("mpi4py", "mpi4jax")))
        and shutil.which("mpirun", path=sysconfig.get_path("scripts")),
        "CUDA kernels": importlib.util.find_spec("nvidia") is not None,
    }
    for name, there in has.items():
        assert probes[name]["state"] == (OK if there else OFF), probes[name]
    assert probes["cores"]["facts"]["usable"] == len(os.sched_getaffinity(0))
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert abs(probes["memory"]["facts"]["bytes"] / pages - 1) < 0.01
    assert probes["JAX"]["facts"]["jax"] == jax.__version__
    assert probes["malloc"]["state"] == OFF and "arena_max=2" in str(probes["malloc"]["facts"])


def test_what_should_work_and_does_not_is_told_with_reason_and_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = doctor(JAXCC_CXX="false", JAXCC_CACHE_DIR=str(tmp_path), JAX_PLATFORMS="nonsense")
    assert done.returncode == 1
    text = " ".join(done.stdout.split())
    for name, reason in (
        ("kernel cache fails", "can be written by others because: jaxcc loads code from it"),
        ("C++ kernels fails", "did not compile a kernel"),
        ("devices fails", "Unable to initialize backend 'nonsense'"),
    ):
        assert reason in text.partition(name)[2][:400], done.stdout
    assert "fix: chmod go-w" in text and "fix: set JAXCC_CXX to a C++17 compiler" in text
    assert text.endswith(
        "should work here, and does not: devices, kernel cache, xla on JAX's devices, C++ kernels"
    )
    assert "Traceback" not in done.stderr


def test_interrupted_it_leaves_no_process() -> None:
    mark = f"doctor-{os.getpid()}"

    def marked() -> list[Path]:
        return [path for path in Path("/proc").glob("[0-9]*") if mark in _environment_of(path)]

    process = subprocess.Popen(
        COMMAND, env=environment(MARK=mark), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while len(marked()) < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert marked() == []


def _environment_of(process: Path) -> str:
    try:
        return (process / "environ").read_text(errors="replace")
    except OSError:
        return ""


def test_a_probe_that_hangs_or_crashes_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(100)\n")
    (tmp_path / "crashes.py").write_text("import os\nprint('{}')\nos.abort()\n")
    (tmp_path / "silent.py").write_text("import sys\nsys.exit('out of luck')\n")
    path = {"PYTHONPATH": str(tmp_path)}
    hangs = Child("hangs", variables=path, leads=True)
    told = hangs.end()
    assert hangs.status == -signal.SIGTERM and told.what.startswith("no answer within")
    # The one that waits for the others is not waited for.
    start = time.monotonic()
    crashed = together([Child("hangs", variables=path), Child("crashes", variables=path)])
    assert crashed == Answer(FAILS, "its process was ended by SIGABRT")
    silent = together([Child("silent", variables=path)])
    assert silent == Answer(FAILS, "its process ended with status 1", "out of luck")
    assert time.monotonic() - start < 50
    asked = _run._ask({"devices": replace(PROBES["devices"], limit_s=0.0)}, lambda _: None)
    assert asked["devices"].state == FAILS and "no answer" in asked["devices"].what


def test_the_doctor_itself_needs_no_jax() -> None:
    code = "import sys, jaxcc.cli.doctor; assert not {'jax', 'jaxlib', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_supported_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    low, high = SUPPORTED_JAX
    assert f"jax>={low},<{high}" in project["dependencies"]


@pytest.mark.parametrize(
    ("version", "state"),
    [("0.11.0", FAILS), ("0.11.1", OK), ("0.12.0.1", OK), ("0.13.0.dev1", FAILS), ("", FAILS)],
)
def test_a_version_of_jax_is_judged(
    version: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxcc.cli.doctor.software._version", lambda _: version)
    answer = PROBES["JAX"].look()
    assert answer.state == state
    assert bool(answer.fixes) == (state == FAILS)


def test_a_machine_without_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    answer = PROBES["/dev/shm"].look()
    assert answer.state == OFF and answer.because == "No space left on device"
    assert "--shm-size" in answer.fixes[0]
