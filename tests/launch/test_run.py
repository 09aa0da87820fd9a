"""`jaxcc run`: what ranks compute, what they are given, and whose output is shown."""

from __future__ import annotations

import json
import os
import pty
import re
import secrets
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from launching import SAY, SUM, Launcher

import jaxcc
from jaxcc.cli import main


@pytest.mark.parametrize(("ranks", "devices"), [(2, 1), (3, 1), (2, 2)])
def test_one_mesh_spans_the_devices_of_all_ranks(
    ranks: int, devices: int, launcher: Launcher
) -> None:
    seed = secrets.randbelow(1 << 30)
    script = (
        # A script sets variables for JAX before it imports it.
        "import os; os.environ['JAX_ENABLE_X64'] = '1'\n"
        + SUM
        + """
import json
everything = np.random.default_rng(int(sys.argv[1])).standard_normal((jax.device_count(), 1000))
result = total(jax.device_put(everything, P("x")))
mine = [int(d.id) for d in jax.local_devices()]
say(json.dumps([RANK, RANKS, jax.process_index(), jax.device_count(), mine, result.tolist()]))
"""
    )
    options = ["-n", str(ranks), "--devices-per-rank", str(devices)]
    done = launcher.run(script, *options, args=(str(seed),))
    assert done.returncode == 0, done.stderr
    said = sorted(json.loads(line) for line in launcher.lines(ranks))
    assert [one[:4] for one in said] == [[r, ranks, r, ranks * devices] for r in range(ranks)]
    assert len({device for one in said for device in one[4]}) == ranks * devices
    everything = np.random.default_rng(seed).standard_normal((ranks * devices, 1000))
    for one in said:
        np.testing.assert_allclose(one[5], everything.sum(0, keepdims=True), rtol=1e-12, atol=1e-12)


def test_the_program_of_the_help_runs(
    launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    program = capsys.readouterr().out.partition("on 3 ranks:\n")[2].partition("\n\nJAX is")[0]
    done = launcher.run(textwrap.dedent(program), "-n", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n[3]\n")


ASKED = """
import json, __main__
print(json.dumps({
    "argv": sys.argv, "name": __name__, "path": sys.path[0], "cwd": os.getcwd(),
    "main": __main__.VALUE, "stdin": sys.stdin.read(), "jax": "jax" in sys.modules,
}))
"""


def test_a_script_runs_as_python_runs_it(launcher: Launcher, tmp_path: Path) -> None:
    args = ("-n", "7", "--json", "--", "a b", "--help")
    done = launcher.run(SAY + "VALUE = 3\n" + ASKED, "-n", "2", args=args, stdin="to rank 0")
    assert done.returncode == 0, done.stderr
    plain = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), *args],
        env={**os.environ, "JAXCC_RANK": "0", "JAXCC_RANKS": "2"},
        input="to rank 0",
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout) == json.loads(plain.stdout)
    assert json.loads(done.stdout)["argv"] == [str(tmp_path / "script.py"), *args]


@pytest.mark.parametrize("form", ["module", "folder"])
def test_modules_and_folders_run_as_python_runs_them(form: str, tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import sys; print(__name__, sys.argv, sys.path[0])")
    target = ["-m", "package"] if form == "module" else [str(package)]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{tmp_path}"}

    def output(*command: str) -> str:
        return subprocess.check_output(
            [sys.executable, *command, *target, "-x"], env=environment, text=True
        )

    assert output("-m", "jaxcc", "run", "-n", "2") == output()


def test_only_what_rank_0_prints_is_shown(launcher: Launcher) -> None:
    script = SAY + "print('out', RANK); print('err', RANK, file=sys.stderr)"
    done = launcher.run(script, "-n", "3")
    assert (done.returncode, done.stdout) == (0, "out 0\n")
    assert "err 0\n" in done.stderr and "err 1" not in done.stderr


def test_all_output_is_shown_line_by_line(launcher: Launcher) -> None:
    script = (
        SAY
        + """
for k in range(200):
    sys.stdout.write(f"{RANK} ")
    sys.stdout.write(f"out {k}\\n")
print(RANK, "unended", end="")
print(RANK, "err", file=sys.stderr)
"""
    )
    done = launcher.run(script, "-n", "3", "--output", "all")
    assert done.returncode == 0
    shown = [re.fullmatch(r"\[(\d)\] (\d) (.*)", line) for line in done.stdout.splitlines()]
    for rank in "012":
        mine = [line[3] for line in shown if line and line[1] == line[2] == rank]
        assert mine == [*(f"out {k}" for k in range(200)), "unended"]
        assert f"[{rank}] {rank} err\n" in done.stderr
    assert len(shown) == 3 * 201


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_numbers_are_coloured_on_a_terminal(no_color: str, coloured: bool, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('hello')")
    ours, theirs = pty.openpty()
    subprocess.run(
        [sys.executable, "-m", "jaxcc", "run", "-n", "2", "--output", "all", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "NO_COLOR": no_color, "TERM": "xterm"},
        stdout=theirs,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert ("\x1b[" in shown) == coloured
    assert re.sub(r"\x1b\[\d*m", "", shown).count("] hello") == 2


def test_ranks_have_cores_of_their_own_where_there_are_enough(launcher: Launcher) -> None:
    script = SAY + "say(*sorted(os.sched_getaffinity(0)))"
    cpus = os.sched_getaffinity(0)
    assert launcher.run(script, "-n", "2").returncode == 0
    first, second = [set(map(int, line.split())) for line in launcher.lines(2)]
    assert first | second <= cpus
    assert not first & second if len(cpus) > 1 else first == second == cpus
    assert launcher.run(script, "-n", "2", "--bind", "none").returncode == 0
    assert [set(map(int, line.split())) for line in launcher.lines(4)[2:]] == [cpus, cpus]


def test_malloc_is_tuned_with_one_line_that_says_so(launcher: Launcher) -> None:
    script = SAY + "say(os.environ.get('GLIBC_TUNABLES'))"
    done = launcher.run(script, "-n", "2")
    assert done.stderr.count("jaxcc run: ranks keep the memory of large results") == 1
    assert set(launcher.lines(2)) == {jaxcc.malloc_environment()["GLIBC_TUNABLES"]}
    assert launcher.run(script, "-n", "2", "--no-malloc").stderr == ""
    assert launcher.lines(4)[2:] == ["None", "None"]


def test_processes_that_a_rank_starts_are_no_ranks(launcher: Launcher) -> None:
    script = (
        SAY
        + """
import subprocess
code = "import jaxcc; jaxcc.init(); import jax; print(jax.process_count())"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""
    )
    done = launcher.run(script, "-n", "2")
    assert (done.returncode, done.stdout.strip()) == (0, "1")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "PROGRAM"),
        (["script.py"], "say how many ranks, before the program: jaxcc run -n 2 script.py"),
        (["script.py", "-n", "2"], "say how many ranks, before the program"),
        (["-n", "0", "script.py"], "'0' is not a number from 1 up"),
        (["-n", "-3", "script.py"], "-3"),
        (["-n", "two", "script.py"], "'two' is not a number from 1 up"),
        (["-n", "2", "--devices-per-rank", "0", "script.py"], "'0' is not a number from 1 up"),
        (["-n", "2", "--grace", "nan", "script.py"], "'nan' is not a number of seconds"),
        (["-n", "2", "--bnid", "none", "script.py"], "--bnid"),
        (["-n", "2", "nothing.py"], "no such script: nothing.py"),
        (["-n", "2", "json.tool"], "jaxcc run -n N -m json.tool"),
        (["-n", "2", "/"], "without a __main__.py"),
        (["-n", "2", "-"], "standard input; save it as a file"),
        (["-n", "2", "--bogus", "script.py"], "jaxcc run: error: unrecognized arguments: --bogus"),
    ],
)
def test_mistakes_are_refused(
    args: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("")
    try:
        code = main(["run", *args])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert says in err


def test_many_more_ranks_than_cores_are_warned_of(launcher: Launcher) -> None:
    ranks = 4 * len(os.sched_getaffinity(0)) + 1
    done = launcher.run("", "-n", str(ranks))
    assert done.returncode == 0
    assert f"{ranks} ranks share" in done.stderr


def test_output_that_nobody_reads_ends_the_run(launcher: Launcher) -> None:
    script = SAY + "while True: print('line')"
    process = launcher.start(script, "-n", "2", "--output", "all")
    assert process.stdout is not None
    process.stdout.read(100)
    process.stdout.close()
    assert process.wait(60) == 141
